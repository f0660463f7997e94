"""Records that the index alone has are never lost: who removes it, or opens the store, writes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from activault.store import StoreError, create_store, open_store, verify_store
from activault.store.marks import begin_again
from activault.store.repair import rebuild
from activault.store.repair_plan import plan_repair
from activault.store.restoring import index_in_hand, restore_records

from .conftest import Plan, write_teacher


def records(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (path / "shards").glob("*.json")}


def spoil(file: Path) -> None:
    file.write_bytes(b"{}")


@pytest.fixture
def there(written: Plan) -> dict[str, bytes]:
    return records(written.path)


def reopened(path: Path, written: Plan) -> Plan:
    return Plan(path, written.manifest, written.bad_rows)


@pytest.mark.parametrize("harm", [Path.unlink, spoil], ids=["missing", "spoilt"])
def test_a_writer_that_opens_the_store_restores_them(
    copy: Path, written: Plan, there: dict[str, bytes], harm: Callable[[Path], object]
) -> None:
    for name in there:
        harm(copy / "shards" / name)
    with reopened(copy, written).open() as writer:
        assert writer.unfinished == []
        writer.complete()
    assert records(copy) == there
    assert verify_store(copy, deep=True, complete=True).ok


def test_a_shard_is_written_again_and_the_others_keep_their_records(
    copy: Path, written: Plan, there: dict[str, bytes]
) -> None:
    plan = reopened(copy, written)
    with plan.open() as writer:
        for name in there:
            (copy / "shards" / name).unlink()
        plan.publish(writer, 0)
        assert not (copy / "index.parquet").exists()
        assert records(copy) == there
        writer.complete()
    assert verify_store(copy, deep=True, complete=True).ok


def test_a_shard_that_begins_again_is_not_restored(copy: Path, there: dict[str, bytes]) -> None:
    for name in there:
        (copy / "shards" / name).unlink()
    begin_again(copy, [2])
    assert sorted(records(copy)) == ["00000.json", "00001.json", "00003.json"]


def test_files_of_a_shard_whose_record_only_the_index_has_outlive_a_leftover_mark(
    copy: Path, written: Plan, there: dict[str, bytes]
) -> None:
    (copy / "shards/00001.json").rename(copy / "shards/.00001.json.tmp")
    with reopened(copy, written).open() as writer:
        assert writer.unfinished == []
    assert records(copy) == there
    assert not (copy / "shards/.00001.json.tmp").exists()


def test_an_old_plan_loses_no_record(copy: Path, written: Plan, there: dict[str, bytes]) -> None:
    (copy / "layer_00/cls/c/0/0/0").unlink()
    plan = plan_repair(verify_store(copy, deep=True))
    for name in there:
        (copy / "shards" / name).unlink()
    rebuild(copy, plan)
    assert records(copy) == there
    assert open_store(copy).complete, "which goes when a shard is begun again, and not before"


@pytest.mark.parametrize("content", [None, b"", b"x" * 999], ids=["none", "empty", "garbage"])
def test_an_index_that_cannot_be_believed_restores_nothing(copy: Path, content: bytes | None) -> None:
    (copy / "index.parquet").unlink()
    if content is not None:
        (copy / "index.parquet").write_bytes(content)
    (copy / "shards/00001.json").unlink()
    assert restore_records(copy) == []
    begin_again(copy, [])
    assert not (copy / "index.parquet").exists()
    assert "00001.json" not in records(copy)


def test_a_valid_record_is_kept_whatever_the_index_says(copy: Path) -> None:
    assert restore_records(copy) == []
    (copy / "shards/00003.json").unlink()
    assert restore_records(copy) == [3]


def test_killed_while_restoring_the_rest_is_restored(
    copy: Path, there: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    from activault.store import restoring

    for name in there:
        (copy / "shards" / name).unlink()
    write, left = restoring.atomic_write, [0, 1]

    def killed(path: Path, data: bytes) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        write(path, data)

    monkeypatch.setattr(restoring, "atomic_write", killed)
    with pytest.raises(KeyboardInterrupt):
        begin_again(copy, [3])
    assert (copy / "index.parquet").exists(), "it goes last"
    monkeypatch.setattr(restoring, "atomic_write", write)
    begin_again(copy, [3])
    assert sorted(records(copy)) == ["00000.json", "00001.json", "00002.json"]


def test_nobody_removes_the_index_while_another_restores(copy: Path) -> None:
    with index_in_hand(copy):
        other = threading.Thread(target=begin_again, args=(copy, [0]))
        other.start()
        time.sleep(0.2)
        assert (copy / "index.parquet").exists()
        assert (copy / "shards/00000.json").exists()
    other.join()
    assert not (copy / "index.parquet").exists()


def test_a_writer_of_another_plan_restores_nothing(copy: Path, make_plan: Callable[..., Plan]) -> None:
    (copy / "shards/00000.json").unlink()
    other = make_plan(row_seed=9)
    with pytest.raises(Exception, match="row_seed is 0 there and 9 here"):
        create_store(copy, other.manifest, other.samples, write_teacher)
    assert not (copy / "shards/00000.json").exists()


def test_a_writer_that_cannot_restore_removes_no_file(
    copy: Path, written: Plan, there: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    from activault.store import restoring

    plan = reopened(copy, written)
    with plan.open() as writer:
        for name in there:
            (copy / "shards" / name).unlink()

        def full(path: Path, data: bytes) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(restoring, "atomic_write", full)
            with pytest.raises(StoreError, match="No space left"):
                plan.publish(writer, 0)
    assert open_store(copy).complete
    assert restore_records(copy) == [0, 1, 2, 3]
    assert verify_store(copy, deep=True, complete=True).ok
