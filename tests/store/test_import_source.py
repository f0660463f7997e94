"""A source that changes under an import, or has files that are no chunks: told, and never zeros."""

from __future__ import annotations

import bz2
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from reference_store import LAYOUT, Float32, random_values, write_reference

from activault.store import StoreMismatchError, StoreWriter, open_store
from activault.store.importing import ImportOptions, import_reference
from activault.store.reference import Reference, open_reference
from activault.store.reference_codec import DamagedChunk, make_codec

PLAIN = ImportOptions(registers=4, dtype="float32", shard_rows=16)


@pytest.fixture
def values() -> Float32:
    return random_values()


def read_all(path: Path) -> Float32:
    store = open_store(path)
    return store.read(slice(0, store.num_rows), store.layers)


def rewrite(source: Path, rows: slice, values: Float32, layer: slice = slice(None)) -> None:
    array: Any = zarr.open_array(str(source), mode="r+", zarr_format=2)
    array[rows, layer] = values


def after_the_first_read(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something once the array is open and a block of it was read."""
    read, done = Reference.read, list[int]()

    def acting(self: Reference, *arguments: Any) -> Any:
        found = read(self, *arguments)
        if not done:
            done.append(1)
            act()
        return found

    monkeypatch.setattr(Reference, "read", acting)


@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("fill", [0.0, None], ids=["fill 0", "no fill"])
@pytest.mark.parametrize("tokens", [3, 9], ids=["of tokens", "whole"])
def test_a_chunk_that_vanishes_is_no_zeros(
    values: Float32, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int, fill: Any, separator: str
) -> None:
    chunks = (16, 1, tokens, 8)
    source = write_reference(tmp_path / "a", values, chunks, fill_value=fill, dimension_separator=separator)
    name = separator.join(("2", "3", "1" if tokens == 3 else "0", "0"))
    after_the_first_read(monkeypatch, (source / name).unlink)
    with pytest.raises(StoreMismatchError, match=f"{name} vanished while it was read; put it back and run"):
        import_reference(source, tmp_path / "s.zarr", PLAIN)
    records = sorted(file.name for file in (tmp_path / "s.zarr/shards").glob("*.json"))
    assert records == ["00000.json", "00001.json"]


def test_what_vanished_and_was_put_back_is_gone_on_with(
    values: Float32, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_reference(tmp_path / "a", values)
    with monkeypatch.context() as patch:
        after_the_first_read(patch, lambda: (source / "2.3.0.0").rename(tmp_path / "kept"))
        with pytest.raises(StoreMismatchError, match="vanished"):
            import_reference(source, tmp_path / "s.zarr", PLAIN)
    (tmp_path / "kept").rename(source / "2.3.0.0")
    assert import_reference(source, tmp_path / "s.zarr", PLAIN).num_new == 18
    assert read_all(tmp_path / "s.zarr").tobytes() == values.tobytes()


def test_a_chunk_that_appears_is_not_missing(
    values: Float32, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_reference(tmp_path / "a", values)
    (source / "2.3.0.0").rename(tmp_path / "kept")
    after_the_first_read(monkeypatch, lambda: (tmp_path / "kept").rename(source / "2.3.0.0"))
    with pytest.raises(StoreMismatchError, match=r"2\.3\.0\.0 appeared while the source was read; let"):
        import_reference(source, tmp_path / "s.zarr", PLAIN)


def test_a_chunk_that_is_changed_meanwhile_is_told(
    values: Float32, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_reference(tmp_path / "a", values, compressor=None)
    after_the_first_read(monkeypatch, lambda: rewrite(source, slice(32, 48), 2 * values[32:48]))
    with pytest.raises(StoreMismatchError, match=r"2\.\d\.0\.0 was changed while the source was read; let"):
        import_reference(source, tmp_path / "s.zarr", PLAIN)


def stopped_at(shard: int, source: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = StoreWriter.publish

    def stopping(self: StoreWriter, buffer: Any, *arguments: Any, **options: Any) -> Any:
        if buffer.shard == shard:
            raise KeyboardInterrupt
        return publish(self, buffer, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "publish", stopping)
        with pytest.raises(KeyboardInterrupt):
            import_reference(source, store, PLAIN)


@pytest.mark.parametrize("chunks", [(16, 1, 9, 8), (4, 2, 9, 8), (50, 5, 9, 8)], ids=str)
def test_values_that_were_changed_between_two_runs_are_noticed(
    values: Float32, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: tuple[int, ...]
) -> None:
    """Without a compressor names and sizes stay as they are; the file that was changed is the newest."""
    source = write_reference(tmp_path / "a", values, chunks, compressor=None)
    stopped_at(2, source, tmp_path / "s.zarr", monkeypatch)
    rewrite(source, slice(5, 6), 2 * values[5:6, 2:3], slice(2, 3))
    with pytest.raises(
        StoreMismatchError, match=r"row 5, layer 2, cls of .* is not what .* has of it: the so"
    ):
        import_reference(source, tmp_path / "s.zarr", PLAIN)
    rewrite(source, slice(5, 6), values[5:6])
    assert import_reference(source, tmp_path / "s.zarr", PLAIN).num_new == 18


def test_another_array_of_the_same_sizes_and_times_is_noticed(
    values: Float32, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_reference(tmp_path / "a", values, compressor=None)
    stopped_at(2, source, tmp_path / "s.zarr", monkeypatch)
    before = {file: file.stat() for file in source.iterdir()}
    rewrite(source, slice(0, 50), 2 * values)
    for file, state in before.items():
        os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(StoreMismatchError, match="row 0, layer 0, cls"):
        import_reference(source, tmp_path / "s.zarr", PLAIN)


def test_a_finished_import_is_held_against_its_source_too(values: Float32, tmp_path: Path) -> None:
    source = write_reference(tmp_path / "a", values, compressor=None)
    import_reference(source, tmp_path / "s.zarr", PLAIN)
    rewrite(source, slice(49, 50), 2 * values[49:50])
    with pytest.raises(StoreMismatchError, match="row 49, layer 0"):
        import_reference(source, tmp_path / "s.zarr", PLAIN)


def test_bad_rows_are_looked_at_again_as_well(
    values: Float32, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that was NaN and has values now is another row."""
    values[3, 2, 0, 0] = np.nan
    source = write_reference(tmp_path / "a", values, compressor=None)
    (source / "1.0.0.0").unlink()
    stopped_at(2, source, tmp_path / "s.zarr", monkeypatch)
    assert import_reference(source, tmp_path / "s.zarr", PLAIN).bad == {"missing": 16, "non-finite": 1}
    rewrite(source, slice(3, 4), np.ones((1, 5, 9, 8), np.float32))
    with pytest.raises(StoreMismatchError, match="row 3, layer 0"):
        import_reference(source, tmp_path / "s.zarr", PLAIN)


def test_int8_goes_on_with_a_source_of_bad_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).standard_normal((64, 3, 21, 8), dtype=np.float32)
    values[5] = np.inf
    source = write_reference(tmp_path / "a", values, (16, 1, 21, 8))
    options = ImportOptions(registers=4, dtype="int8", shard_rows=32)
    first = import_reference(source, tmp_path / "s.zarr", options)
    assert import_reference(source, tmp_path / "s.zarr", options).digest == first.digest


