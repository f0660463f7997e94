"""Pulls over what an earlier pull left: mended without taking away what is sound, also by several at once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from activault.store import ConfigError, CorruptStoreError, StoreError, open_store, verify_store
from activault.store import copying as copying_module
from activault.store.copy_plan import CopyPlan
from activault.store.fetching import FileToFetch, Retries
from activault.store.marks import own, owned_shards
from activault.store.merging import merge
from activault.store.transfer import plan_pull, pull

from .conftest import MakePlan, Plan
from .test_pull import tree

AT_ONCE = Retries(times=0, first_s=0.0)
MISSING = "layer_04/cls/c/1/0/0"


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.fixture
def pulled(written: Plan, tmp_path: Path) -> Path:
    return pull(written.path, tmp_path / "b.zarr")


def lacking(pulled: Path) -> dict[str, bytes]:
    (pulled / MISSING).unlink()
    return tree(pulled)


def test_a_source_that_lacks_the_file_too_takes_nothing_away(
    written: Plan, pulled: Path, tmp_path: Path
) -> None:
    other = tmp_path / "c.zarr"
    shutil.copytree(written.path, other)
    (other / MISSING).unlink()
    before = lacking(pulled)
    with pytest.raises(CorruptStoreError, match=f"{MISSING} is missing in .*c.zarr; copy from another"):
        pull(other, pulled, retries=AT_ONCE)
    assert tree(pulled) == before
    assert owned_shards(pulled) == []
    with replace(written, path=pulled).open():  # a writer that collects leftovers leaves it alone too
        pass
    assert tree(pulled) == before
    assert open_store(pulled).read([16], [0]).shape[0] == 1


@pytest.mark.parametrize("record", ["there", "deleted", "flipped"])
def test_a_pull_that_is_killed_while_it_mends_takes_nothing_away(
    written: Plan, pulled: Path, monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    before = lacking(pulled)
    if record == "deleted":
        (pulled / "shards/00001.json").unlink()
    elif record == "flipped":
        flip(pulled / "shards/00001.json")
    code = (
        "import os, sys\n"
        "from activault.store import copying, pull\n"
        "fetch = copying.fetch_file\n"
        "def killed(file, *rest):\n"
        "    if 'layer' in file.path: os.kill(os.getpid(), 9)\n"
        "    fetch(file, *rest)\n"
        "copying.fetch_file = killed\n"
        "pull(*sys.argv[1:])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(written.path), str(pulled)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert open_store(pulled).read([16], [0]).shape[0] == 1
    with replace(written, path=pulled).open():
        pass
    assert tree(pulled) == before
    pull(written.path, pulled)
    assert tree(pulled) == tree(written.path)


def test_mending_leaves_record_and_index_as_they_are(written: Plan, pulled: Path) -> None:
    lacking(pulled)
    (pulled / "layer_00/zarr.json").unlink()
    flip(pulled / "layer_02/cls/zarr.json")
    stay = {file: file.stat().st_ino for file in (pulled / "index.parquet", pulled / "shards/00001.json")}
    pull(written.path, pulled)
    assert {file: file.stat().st_ino for file in stay} == stay
    assert tree(pulled) == tree(written.path)


def test_the_mark_of_a_killed_mending_goes_with_the_next_pull(written: Plan, pulled: Path) -> None:
    """It stayed beside the record, and made a record that was lost later look like one never made."""
    lacking(pulled)
    script = Path(__file__).parent / "pull_store.py"
    done = subprocess.run([sys.executable, str(script), str(written.path), str(pulled), "1"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert owned_shards(pulled) == [1]
    pull(written.path, pulled)
    assert owned_shards(pulled) == []
    for name in ("index.parquet", "shards/00001.json"):
        (pulled / name).unlink()
    assert verify_store(pulled, deep=True).lost_shards == (1,)


def test_the_mark_of_a_living_owner_stays(written: Plan, pulled: Path) -> None:
    mark = own(pulled, written.manifest, 1)
    pull(written.path, pulled)
    assert owned_shards(pulled) == [1]
    mark.discard()
    assert tree(pulled) == tree(written.path)


def test_marks_of_shards_that_the_source_lacks(make_plan: MakePlan, pulled: Path) -> None:
    """Beside a record it goes; without one it stays, with the files, for whoever goes on with them."""
    less = make_plan("less.zarr", bad_rows=(7, 20))
    less.write([0])
    for name in ("index.parquet", "shards/00002.json"):
        (pulled / name).unlink()
    for shard in (1, 2):
        (pulled / f"shards/.0000{shard}.json.tmp").touch()
    pull(less.path, pulled)
    assert owned_shards(pulled) == [2]
    assert (pulled / "layer_00/cls/c/2/0/0").exists()


ROTTEN = [
    *("layer_02/patches/c/3/0/0", "shards/00002.stats.safetensors", "shards/00000.json", "index.parquet"),
    *("samples.parquet", "teacher/model.safetensors", "layer_02/cls/zarr.json"),
]


@pytest.mark.parametrize("name", ROTTEN)
def test_a_deep_pull_mends_bytes_that_rotted(written: Plan, pulled: Path, name: str) -> None:
    before = {file: file.stat().st_ino for file in pulled.glob("layer_*/*/c/*/0/0")}
    flip(pulled / name)
    pull(written.path, pulled, deep=True)
    assert tree(pulled) == tree(written.path)
    after = {file: file.stat().st_ino for file in before}
    assert {file for file in before if after[file] != before[file]} <= {pulled / name}


def test_a_deep_pull_counts_every_byte(written: Plan, pulled: Path) -> None:
    told: list[tuple[int, int]] = []
    planned = plan_pull(written.path)
    planned.run(pulled, deep=True, progress=lambda *step: told.append(step))
    assert told[-1] == (planned.num_bytes, planned.num_bytes)


def test_what_another_pull_finished_meanwhile_is_kept(
    written: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "b.zarr"
    replace(written, path=path).open().close()
    first, second = plan_pull(written.path), plan_pull(written.path)
    original = copying_module.kept_shards

    def kept_shards(plan: CopyPlan, path: Path) -> dict[int, int]:
        found = original(plan, path)
        monkeypatch.setattr(copying_module, "kept_shards", original)
        first.run(path)
        monkeypatch.setattr(copying_module, "fetch_file", fetch)
        return found

    def fetch(file: FileToFetch, *_: object) -> None:
        assert file.path.startswith("teacher/"), "a finished shard is not fetched again"

    monkeypatch.setattr(copying_module, "kept_shards", kept_shards)
    told: list[tuple[int, int]] = []
    second.run(path, progress=lambda *step: told.append(step))
    assert tree(path) == tree(written.path)
    assert owned_shards(path) == []


def test_a_shard_that_another_process_has_is_come_back_to(
    written: Plan, pulled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying_module, "_BUSY_S", 0.01)
    for name in ("shards/00001.json", "shards/00002.json", "index.parquet"):
        (pulled / name).unlink()
    mark = own(pulled, written.manifest, 1)
    threading.Timer(0.5, mark.close).start()
    pull(written.path, pulled)
    assert not mark.is_open
    assert tree(pulled) == tree(written.path)


def test_several_pulls_into_one_folder(written: Plan, tmp_path: Path) -> None:
    path = tmp_path / "b.zarr"
    code = (
        "import sys, time\n"
        "from activault.store import copying, pull\n"
        "fetch = copying.fetch_file\n"
        "def slow(*arguments):\n"
        "    time.sleep(float(sys.argv[3]))\n"
        "    fetch(*arguments)\n"
        "copying.fetch_file = slow\n"
        "copying._BUSY_S = 0.01\n"
        "pull(*sys.argv[1:3], num_threads=2)\n"
    )
    commands = [
        [sys.executable, "-c", code, str(written.path), str(path), wait] for wait in ("0.02", "0.005", "0.03")
    ]
    running = [
        subprocess.Popen(each, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        for each in commands
    ]
    assert [each.communicate()[1] for each in running] == [""] * 3
    assert [each.returncode for each in running] == [0] * 3
    assert tree(path) == tree(written.path)
    assert verify_store(path, deep=True, complete=True).faults == ()


def test_a_copy_that_is_moved_away_is_not_begun_anew_at_its_old_place(
    written: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, moved = tmp_path / "b.zarr", tmp_path / "moved.zarr"
    original = copying_module.fetch_file

    def fetch(file: FileToFetch, *rest: object) -> None:
        original(file, *rest)  # type: ignore[arg-type]
        if file.path == "layer_02/cls/c/0/0/0":
            path.rename(moved)

    monkeypatch.setattr(copying_module, "fetch_file", fetch)
    with pytest.raises(StoreError, match=r"b.zarr is not the folder any more that was opened .*moved"):
        pull(written.path, path, num_threads=1)
    assert not path.exists()
    monkeypatch.setattr(copying_module, "fetch_file", original)
    pull(written.path, moved)
    assert tree(moved) == tree(written.path)


WITHIN = ["a.zarr", "link.zarr", "link.zarr/copy.zarr", "a.zarr/../a.zarr/teacher", "."]


@pytest.mark.parametrize("name", WITHIN)
def test_a_copy_onto_its_source_is_refused(copy: Path, tmp_path: Path, name: str) -> None:
    there = tmp_path / "there"
    there.mkdir()
    copy.rename(there / "a.zarr")
    (there / "link.zarr").symlink_to(there / "a.zarr")
    (there / "a.zarr" / MISSING).unlink()
    before = tree(there)
    with pytest.raises(ConfigError, match=r"a copy lies outside its source; got .*; choose another path"):
        pull(there / "a.zarr", there / name)
    with pytest.raises(ConfigError, match="a copy lies outside its source"):
        merge([there / "a.zarr", there / "a.zarr"], there / name)
    assert tree(there) == before


def test_a_destination_that_is_none(written: Plan, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"got an empty name; for this folder, give \."):
        pull(written.path, "")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"link is a link to .*nothing, where nothing is; make a folder"):
        pull(written.path, tmp_path / "link")
    (tmp_path / "nothing").mkdir()
    pull(written.path, tmp_path / "link")
    assert tree(tmp_path / "nothing") == tree(written.path)
