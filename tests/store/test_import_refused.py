"""What is not the reference's layout is not imported, and is said to be what it is."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from reference_store import LAYOUT, random_values, write_reference

from activault.store import AccessDeniedError, ConfigError, CorruptStoreError, NotAStoreError, open_store
from activault.store.importing import ImportOptions, import_reference
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
        ({"dtype": "<f2"}, "dtype of the reference's layout is '<f4', float32; got '<f2'; import reads what"),
        ({"order": "F"}, "order"),
        (
            {"shape": [50, 5, 9]},
            r"shape of the reference's layout is rows, layers, tokens, width, each at least 1 and at",
        ),
        ({"shape": [50, 5, 9, -8]}, "shape"),
        ({"shape": [50, 0, 9, 8]}, r"each at least 1 and at most .*; got \[50, 0, 9, 8\]"),
        ({"shape": [1 << 40, 5, 9, 8]}, "shape"),
        ({"shape": [50, 4098, 9, 8]}, "at most 268435456, 4097, 33554432, 1048576; got"),
        ({"shape": [50, 5, 9, 1 << 21]}, "shape"),
        ({"shape": [50.0, 5, 9, 8]}, "shape"),
        ({"chunks": [True, 1, 9, 8]}, "chunks of the reference's layout is four numbers from 1"),
        ({"dtype": ">f4"}, "dtype"),
        ({"dtype": "|O", "filters": [{"id": "vlen-utf8"}]}, r"dtype .*; got '\|O'"),
        ({"dtype": [["a", "<f4"]]}, "dtype"),
        ({"chunks": [1 << 30, 1 << 30, 9, 8]}, "a chunk is at most"),
        ({"filters": [{"id": "pickle"}]}, "filters"),
        ({"compressor": {"id": "pickle"}}, "compressor of the reference's layout is null or one of blosc"),
        ({"compressor": {"id": ["blosc"]}}, "compressor"),
        ({"compressor": "blosc"}, "compressor"),
        (
            {"compressor": {"id": "blosc", "foo": 1}},
            r"one with the options of blosc \(.*'foo'\); got \{'id': 'blosc', 'foo': 1\}; import reads",
        ),
        ({"compressor": {"id": "blosc", "cname": "evil"}}, "options of blosc .*'evil'; expected one of"),
        ({"compressor": {"id": "zlib", "level": "x"}}, "options of zlib"),
        ({"compressor": {"id": "zstd", "level": 10**20}}, "options of zstd"),
        ({"compressor": {"id": "lzma", "filters": [3]}}, "options of lzma"),
        ({"fill_value": "abc"}, "fill_value .* is null, a number or one of NaN, .*; got 'abc'; import reads"),
        ({"fill_value": [1]}, r"fill_value .*; got \[1\]"),
        ({"fill_value": {}}, r"fill_value .*; got \{\}"),
        ({"fill_value": True}, "fill_value .*; got True"),
        ({"fill_value": 10**400}, "fill_value .* a number that float32 can hold"),
        ({"fill_value": 1e39}, "fill_value .* a number that float32 can hold; got 1e\\+39"),
        ({"dimension_separator": "//"}, "dimension_separator"),
        ({"zarr_format": 3}, "zarr_format"),
        (
            {"shape": [1 << 28, 4097, 9, 8], "chunks": [1, 1, 9, 8]},
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "must be the JSON of a Zarr v2 array"),
        (b"[]", r"must be a JSON object; got \[\]"),
        (b"{", "must be the JSON"),
        (b"[" * 100_000, "must be the JSON"),
        (b"\xff\xfe", "must be the JSON"),
        (b'{"zarr_format": 2, "zarr_format": 2}', r"a key is there twice\); import reads"),
        (b'{"fill_value": NaN}', "NaN is no JSON"),
        (b"{}", "zarr_format of the reference's layout is 2; got nothing"),
        (b" " * ((1 << 20) + 1), "at most 1048576 bytes"),
    ],
    ids=["empty", "list", "cut", "deep", "not UTF-8", "twice", "NaN", "nothing", "large"],
)
def test_metadata_that_are_none_are_refused(source: Path, text: bytes, message: str) -> None:
    (source / ".zarray").write_bytes(text)
    with pytest.raises(NotAStoreError, match=message):
        open_reference(source)


def test_a_field_that_is_left_out_is_told(source: Path) -> None:
    metadata = json.loads((source / ".zarray").read_text())
    del metadata["compressor"]
    (source / ".zarray").write_text(json.dumps(metadata))
    with pytest.raises(NotAStoreError, match="compressor of the reference's layout is there; got nothing"):
        open_reference(source)


def test_nothing_is_planned_from_an_array_that_cannot_be_decoded(source: Path, tmp_path: Path) -> None:
    change(source, compressor={"id": "blosc", "foo": 1})
    with pytest.raises(NotAStoreError, match="compressor"):
        import_reference(source, tmp_path / "s.zarr", LAYOUT)
    assert not (tmp_path / "s.zarr").exists()


@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("what", ["folder", "pipe", "link to a device", "link to nothing", "link to itself"])
def test_something_else_in_the_place_of_a_chunk_is_refused(tmp_path: Path, separator: str, what: str) -> None:
    source = write_reference(tmp_path / "a", random_values(), dimension_separator=separator)
    chunk = source / separator.join("1200")
    chunk.unlink()
    match what:
        case "folder":
            chunk.mkdir()
        case "pipe":
            os.mkfifo(chunk)
        case "link to a device":
            chunk.symlink_to("/dev/zero")
        case "link to nothing":
            chunk.symlink_to("absent")
        case _:
            chunk.symlink_to(chunk.name)
    with pytest.raises(
        (NotAStoreError, CorruptStoreError),
        match=f"{separator.join('1200')} (is|has the name of a chunk and must be a file; it is) "
        "a (link|folder|pipe or a device).*remove it",
    ):
        open_reference(source)


def test_what_may_not_be_read_is_told(source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """chmod does not stop root, so the system's answer is given here."""
    read_bytes = Path.read_bytes

    def refused(path: Path) -> bytes:
        if path.name == "1.2.0.0":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(AccessDeniedError, match=r"1\.2\.0\.0 cannot be read .*; grant the right to read it"):
        import_reference(source, tmp_path / "s.zarr", LAYOUT)