@pytest.mark.parametrize(("separator", "name", "stray"), [(".", "1.2.0.0", "01.2.0.0"), ("/", "1/2", "1/02")])
@pytest.mark.parametrize("fill", [0.0, None], ids=["fill 0", "no fill"])
def test_only_canonical_names_are_names_of_chunks(
    values: Float32,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    separator: str,
    name: str,
    stray: str,
    fill: Any,
) -> None:
    source = write_reference(tmp_path / "a", values, dimension_separator=separator, fill_value=fill)
    (source / name).rename(source / stray)
    summary = import_reference(source, tmp_path / "s.zarr", LAYOUT)
    assert summary.bad == {"missing": 16}
    assert f"holds what is no chunk of the array and is not imported: '{stray}" in caplog.text


@pytest.mark.parametrize(
    "stray", ["01.2.0.0", "9.2.0.0", "1.2.0", "1.2.0.0.tmp", "notes.txt", "\u0661.2.0.0"]
)
def test_strangers_beside_the_chunks_harm_no_row_and_are_named(
    values: Float32, tmp_path: Path, caplog: pytest.LogCaptureFixture, stray: str
) -> None:
    source = write_reference(tmp_path / "a", values)
    fingerprint = open_reference(source).fingerprint
    assert not caplog.text
    shutil.copy(source / "1.2.0.0", source / stray)
    reference = open_reference(source)
    assert (reference.files.strangers, reference.fingerprint) == ((stray,), fingerprint)
    assert ascii(stray) in caplog.text
    assert import_reference(source, tmp_path / "s.zarr", LAYOUT).bad == {}


