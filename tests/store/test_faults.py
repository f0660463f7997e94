"""Disks that are full, read-only, gone or forbidden: told clearly, nothing lost, and writers go on after."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from activault.store import StoreError, open_store, verify_store
from activault.store.locks import LOCK

from .conftest import MakePlan, Plan

SCRIPT = Path(__file__).parent / "write_store.py"
Mount = Callable[..., Path]


def run_mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if done.returncode:
        reason = f"nothing can be mounted here: {done.stderr.strip()}"
        if os.environ.get("CI") == "true" and os.geteuid() == 0:
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mounts something on a new folder until the test ends: `mount("-t", "tmpfs", "tmpfs")`."""
    made: list[Path] = []

    def make(*arguments: str) -> Path:
        folder = tmp_path / f"mount{len(made)}"
        folder.mkdir()
        run_mount(*arguments, str(folder))
        made.append(folder)
        return folder

    yield make
    for folder in made:
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


@pytest.fixture
def small_disk(mount: Mount) -> Mount:
    return lambda pages: mount("-t", "tmpfs", "-o", f"size={pages * 4}k", "tmpfs")


def used(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_blocks - found.f_bfree


def go_on(plan: Plan, written: Plan) -> None:
    assert verify_store(plan.path, deep=True).faults == ()
    store = plan.write()
    assert store.digest == open_store(written.path).digest
    assert not [file for file in plan.path.rglob(".*") if file.is_file() and file.name != LOCK]


@pytest.mark.mount
def test_a_full_disk(written: Plan, small_disk: Mount) -> None:
    """Room for the plan and two shards of 11 files, of a page each at least."""
    disk = small_disk(48)
    plan = Plan(disk / "a.zarr", written.manifest, written.bad_rows)
    with plan.open() as writer:
        plan.publish(writer, 0)
        plan.publish(writer, 1)
        before = used(disk)
        with pytest.raises(StoreError, match=r"a.zarr could not be written \(No space left .* free at least"):
            plan.publish(writer, 2)
        assert used(disk) <= before
        assert writer.unfinished == [2, 3]
    run_mount("-o", "remount,size=8m", str(disk))
    go_on(plan, written)


@pytest.mark.mount
def test_a_disk_that_is_full_while_planning(written: Plan, small_disk: Mount) -> None:
    disk = small_disk(4)
    plan = Plan(disk / "a.zarr", written.manifest, written.bad_rows)
    with pytest.raises(StoreError, match=r"could not be written \(No space left on device\); free at least"):
        plan.open()
    run_mount("-o", "remount,size=8m", str(disk))
    plan.open().close()
    go_on(plan, written)


@pytest.mark.mount
def test_a_read_only_disk(written: Plan, mount: Mount, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    disk = mount("--bind", str(tmp_path / "real"))
    plan = Plan(disk / "a.zarr", written.manifest, written.bad_rows)
    refused = pytest.raises(StoreError, match=r"\(Read-only file system\); choose a path that can be written")
    with plan.open() as writer:
        plan.publish(writer, 0)
        # The kernel makes no mount read-only that has a file open for writing, as the writer's lock is.
        subprocess.run(["umount", "-l", str(disk)], check=True)
        run_mount("--bind", str(tmp_path / "real"), str(disk))
        run_mount("-o", "remount,ro,bind", str(disk))
        assert writer.unfinished == [1, 2, 3]
        with refused:
            plan.publish(writer, 1)
        with refused:
            writer.claim(1)
    for path in (disk / "a.zarr", disk / "b.zarr"):
        with refused:
            Plan(path, written.manifest, written.bad_rows).open()
    run_mount("-o", "remount,rw,bind", str(disk))
    go_on(plan, written)


@pytest.mark.mount
def test_a_mount_that_vanishes(written: Plan, mount: Mount, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    disk = mount("--bind", str(tmp_path / "real"))
    plan = Plan(disk / "a.zarr", written.manifest, written.bad_rows)
    with plan.open() as writer:
        plan.publish(writer, 0)
        assert writer.claim(1)
        subprocess.run(["umount", "-l", str(disk)], check=True)
        for shard in (1, 2):
            with pytest.raises(
                StoreError, match=r"is not the folder any more that was opened .* bring it back"
            ):
                plan.publish(writer, shard)
    assert list(disk.iterdir()) == []
    run_mount("--bind", str(tmp_path / "real"), str(disk))
    go_on(plan, written)


def test_a_folder_that_was_replaced(plan: Plan) -> None:
    with plan.open() as writer:
        plan.path.rename(plan.path.with_name("moved.zarr"))
        shutil.copytree(plan.path.with_name("moved.zarr"), plan.path)
        with pytest.raises(StoreError, match="is not the folder any more that was opened"):
            plan.publish(writer, 0)
    assert open_store(plan.path).finished_rows.tolist() == []


def test_a_limit_of_a_files_size(plan: Plan, written: Plan) -> None:
    with plan.open() as writer:
        plan.publish(writer, 0)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            with pytest.raises(StoreError, match=r"\(File too large\); raise the limit of a file's size"):
                plan.publish(writer, 1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert writer.unfinished == [1, 2, 3]
    go_on(plan, written)


@pytest.mark.parametrize("folder", ["shards", "layer_02/patches/c", ""])
def test_a_folder_that_may_not_be_written(plan: Plan, written: Plan, folder: str) -> None:
    plan.write([0])
    # The right to write counts for root as well then.
    prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    (plan.path / folder).chmod(0o555)
    try:
        done = subprocess.run(
            [*prefix, sys.executable, str(SCRIPT), str(plan.path)], capture_output=True, text=True
        )
    finally:
        (plan.path / folder).chmod(0o755)
    said = f"{plan.path} could not be written (Permission denied); grant the right to write there"
    assert said in done.stderr
    go_on(plan, written)


def test_a_parent_that_may_not_be_written(make_plan: MakePlan, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o555)
    prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = [*prefix, sys.executable, str(SCRIPT), str(tmp_path / "mine" / "a.zarr")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "a.zarr could not be written (Permission denied); grant the right to write there" in done.stderr
    assert list((tmp_path / "mine").iterdir()) == []
