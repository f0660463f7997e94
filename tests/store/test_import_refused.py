"""What is not the reference's layout is not imported, and is said to be what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from reference_store import LAYOUT, random_values, write_reference

from activault.store import ConfigError, CorruptStoreError, NotAStoreError
from activault.store.importing import import_reference
from activault.store.reference import open_reference


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_reference(tmp_path / "activations.zarr", random_values())


def change(path: Path, **fields: Any) -> None:
    metadata = json.loads((path / ".zarray").read_text())
    (path / ".zarray").write_text(json.dumps(metadata | fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "<f2"}, "dtype of the reference's layout is '<f4', float32; got <f2"),
        ({"order": "F"}, "order"),
        ({"shape": [50, 5, 9]}, "shape of the reference's layout is rows, layers, tokens, width"),
        ({"shape": [50, 5, 9, -8]}, "shape"),
        ({"chunks": [1 << 30, 1 << 30, 9, 8]}, "a chunk is at most"),
        ({"filters": [{"id": "pickle"}]}, "filters"),
        ({"compressor": {"id": "pickle"}}, "compressor of the reference's layout is null or one of blosc"),
        ({"compressor": "blosc"}, "compressor"),
        ({"dimension_separator": "//"}, "dimension_separator"),
        ({"zarr_format": 3}, "zarr_format"),
        (
            {"shape": [1 << 28, 1 << 20, 9, 8], "chunks": [1, 1, 9, 8]},
            "chunks of rows and layers; there are 20 files",
        ),
    ],
    ids=str,
)
def test_what_is_not_the_references_layout_is_refused(
    source: Path, fields: dict[str, Any], message: str
) -> None:
    change(source, **fields)
    with pytest.raises(NotAStoreError, match=message):
        open_reference(source)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000], ids=["empty", "list", "cut", "deep"])
def test_metadata_that_are_none_are_refused(source: Path, text: str) -> None:
    (source / ".zarray").write_text(text)
    with pytest.raises((NotAStoreError, CorruptStoreError)):
        open_reference(source)


def test_what_else_may_be_there_is_said(source: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="does not exist; name the folder"):
        open_reference(tmp_path / "absent")
    with pytest.raises(NotAStoreError, match=r"is a group; name one of its arrays: activations\.zarr"):
        open_reference(tmp_path)
    with pytest.raises(ConfigError, match="read from a folder"):
        open_reference(Path("s3://bucket/activations.zarr"))
    import_reference(source, tmp_path / "s.zarr", LAYOUT)
    with pytest.raises(NotAStoreError, match="is Zarr v3"):
        open_reference(tmp_path / "s.zarr")
