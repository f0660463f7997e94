"""Imports that stop, go on, and hold what they wrote against their source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference_store import LAYOUT, random_values, write_reference

from activault.store import (
    CorruptStoreError,
    StoreMismatchError,
    StoreWriter,
    importing,
    open_store,
    shard_writing,
    verify_store,
)
from activault.store.importing import ImportOptions, import_reference


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_reference(tmp_path / "activations.zarr", random_values())


@pytest.mark.parametrize("name", ["layer_02/zarr.json", "layer_02/patches/zarr.json"])
def test_what_the_manifest_implies_is_made_again(source: Path, tmp_path: Path, name: str) -> None:
    store = tmp_path / "s.zarr"
    digest = import_reference(source, store, LAYOUT).digest
    (store / name).write_bytes(b"{}")
    report = verify_store(store)
    assert [fault.where for fault in report.faults] == [name]
    assert "of an imported store the same `activault import`" in report.faults[0].detail
    again = import_reference(source, store, LAYOUT)
    assert (again.num_new, again.digest) == (0, digest)
    assert verify_store(store, deep=True, complete=True).ok


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
    hold = importing.hold_against

    def killed_at_the_second(writer: StoreWriter, hashes: Any, record: Any) -> None:
        assert not writer.is_finished(record.shard)
        compared.append(record.shard)
        if compared == [0, 1]:
            raise KeyboardInterrupt
        hold(writer, hashes, record)

    monkeypatch.setattr(importing, "hold_against", killed_at_the_second)
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
