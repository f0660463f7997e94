"""Damage, a plan, `repair`: the store is what it was, and only what the plan names was computed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from activault.extract import mending, repair
from activault.extract import run as module
from activault.extract.run import ExtractOptions, extract
from activault.store import NotAStoreError, StoreMismatchError, open_store, verify_store
from activault.store.repair_plan import plan_repair

from .conftest import MakeFolder, changed


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


DAMAGE: dict[str, tuple[list[str], int]] = {
    "array": (["layer_06/patches/c/1/0/0"], 8),
    "short last shard": (["layer_00/cls/c/2/0/0"], 4),
    "statistics": (["shards/00000.stats.safetensors"], 8),
    "record": (["shards/00001.json"], 0),
    "metadata": (["layer_00/zarr.json", "layer_06/patches/zarr.json"], 0),
    "tables": (["samples.parquet", "index.parquet"], 0),
    "much": (["samples.parquet", "shards/00000.json", "layer_06/patches/c/1/0/0", "layer_06/zarr.json"], 8),
    "index and records": (["index.parquet", "shards/00000.json", "shards/00002.json"], 12),
}


@pytest.mark.parametrize("harm", [Path.unlink, flip], ids=["deleted", "flipped"])
@pytest.mark.parametrize(("names", "num_rows"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_store_is_made_what_it_was(
    make_folder: MakeFolder,
    tmp_path: Path,
    options: ExtractOptions,
    names: list[str],
    num_rows: int,
    harm: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, path = make_folder(20), tmp_path / "s.zarr"
    first = extract(folder, path, options)
    before = {file: file.stat().st_mtime_ns for file in path.glob("layer_*/*/c/*/0/0")}
    for name in names:
        harm(path / name)
    plan = plan_repair(verify_store(path, deep=True))
    assert plan.num_rows == num_rows
    if not num_rows:
        monkeypatch.setattr(module, "load_backbone", lambda *_, **__: pytest.fail("a teacher was loaded"))
    done = repair(folder, path, options, plan)
    assert (done.num_new, done.digest) == (num_rows, first.digest)
    assert verify_store(path, deep=True, complete=True).ok
    assert open_store(path).samples["status"].to_pylist() == ["ok"] * 20
    changed_files = [file for file, time in before.items() if file.stat().st_mtime_ns != time]
    assert len({file.parts[-3] for file in changed_files}) == -(-num_rows // 8)


def test_shards_that_were_never_finished_are_left_alone(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    folder, path = make_folder(20), tmp_path / "s.zarr"
    first = extract(folder, path, options)
    (path / "index.parquet").unlink()
    shutil.rmtree(path / "shards")  # all records are lost, and two shards are gone altogether
    (path / "shards").mkdir()
    for file in path.glob("layer_*/*/c/[02]/0/0"):
        file.unlink()
    report = verify_store(path)
    assert (report.state, report.lost_shards) == ("lost records", (1,))
    assert repair(folder, path, options, plan_repair(report)).num_new == 8
    report = verify_store(path, deep=True)
    assert (report.ok, report.finished_shards, report.complete) == (True, 1, False)
    assert extract(folder, path, options).digest == first.digest


def test_a_repair_that_was_interrupted_goes_on(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    folder, path = make_folder(40), tmp_path / "s.zarr"
    first = extract(folder, path, options)
    for file in sorted(path.glob("layer_06/patches/c/*/0/0")):
        flip(file)
    plan = plan_repair(verify_store(path, deep=True))
    assert plan.num_rows == 40

    def interrupt(done: int, _: int) -> None:
        if done >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repair(folder, path, options, plan, progress=interrupt)
    again = repair(folder, path, options, plan)
    assert again.digest == first.digest
    assert 0 < again.num_new < 40
    assert repair(folder, path, options, plan).num_new == 0


def test_a_plan_of_another_store_and_other_requests_are_refused(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    folder = make_folder(9)
    extract(folder, tmp_path / "a.zarr", options)
    digest = extract(folder, tmp_path / "b.zarr", changed(options, seed=1)).digest
    flip(tmp_path / "a.zarr" / "layer_06/patches/c/0/0/0")
    plan = plan_repair(verify_store(tmp_path / "a.zarr", deep=True))
    with pytest.raises(StoreMismatchError, match="the plan is of another store"):
        repair(folder, tmp_path / "b.zarr", changed(options, seed=1), plan)
    with pytest.raises(StoreMismatchError, match="seed is 0 there and 1 here"):
        repair(folder, tmp_path / "a.zarr", changed(options, seed=1), plan)
    assert open_store(tmp_path / "b.zarr").digest == digest
    assert (tmp_path / "a.zarr" / "shards" / "00000.json").exists(), (
        "nothing is forgotten before all is known"
    )


@pytest.mark.parametrize(
    "other",
    [{"layers": "0,3"}, {"seed": 3}, {"limit": 5}, {"dtype": "float16"}],
    ids=lambda other: str(*other),
)
def test_a_refused_request_leaves_the_store_complete(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions, other: dict[str, object]
) -> None:
    folder, path = make_folder(20), tmp_path / "s.zarr"
    extract(folder, path, options)
    (path / "layer_06/cls/c/1/0/0").unlink()
    (path / "layer_06/zarr.json").unlink()
    plan = plan_repair(verify_store(path, deep=True))
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    with pytest.raises(StoreMismatchError, match="was planned differently"):
        repair(folder, path, changed(options, **other), plan)
    with pytest.raises(StoreMismatchError, match="was planned"):
        repair(make_folder(20, "other"), path, options, plan)
    assert before == {file: file.stat().st_mtime_ns for file in path.rglob("*")}


def test_an_old_plan_and_lost_records(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    folder, path = make_folder(20), tmp_path / "s.zarr"
    first = extract(folder, path, options)
    (path / "layer_06/cls/c/1/0/0").unlink()
    plan = plan_repair(verify_store(path, deep=True))
    for record in (path / "shards").glob("*.json"):
        record.unlink()
    done = repair(folder, path, options, plan)
    assert (done.num_new, done.digest) == (8, first.digest)
    assert verify_store(path, deep=True, complete=True).ok


def test_a_plan_for_a_store_that_is_gone_makes_none(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    folder, path = make_folder(9), tmp_path / "s.zarr"
    extract(folder, path, options)
    (path / "layer_06/cls/c/0/0/0").unlink()
    plan = plan_repair(verify_store(path))
    shutil.rmtree(path)
    with pytest.raises(NotAStoreError, match="does not exist"):
        repair(folder, path, options, plan)
    assert not path.exists()


def test_tables_of_other_images_are_not_written(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    folder, path = make_folder(9), tmp_path / "s.zarr"
    extract(folder, path, options)
    (path / "index.parquet").write_bytes(b"")
    plan = plan_repair(verify_store(path))
    with pytest.raises(StoreMismatchError, match="was planned from other images"):
        repair(make_folder(9, "other"), path, options, plan)
    assert mending.repair is repair