def test_a_folder_that_may_not_be_looked_into_is_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_reference(tmp_path / "a", random_values(), dimension_separator="/")
    scandir = os.scandir

    def refused(path: Path) -> Any:
        if Path(path).parts[-2:] == ("1", "2"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    with monkeypatch.context() as patched:  # what removes the test's folder reads folders too
        patched.setattr(os, "scandir", refused)
        with pytest.raises(AccessDeniedError, match=r"1/2 cannot be read .*; grant the right"):
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
    with pytest.raises(NotAStoreError, match="is Zarr v3"):
        open_reference(tmp_path / "s.zarr" / "layer_00" / "cls")
    with pytest.raises(NotAStoreError, match="is not a Zarr v2 array"):
        open_reference(source / ".zarray")


def test_arrays_of_a_group_in_a_group_are_named(tmp_path: Path) -> None:
    inner = zarr.open_group(str(tmp_path / "g"), mode="w", zarr_format=2).create_group("inner")
    inner.create_array("acts", shape=(5, 5, 9, 8), dtype="float32")
    with pytest.raises(NotAStoreError, match=r"is a group; name one of its arrays: inner/acts"):
        open_reference(tmp_path / "g")


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((2, 1, 5000, 1), {"num_cls": 0, "registers": 0, "grid": (5000, 1)}, "grid.* 4096; got 5000; state"),
        ((2, 1, 2001, 1), {"num_cls": 0, "registers": 2000}, "num_registers.* 1024; got 2000; state"),
        ((2, 1, 5, 1), {"registers": 0, "layers": "4096"}, None),
    ],
)
def test_what_format_1_cannot_hold_is_refused_by_name(
    tmp_path: Path, shape: tuple[int, ...], options: dict[str, Any], message: str | None
) -> None:
    source = write_reference(tmp_path / "a", np.ones(shape, np.float32), shape)
    if message is None:
        import_reference(source, tmp_path / "s.zarr", ImportOptions(**options))
        return
    with pytest.raises(ConfigError, match=message):
        import_reference(source, tmp_path / "s.zarr", ImportOptions(**options))


def test_a_name_of_any_bytes_is_told_in_utf8(tmp_path: Path) -> None:
    source = write_reference(tmp_path / "a", random_values())
    named = tmp_path / os.fsdecode(b"\xff.zarr")
    source.rename(named)
    import_reference(named, tmp_path / "s.zarr", LAYOUT)
    assert open_store(tmp_path / "s.zarr").manifest.source.name == "\\xff.zarr"
