"""A reference-layout array becomes a store: every value and every hole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reference_store import LAYOUT, Float32, random_values, write_reference

from activault.store import (
    ConfigError,
    ImageSourceError,
    open_store,
    verify_store,
)
from activault.store.importing import ImportOptions, import_reference


@pytest.fixture
def values() -> Float32:
    return random_values()


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
