"""Which rows are kept, in which order: pure, seeded, and the same for the same request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from activault.extract.listing import ImageSource
from activault.extract.options import ExtractOptions
from activault.extract.order import chosen_rows, parse_condition, selection_details
from activault.extract.sources import open_source
from activault.store import ConfigError, ImageSourceError

from .make_sources import write_csv


@pytest.fixture
def source(tmp_path: Path) -> ImageSource:
    rows = [
        (f"{split}/{label}/{number}.png", label or "", number % 4)
        for number, (split, label) in enumerate(
            [("train", "cat"), ("train", "dog"), ("val", "cat"), ("test", None), ("train", "eel")] * 6
        )
    ]
    return open_source(write_csv(tmp_path / "list.csv", ("path", "label", "fold"), rows))


def chosen(source: ImageSource, *where: str, split: str | None = None) -> list[str]:
    return [source.keys[row] for row in chosen_rows(source, seed=None, where=where, split=split)]


def test_without_conditions_it_is_the_permutation_that_it_always_was(source: ImageSource) -> None:
    expected = np.random.default_rng(7).permutation(30)[:11]
    assert np.array_equal(chosen_rows(source, seed=7, limit=11), expected)


def test_kept_order_is_the_sources_own(source: ImageSource) -> None:
    assert chosen_rows(source, seed=None).tolist() == list(range(30))
    assert chosen_rows(source, seed=None, limit=4).tolist() == [0, 1, 2, 3]


def test_a_limit_is_the_beginning_of_the_whole_order(source: ImageSource) -> None:
    whole = chosen_rows(source, seed=3, where=("label!=eel",))
    assert np.array_equal(chosen_rows(source, seed=3, where=("label!=eel",), limit=5), whole[:5])


@pytest.mark.parametrize(
    ("where", "count"),
    [
        (("label=cat",), 12),
        (("label = cat",), 12),
        (("label!=cat",), 18),
        (("label=cat", "key~train/*"), 6),
        (("key~*/[cd]??/*",), 18),
        (("key!~train/*",), 12),
        (("fold=3",), 7),
        (("split=train",), 18),
        (("label~*",), 24),
        (("label!~*",), 6),
    ],
)
def test_conditions(source: ImageSource, where: tuple[str, ...], count: int) -> None:
    assert len(chosen(source, *where)) == count


def test_conditions_keep_their_rows_and_the_order(source: ImageSource) -> None:
    assert chosen(source, "label=dog")[:2] == ["train/dog/1.png", "train/dog/6.png"]
    shuffled = chosen_rows(source, seed=0, where=("label=dog",))
    assert sorted(shuffled) == chosen_rows(source, seed=None, where=("label=dog",)).tolist()
    assert sorted(shuffled) != shuffled.tolist()


@pytest.mark.parametrize(("split", "count"), [("train", 18), ("val", 6), ("validation", 6), ("test", 6)])
def test_splits(source: ImageSource, split: str, count: int) -> None:
    assert len(chosen(source, split=split)) == count


def test_nothing_left_says_which_values_there_are(source: ImageSource) -> None:
    with pytest.raises(
        ImageSourceError, match=r"none of the 30 images is chosen where label=cow; its values .* 'cat', 'dog'"
    ):
        chosen(source, "label=cow")
    with pytest.raises(ImageSourceError, match="where split=dev; its values are such as 'train'"):
        chosen(source, split="dev")


def test_a_column_that_is_not_there(source: ImageSource) -> None:
    with pytest.raises(ConfigError, match="got 'colour', there are key, label, split, path, label, fold"):
        chosen(source, "colour=red")


@pytest.mark.parametrize("text", ["label", "=cat", "", "~x", "!=x"])
def test_a_condition_without_a_column_or_an_operator(text: str) -> None:
    with pytest.raises(ConfigError, match="a condition is COLUMN=VALUE, COLUMN!=VALUE, COLUMN~GLOB"):
        parse_condition(text)
    with pytest.raises(ConfigError, match="a condition is"):
        ExtractOptions(teacher="demo", where=(text,))


def test_a_value_may_hold_signs() -> None:
    condition = parse_condition("key=a=b~c!=d")
    assert (condition.column, condition.operator, condition.value) == ("key", "=", "a=b~c!=d")


def test_details_name_the_choice_whatever_its_length() -> None:
    assert selection_details((), None) == {}
    assert selection_details(("b=1 ", "a=2"), "val") == {"where": "a=2 and b=1", "split": "validation"}
    long = selection_details(("a=" + "x" * 2000,), None)["where"]
    assert long.startswith("sha256:")
    assert selection_details(("a=" + "y" * 2000,), None)["where"] != long
