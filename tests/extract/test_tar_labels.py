"""Labels of tars: of the members beside an image, by the column that is asked for, else of its folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from activault.extract.options import SourceOptions
from activault.extract.sources import open_source
from activault.store import ConfigError

from .make_sources import picture, write_samples


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTIVAULT_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("members", "label"),
    [
        ({"cls": "7\n"}, "7"),
        ({"cls": "007"}, "007"),
        ({"json": json.dumps({"label": "cat", "id": 3})}, "cat"),
        ({"json": json.dumps({"label": 3})}, "3"),
        ({"json": json.dumps({"id": 3})}, "n01"),
        ({"txt": "dog"}, "dog"),
        ({"txt": "a caption\nof two lines"}, "n01"),
        ({"txt": "long " * 50}, "n01"),
        ({"cls": "1", "json": '{"label": 2}', "txt": "3"}, "1"),
        ({"json": '{"label": 2}', "txt": "3"}, "2"),
        ({}, "n01"),
    ],
)
def test_labels(tmp_path: Path, members: dict[str, str], label: str) -> None:
    path = write_samples(tmp_path / "x.tar", [("n01/a", {"png": picture(0), **members})])
    assert open_source(path).labels == [label]


@pytest.mark.parametrize(("column", "label"), [("id", "9"), ("txt", "a caption"), ("cls", "5")])
def test_the_label_that_is_asked_for(tmp_path: Path, column: str, label: str) -> None:
    members = {"png": picture(0), "cls": "5", "json": '{"id": 9, "label": 1}', "txt": "a caption"}
    path = write_samples(tmp_path / "x.tar", [("a", members)])
    assert open_source(path, SourceOptions(label_column=column)).labels == [label]


def test_a_label_column_that_no_sample_has_is_refused(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "x.tar", [("n01/a", {"png": picture(0), "cls": "5"})])
    with pytest.raises(
        ConfigError, match="no sample has the label column 'klass'; it is cls, txt, or a field"
    ):
        open_source(path, SourceOptions(label_column="klass"))


def test_a_label_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    samples = [("a", {"png": picture(0), "json": "{"}), ("b", {"png": picture(1), "cls": b"\xff"})]
    source = open_source(write_samples(tmp_path / "x.tar", samples))
    assert source.labels == [None, None]
    (fault,) = source.faults
    assert fault.endswith("x.tar has 2 samples whose label cannot be read (first: a)")
