"""Several workers on one store, here threads that know nothing of one another: start, end, and faults."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from activault.extract import others as others_module
from activault.extract import planning
from activault.extract.budget import ErrorBudget, parse_budget
from activault.extract.others import Others
from activault.extract.run import ExtractOptions, ExtractSummary, extract
from activault.store import (
    ImageSourceError,
    NonFiniteError,
    StorageError,
    StoreMismatchError,
    open_store,
    verify_store,
)
from activault.store import creation as creation_module
from activault.store import writer as writer_module
from activault.store.leases import Heartbeat
from activault.store.locks import LOCK, locked_by_one
from activault.store.storage import Folder
from activault.store.writer import StoreWriter

from .conftest import MakeFolder, changed


def at_once(works: list[Callable[[], ExtractSummary]]) -> list[ExtractSummary]:
    """All of them, begun at the same moment."""
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], ExtractSummary]) -> ExtractSummary:
        barrier.wait(30)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(run, works))


def assert_tidy(store: Path) -> None:
    assert verify_store(store, values=True).faults == ()
    assert [path for path in store.rglob(".*") if path.name != LOCK] == []


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_workers_that_begin_at_once_make_one_store(
    make_folder: MakeFolder,
    tmp_path: Path,
    options: ExtractOptions,
    monkeypatch: pytest.MonkeyPatch,
    dtype: Any,
) -> None:
    """One plans, the others join; all end with the same store and each with its own share of the rows."""
    folder, options = make_folder(50), changed(options, dtype=dtype)
    plans = list[Path]()
    original = creation_module._plan

    def counted(path: Path, *arguments: Any) -> Any:
        plans.append(path)
        return original(path, *arguments)

    monkeypatch.setattr(creation_module, "_plan", counted)
    monkeypatch.setattr(writer_module, "_WAIT", 0.02)
    store = tmp_path / "s.zarr"
    ranks = [changed(options, rank=rank, world=3) for rank in range(3)]
    found = at_once([lambda options=options: extract(folder, store, options) for options in ranks])  # type: ignore[misc]
    assert plans == [store]
    alone = extract(folder, tmp_path / "alone.zarr", options)
    assert {summary.digest for summary in found} == {alone.digest}
    assert sum(summary.num_new for summary in found) == 50
    assert_tidy(store)
    late = extract(folder, store, options)
    assert (late.digest, late.num_new) == (alone.digest, 0)


def test_a_worker_on_a_smaller_machine_joins_with_the_grid_that_was_planned(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have planned smaller shards, and finds the store planned when it comes to write its own."""
    folder, store = make_folder(20), tmp_path / "s.zarr"
    options = changed(options, shard_rows=None)
    original, asked = planning.plan_manifest, list[int]()
    from activault.extract import run

    def planned(*arguments: Any, **named: Any) -> Any:
        manifest = original(*arguments, **named)
        asked.append(manifest.shard_rows)
        if len(asked) == 1:
            monkeypatch.setattr(run, "plan_manifest", original)
            extract(folder, store, changed(options, shard_rows=4))
            monkeypatch.setattr(run, "plan_manifest", planned)
        return manifest

    monkeypatch.setattr(run, "plan_manifest", planned)
    summary = extract(folder, store, options)
    assert asked[1:] == [4]
    assert summary.digest == open_store(store).digest
    with pytest.raises(StoreMismatchError, match="shard_rows"):
        extract(folder, store, changed(options, shard_rows=8))


