"""A reference-layout array becomes a store: every value, every hole, every refusal, and going on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from numcodecs import Blosc

from activault.store import (
    ConfigError,
    CorruptStoreError,
    ImageSourceError,
    NotAStoreError,
    StoreMismatchError,
    StoreWriter,
    importing,
    open_store,
    shard_writing,
    verify_store,
)
from activault.store.importing import ImportOptions, import_reference
from activault.store.reference import open_reference

Float32 = npt.NDArray[np.float32]
SHAPE = (50, 5, 9, 8)
LAYOUT = ImportOptions(registers=4)


def write_reference(
    path: Path, values: Float32, chunks: tuple[int, ...] = (16, 1, 9, 8), **changes: Any
) -> Path:
    """As the reference's own script writes it."""
    options: dict[str, Any] = {"compressor": Blosc(cname="zstd", clevel=3, shuffle=Blosc.SHUFFLE)} | changes
    array: Any = zarr.open(
        store=str(path),
        mode="w",
        shape=values.shape,
        chunks=chunks,
        dtype="float32",
        zarr_format=2,
        **options,
    )
    array[:] = values
    return path


@pytest.fixture
def values() -> Float32:
    return np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)


@pytest.fixture
def source(values: Float32, tmp_path: Path) -> Path:
    return write_reference(tmp_path / "activations.zarr", values)


def rounded(values: Float32, dtype: str) -> Float32:
    import torch

    kind = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[dtype]
    return torch.from_numpy(values).to(kind).float().numpy()


def read_all(path: Path) -> Float32:
    store = open_store(path)
    return store.read(slice(0, store.num_rows), store.layers)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_every_value_arrives(source: Path, values: Float32, tmp_path: Path, dtype: Any) -> None:
    summary = import_reference(source, tmp_path / "s.zarr", ImportOptions(registers=4, dtype=dtype))
    assert read_all(tmp_path / "s.zarr").tobytes() == rounded(values, dtype).tobytes()
    assert (summary.num_rows, summary.num_new, summary.bad) == (50, 50, {})
    assert verify_store(tmp_path / "s.zarr", deep=True, complete=True).faults == ()