def test_many_strangers_are_counted(
    values: Float32, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_reference(tmp_path / "a", values)
    for number in range(20):
        (source / f"x{number:02d}").touch()
    open_reference(source)
    assert "'x06', 'x07' and 12 more" in caplog.text


def test_links_are_followed(values: Float32, tmp_path: Path) -> None:
    source = write_reference(tmp_path / "a", values, dimension_separator="/")
    shutil.move(source / "1", tmp_path / "elsewhere")
    (source / "1").symlink_to(tmp_path / "elsewhere")
    shutil.move(source / "2/3/0/0", tmp_path / "chunk")
    (source / "2/3/0/0").symlink_to(tmp_path / "chunk")
    import_reference(source, tmp_path / "s.zarr", PLAIN)
    assert read_all(tmp_path / "s.zarr").tobytes() == values.tobytes()


@pytest.mark.parametrize("name", ["blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd", None])
def test_bytes_that_are_no_chunk_are_damage_with_every_codec(name: str | None) -> None:
    codec = make_codec(None if name is None else {"id": name}, (4, 1, 3, 5))
    whole = np.random.default_rng(0).standard_normal(codec.shape, dtype=np.float32)
    data = bytes(whole.tobytes() if name is None else codec.compressor.encode(whole))
    assert codec.decode(data).tobytes() == whole.tobytes()
    rng = np.random.default_rng(0)
    cases = [b"", data[:1], data[:-1], data[: len(data) // 2], data[:20], *map(rng.bytes, (4, 16, 40, 300))]
    for damaged in cases:
        with pytest.raises(DamagedChunk):
            codec.decode(damaged)


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("blosc", b"\x02\x01\x21\x04" + struct.pack("<III", (1 << 31) - 1, 4096, 116)),
        ("blosc", b"\x02\x01\x21\x04" + struct.pack("<III", 240, 240, 1 << 30)),
        ("lz4", struct.pack("<I", (1 << 31) - 1)),
        ("zstd", b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 62)),
        ("zstd", b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 1 << 31)),
        ("zstd", b"\x28\xb5\x2f\xfd\x60" + struct.pack("<H", 60_000)),
    ],
)
def test_what_a_header_claims_is_not_allocated(name: str, header: bytes) -> None:
    with pytest.raises(DamagedChunk, match="its header says"):
        make_codec({"id": name}, (4, 1, 3, 5)).decode(header + b"\0" * 100)


def test_a_chunk_of_another_length_is_damage(values: Float32, tmp_path: Path) -> None:
    source = write_reference(tmp_path / "a", values, compressor=None)
    whole = (source / "0.0.0.0").read_bytes()
    (source / "0.0.0.0").write_bytes(whole[:-4])
    (source / "1.1.0.0").write_bytes(whole + b"\0")
    (source / "2.1.0.0").write_bytes(b"")
    assert import_reference(source, tmp_path / "s.zarr", PLAIN).bad == {"damaged": 48}


def test_bytes_that_bz2_cannot_decode_are_no_fault_of_the_disk(values: Float32, tmp_path: Path) -> None:
    from numcodecs import BZ2

    source = write_reference(tmp_path / "a", values, compressor=BZ2(1))
    (source / "0.0.0.0").write_bytes(b"no")
    (source / "1.0.0.0").write_bytes(bz2.compress(b"no"))
    assert import_reference(source, tmp_path / "s.zarr", PLAIN).bad == {"damaged": 32}