def test_a_store_that_another_plans_is_waited_for(
    make_folder: MakeFolder,
    tmp_path: Path,
    options: ExtractOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here by one that dies half-way: it is taken over, by one."""
    folder, store = make_folder(10), tmp_path / "s.zarr"
    (store / "teacher").mkdir(parents=True)
    (store / ".planning").write_text("by one that is about to die")
    monkeypatch.setattr(creation_module, "TOLD_AFTER", 0.1)
    held, go_on, told = threading.Event(), threading.Event(), list[str]()

    def plan() -> None:
        with locked_by_one(store):
            held.set()
            assert go_on.wait(60)

    def warning(said: str) -> None:
        told.append(said)
        go_on.set()

    monkeypatch.setattr(creation_module._log, "warning", warning)
    thread = threading.Thread(target=plan)
    thread.start()
    assert held.wait(10)
    assert extract(folder, store, options).num_new == 10
    thread.join()
    (said,) = told
    assert said.startswith(f"waiting for another process at work in {store}; should that be stopped, end it")
    assert_tidy(store)


def test_a_worker_that_was_stopped_goes_on_to_other_shards(
    make_folder: MakeFolder,
    tmp_path: Path,
    options: ExtractOptions,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It sleeps as it is about to publish its first shard, without a sign of life, until all is done."""
    folder, store = make_folder(40), tmp_path / "s.zarr"
    options = changed(options, lease=1.0)
    asleep, wake = threading.Event(), threading.Event()
    sleeper, original, add = list[StoreWriter](), StoreWriter.publish, Heartbeat.add
    first = list[Heartbeat]()

    def publish(self: StoreWriter, *arguments: Any) -> Any:
        if not sleeper:
            sleeper.append(self)
            asleep.set()
            assert wake.wait(60)
        return original(self, *arguments)

    def renewed(self: Heartbeat, mark: Any) -> None:
        if not first:
            first.append(self)
        if self is not first[0] or wake.is_set():  # whoever began first is stopped, what it claims later too
            add(self, mark)

    monkeypatch.setattr(StoreWriter, "publish", publish)
    monkeypatch.setattr(Heartbeat, "add", renewed)
    monkeypatch.setattr(writer_module, "_WAIT", 0.05)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(extract, folder, store, options)
        assert asleep.wait(60)
        summary = extract(folder, store, options)
        wake.set()
        assert late.result(60).digest == summary.digest
    assert summary.num_new == 40
    assert [said for said in caplog.messages if "shard 0 of" in said and "was taken over by" in said]
    assert_tidy(store)


def test_a_teacher_that_gives_nan_stops_every_worker_with_the_same_error(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    tensors = load_file(str(options.weights))
    tensors["blocks.3.mlp.fc1.weight"][0, 0] = torch.nan
    save_file(tensors, tmp_path / "nan.safetensors")
    options = changed(options, weights=tmp_path / "nan.safetensors")
    for _ in range(2):  # one after the other: the second finds the shard given up
        with pytest.raises(NonFiniteError, match="layer 6"):
            extract(make_folder(20), tmp_path / "s.zarr", options)
        assert not list((tmp_path / "s.zarr" / "shards").glob(".*.tmp"))


def test_bad_images_of_other_workers_count(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the images are bad, and are found by another worker while this one is at work."""
    folder, store, elsewhere = make_folder(48), tmp_path / "s.zarr", tmp_path / "other.zarr"
    for file in sorted(folder.rglob("*.png"))[::2]:
        file.write_bytes(b"")
    lax = changed(options, max_bad="100%", batch_size=2)
    extract(folder, elsewhere, lax)
    monkeypatch.setattr(others_module, "_INTERVAL", 0.0)
    told = list[int]()

    def other(done: int, total: int) -> None:
        """Publishes the last shards, as soon as this worker has begun."""
        told.append(done)
        if len(told) == 1:
            for file in [*elsewhere.glob("layer_*/*/c/[345]/0/0"), *elsewhere.glob("shards/0000[345].*")]:
                target = store / file.relative_to(elsewhere)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)

    with pytest.raises(ImageSourceError, match="images are bad, and max_bad allows 10") as raised:
        extract(folder, store, changed(lax, max_bad="10", workers=1), progress=other)
    assert told[0] < 16
    assert "in shards that were finished before" not in str(raised.value)
    assert not list((store / "shards").glob(".*.tmp"))


def away(*_: object) -> None:
    raise StorageError("the mount is gone")


def test_progress_is_of_all_workers(
    make_folder: MakeFolder,
    tmp_path: Path,
    options: ExtractOptions,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder, store = make_folder(20), tmp_path / "s.zarr"
    extract(folder, store, options)
    (store / "index.parquet").unlink()
    hidden = {shard: (store / f"shards/{shard:05d}.json") for shard in (1, 2)}
    texts = {shard: file.read_bytes() for shard, file in hidden.items()}
    for file in hidden.values():
        file.unlink()
    budget, told = ErrorBudget(parse_budget("5%", 20), str, 0, ()), list[tuple[int, int]]()
    others = Others(open_store(store), store, budget, lambda done, total: told.append((done, total)))
    others(9, 20)
    hidden[2].write_bytes(texts[2])
    others.look()
    others(10, 20)
    hidden[1].write_bytes(b"{}")  # damaged: no row of it counts
    others.look()
    monkeypatch.setattr(Folder, "names", away)
    for _ in range(2):  # told once; the next look may see again
        others.look()
    assert caplog.text.count("cannot be seen now: the mount is gone") == 1
    others(14, 20)
    assert told == [(9, 20), (12, 20), (14, 20)]