def test_int8_keeps_its_bound(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((64, 3, 21, 8), dtype=np.float32)
    source = write_reference(tmp_path / "activations.zarr", values, (16, 1, 21, 8))
    import_reference(source, tmp_path / "s.zarr", ImportOptions(registers=4, dtype="int8", shard_rows=32))
    found = read_all(tmp_path / "s.zarr")
    error = ((found - values)[:, :, 5:] ** 2).sum(axis=(0, 2))
    spread = ((values - values.mean(axis=(0, 2), keepdims=True))[:, :, 5:] ** 2).sum(axis=(0, 2))
    assert (1 - error.sum(axis=1) / spread.sum(axis=1) >= 0.999).all()
    assert found[:, :, :5].tobytes() == rounded(values, "bfloat16")[:, :, :5].tobytes()


def test_what_is_not_known_is_said_to_be(source: Path, tmp_path: Path) -> None:
    summary = import_reference(source, tmp_path / "s.zarr", LAYOUT)
    store = open_store(tmp_path / "s.zarr")
    assert summary.unknown == ("keys", "labels", "teacher", "heads", "preprocessing", "license")
    assert store.samples["key"].to_pylist()[:2] == ["row-000000000", "row-000000001"]
    assert store.samples["label"].null_count == 50
    assert store.samples["width"].null_count == 50
    card = (tmp_path / "s.zarr" / "CARD.md").read_text()
    assert "**Preprocessing**: unknown" in card
    assert "**Teacher**: unknown" in card


@pytest.mark.parametrize(
    ("chunks", "options"),
    [
        ((16, 5, 9, 8), {}),
        ((7, 2, 4, 3), {}),
        ((1, 5, 9, 8), {}),
        ((16, 1, 9, 8), {"compressor": None}),
        ((16, 1, 9, 8), {"dimension_separator": "/"}),
        ((64, 1, 9, 8), {"fill_value": None}),
    ],
    ids=["all layers", "odd", "one row", "plain", "nested", "no fill"],
)
def test_any_chunks_of_the_layout_are_read(
    values: Float32, tmp_path: Path, chunks: tuple[int, ...], options: dict[str, Any]
) -> None:
    source = write_reference(tmp_path / "a.zarr", values, chunks, **options)
    import_reference(source, tmp_path / "s.zarr", ImportOptions(registers=4, dtype="float32", shard_rows=20))
    assert read_all(tmp_path / "s.zarr").tobytes() == values.tobytes()


def test_the_digest_of_the_arrays_does_not_depend_on_the_sources_chunks(
    values: Float32, tmp_path: Path
) -> None:
    digests = set()
    for name, chunks in (("a", (16, 1, 9, 8)), ("b", (7, 2, 9, 8))):
        import_reference(write_reference(tmp_path / name, values, chunks), tmp_path / f"{name}.zarr", LAYOUT)
        digests.add(open_store(tmp_path / f"{name}.zarr").arrays_digest)
    assert len(digests) == 1


def test_rows_that_were_never_written_are_missing_and_not_zeros(
    source: Path, values: Float32, tmp_path: Path
) -> None:
    (source / "1.3.0.0").unlink()
    summary = import_reference(source, tmp_path / "s.zarr", LAYOUT)
    assert summary.bad == {"missing": 16}
    samples = open_store(tmp_path / "s.zarr").samples
    assert samples["status"].to_pylist() == ["ok"] * 16 + ["missing"] * 16 + ["ok"] * 18
    assert samples["reason"][16].as_py() == "[:, 3] was never written to the source"
    found = read_all(tmp_path / "s.zarr")
    assert np.isnan(found[16:32]).all()
    assert found[32:].tobytes() == rounded(values, "bfloat16")[32:].tobytes()


def test_rows_of_nothing_but_fill_are_missing(values: Float32, tmp_path: Path) -> None:
    """A writer that died within a chunk leaves zeros in it; no layer of a network is all zeros."""
    values[17, 2] = 0
    values[18:20] = 0
    values[21, 1, 3] = 0  # one token may be
    summary = import_reference(write_reference(tmp_path / "a.zarr", values), tmp_path / "s.zarr", LAYOUT)
    assert summary.bad == {"missing": 3}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_bad(values: Float32, tmp_path: Path, value: float) -> None:
    values[33, 4, 8, 7] = value
    summary = import_reference(write_reference(tmp_path / "a.zarr", values), tmp_path / "s.zarr", LAYOUT)
    assert summary.bad == {"non-finite": 1}
    assert (
        open_store(tmp_path / "s.zarr").samples["reason"][33].as_py() == "[:, 4] holds a NaN or an infinity"
    )


@pytest.mark.parametrize(
    "damage", [lambda data: data[:40], lambda data: b"\xff" * len(data), lambda data: b""]
)
def test_rows_of_a_damaged_chunk_are_bad(source: Path, tmp_path: Path, damage: Any) -> None:
    chunk = source / "0.2.0.0"
    chunk.write_bytes(damage(chunk.read_bytes()))
    summary = import_reference(source, tmp_path / "s.zarr", LAYOUT)
    assert summary.bad == {"damaged": 16}


def test_a_source_without_any_row_is_refused(source: Path, tmp_path: Path) -> None:
    for chunk in source.glob("*.2.0.0"):
        chunk.unlink()
    with pytest.raises(ImageSourceError, match=r"none of the 50 rows of .* has activations \(50 missing\)"):
        import_reference(source, tmp_path / "s.zarr", LAYOUT)
    assert not open_store(tmp_path / "s.zarr").complete


def test_labels_and_keys_come_from_files(source: Path, tmp_path: Path) -> None:
    labels = [None if row == 3 else f"class {row % 3}" for row in range(50)]
    keys = [f"train/{row}.jpg" for row in range(50)]
    pq.write_table(pa.table({"row": list(range(50)), "label": labels}), tmp_path / "l.parquet")
    (tmp_path / "k.txt").write_text("\n".join(keys) + "\n")
    options = ImportOptions(registers=4, labels=tmp_path / "l.parquet", keys=tmp_path / "k.txt")
    assert import_reference(source, tmp_path / "s.zarr", options).unknown == (
        "teacher", "heads", "preprocessing", "license",
    )  # fmt: skip
    samples = open_store(tmp_path / "s.zarr").samples
    assert samples["label"].to_pylist() == labels
    assert samples["key"].to_pylist() == keys


def test_a_column_of_numbers_is_a_column_of_labels(source: Path, tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("label,name\n" + "".join(f"0{row % 2},x\n" for row in range(50)))
    import_reference(source, tmp_path / "s.zarr", ImportOptions(registers=4, labels=tmp_path / "l.csv"))
    assert open_store(tmp_path / "s.zarr").classes == ("00", "01")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("l.csv", "label\na\n", "must hold 50 labels, one a row; it holds 1"),
        ("l.csv", "a,b\n1,2\n", "must have a column 'label', or one column alone; it has a, b"),
        ("l.json", "[]", "come from a .txt, .csv or .parquet file"),
        ("l.parquet", "no", "cannot be read as labels"),
        ("absent.txt", None, "cannot be read as labels"),
    ],
)
def test_a_file_of_labels_that_does_not_fit_is_refused(
    source: Path, tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        import_reference(source, tmp_path / "s.zarr", ImportOptions(registers=4, labels=tmp_path / name))
    assert not (tmp_path / "s.zarr").exists()


def test_keys_name_every_row_once(source: Path, tmp_path: Path) -> None:
    (tmp_path / "k.txt").write_text("a\n" * 50)
    with pytest.raises(ConfigError, match="'a' is there twice"):
        import_reference(source, tmp_path / "s.zarr", ImportOptions(registers=4, keys=tmp_path / "k.txt"))


def test_it_goes_on_where_it_stopped(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ImportOptions(registers=4, shard_rows=16)
    import_reference(source, tmp_path / "whole.zarr", options)
    publish, published = StoreWriter.publish, 0

    def stopping(self: StoreWriter, *arguments: Any, **options: Any) -> Any:
        nonlocal published
        published += 1
        if published == 3:
            raise KeyboardInterrupt
        return publish(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "publish", stopping)
        with pytest.raises(KeyboardInterrupt):
            import_reference(source, tmp_path / "s.zarr", options)
    steps: list[tuple[int, int]] = []
    summary = import_reference(source, tmp_path / "s.zarr", options, lambda *step: steps.append(step))
    assert (summary.num_rows, summary.num_new) == (50, 18)
    assert steps == [(48, 50), (50, 50)]
    assert summary.digest == open_store(tmp_path / "whole.zarr").digest


def test_a_finished_import_is_left_as_it_is(source: Path, tmp_path: Path) -> None:
    first = import_reference(source, tmp_path / "s.zarr", LAYOUT)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "s.zarr").rglob("*")}
    again = import_reference(source, tmp_path / "s.zarr", LAYOUT)
    assert (again.num_new, again.digest) == (0, first.digest)
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "s.zarr").rglob("*")} == before


