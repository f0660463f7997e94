"""A refusal names the option of the command line, and the flag that asks for what is there."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from activault.extract import flags
from activault.extract.flags import as_option, asked_with
from activault.extract.options import ExtractOptions


@pytest.mark.parametrize(
    ("field", "values", "option"),
    [
        ("row_seed", (0, 1), ("seed", 0, 1)),
        ("row_seed", (None, 1), ("order", "kept", "shuffled")),
        ("kinds", (["cls"], ["patches"]), ("tokens", ["cls"], ["patches"])),
        ("preprocessing.resize", (28, 9), ("resize", 28, 9)),
        ("details.batch_invariant", (None, 16), ("batch_invariant", False, True)),
        ("autocast", ("bfloat16", None), ("autocast", "bfloat16", "off")),
        ("where", (None, "label=cat"), ("where", None, "label=cat")),
        ("layout.kept_patches", (None, "mean"), ("patches", "all", "mean")),
        ("layout.kept_patches", ([0, 4], None), ("patches", "2 places (f6f253fd)", "all")),
        ("teacher.timm_version", ("1", "2"), ("teacher.timm_version", "1", "2")),
    ],
)
def test_a_field_is_told_as_the_option_that_decides_it(
    field: str, values: tuple[Any, Any], option: tuple[str, Any, Any]
) -> None:
    assert as_option(field, *values) == option


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("seed", 0, " with --seed 0"),
        ("order", "kept", " with --order kept"),
        ("batch_invariant", True, " with --batch-invariant"),
        ("batch_invariant", False, " without --batch-invariant"),
        ("layers", (0, 6), " with --layers 0,6"),
        ("tokens", ["cls", "patches"], " with --tokens cls,patches"),
        ("image_size", [32, 48], " with --image-size 32x48"),
        ("mean", (0.5, 0.25, 1.0), " with --mean 0.5 0.25 1.0"),
        ("patches", "mean", " with --patches mean"),
        ("patches", "5 places (1f2e3d4c)", ""),
        ("where", "label=a cat", " with --where 'label=a cat'"),
        ("where", "key~*.png and label=cat", ""),
        ("split", None, " without --split"),
        ("citation", "", " with --citation ''"),
        ("resize", None, ""),
        ("source", "photos", ""),
        ("teacher.timm_version", "1", ""),
    ],
)
def test_the_flag_that_asks_for_a_value(name: str, value: Any, words: str) -> None:
    assert asked_with(name, value) == words


def test_every_option_that_is_spoken_of_is_there() -> None:
    assert {*flags._PLAIN, *flags._SWITCHES, *flags._CHOICES} <= {
        each.name for each in fields(ExtractOptions)
    }