def test_a_source_that_changed_is_another_source(source: Path, tmp_path: Path) -> None:
    import_reference(source, tmp_path / "s.zarr", LAYOUT)
    (source / "1.3.0.0").unlink()
    with pytest.raises(StoreMismatchError, match=r"source\.fingerprint"):
        import_reference(source, tmp_path / "s.zarr", LAYOUT)


def test_bytes_that_do_not_read_back_are_found(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A buffer that takes a value wrongly is found out, since the source is hashed before it."""

    def publish(self: StoreWriter, buffer: Any, *arguments: Any, **options: Any) -> Any:
        from activault.store.records import ArrayKey

        buffer.held(ArrayKey(2, "patches"))[5, 1, 3] ^= 1
        return original(self, buffer, *arguments, **options)

    original = StoreWriter.publish
    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "publish", publish)
        with pytest.raises(CorruptStoreError, match="row 5, layer 2, patches does not read back"):
            import_reference(source, tmp_path / "s.zarr", LAYOUT)
    assert import_reference(source, tmp_path / "s.zarr", LAYOUT).num_new == 50


def test_a_shard_has_no_record_before_it_was_held_against_its_source(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run killed in between leaves an unfinished shard, which the next run writes and compares anew."""
    options, compared = ImportOptions(registers=4, shard_rows=16), list[int]()
    hold = importing._hold_against

    def killed_at_the_second(writer: StoreWriter, hashes: Any, record: Any) -> None:
        assert not writer.is_finished(record.shard)
        compared.append(record.shard)
        if compared == [0, 1]:
            raise KeyboardInterrupt
        hold(writer, hashes, record)

    monkeypatch.setattr(importing, "_hold_against", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        import_reference(source, tmp_path / "s.zarr", options)
    assert import_reference(source, tmp_path / "s.zarr", options).num_new == 34
    assert compared == [0, 1, 1, 2, 3]


def test_bytes_that_are_encoded_wrongly_are_found(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record has the hash of what was written: only reading it back tells that it is something else."""
    pack = shard_writing.pack_chunk

    def packed(values: Any, compression: Any) -> bytes:
        return pack(np.where(values == np.nanmax(values), np.float32(0), values), compression)

    with monkeypatch.context() as patch:
        patch.setattr(shard_writing, "pack_chunk", packed)
        with pytest.raises(CorruptStoreError, match=r"row \d+, layer 0, cls does not read back"):
            import_reference(source, tmp_path / "s.zarr", LAYOUT)
    assert not list((tmp_path / "s.zarr").glob("layer_*/*/c/*/0/0"))
    assert import_reference(source, tmp_path / "s.zarr", LAYOUT).num_new == 50


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
            {"shape": [1 << 40, 1 << 20, 9, 8], "chunks": [1, 1, 9, 8]},
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


def test_memory_is_a_shard_and_a_few_chunks(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that were read and not yet taken are at most as many as threads."""
    from activault.store import import_blocks

    alive = most = 0
    read = import_blocks._read_block

    def counted(*arguments: Any) -> Any:
        nonlocal alive, most
        alive += 1
        most = max(most, alive)
        return read(*arguments)

    def taking(*arguments: Any) -> Any:
        nonlocal alive
        for item in blocks(*arguments):
            alive -= 1
            yield item

    blocks = import_blocks.blocks
    monkeypatch.setattr(import_blocks, "_read_block", counted)
    monkeypatch.setattr(importing, "blocks", taking)
    import_reference(source, tmp_path / "s.zarr", LAYOUT)
    assert 0 < most <= import_blocks._MOST_THREADS
