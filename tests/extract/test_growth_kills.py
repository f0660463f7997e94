"""Additions that are killed, and additions by several at once, end as one that nobody disturbed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from activault.extract.growth import append
from activault.extract.run import ExtractOptions, extract
from activault.store import NotAStoreError, StoreMismatchError, open_store, verify_store
from activault.store.growing import GROWING, JOINING

from .conftest import MakeFolder, changed

PROGRAM = """
    import os, signal, sys, time
    from pathlib import Path
    import torch
    torch.set_num_threads(1)
    from activault.extract import append
    from activault.store import open_store, verify_store

    images, store = map(Path, sys.argv[1:3])

    def killed(row, renames):
        # In a child: what takes long is to import torch.
        child = os.fork()
        if child:
            return os.WTERMSIG(os.waitpid(child, 0)[1])
        replace, left = os.replace, [renames]

        def progress(done, total):
            if done >= row:
                while not (store / ".growing/shards/00001.json").exists():
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)

        def renamed(source, target):
            left[0] -= ".joining" in str(source)
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)

        os.replace = renamed
        append(images, store, progress, batch_size=1, workers=2, device="cpu")
        os._exit(0)

    print(killed(20, 99), (store / ".growing").exists(), open_store(store).digest,
          verify_store(store, deep=True, complete=True).ok)
    print(killed(99, 11), (store / ".joining").exists())
"""


@pytest.fixture
def old(make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions) -> tuple[Path, Path]:
    """A folder that got more images, and the finished store of those that it had."""
    folder, path = make_folder(12), tmp_path / "old.zarr"
    extract(folder, path, changed(options, batch_size=1, tokens="cls,patches"))
    make_folder(30)
    return folder, path


def test_killed_while_it_computes_and_while_it_joins(old: tuple[Path, Path], tmp_path: Path) -> None:
    folder, path = old
    digest, undisturbed = open_store(path).digest, shutil.copytree(path, tmp_path / "undisturbed.zarr")
    wanted = append(folder, undisturbed, batch_size=1, device="cpu").store.digest
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(folder), str(path)]
    done = subprocess.run(program, check=True, capture_output=True, text=True, timeout=300)
    kill = int(signal.SIGKILL)
    assert done.stdout.splitlines() == [f"{kill} True {digest} True", f"{kill} True"]
    with pytest.raises(
        NotAStoreError, match=r"is being joined with what was added to it.* or that was cut short"
    ):
        open_store(path)
    grown = append(folder, path, batch_size=1, device="cpu")
    assert (grown.store.digest, grown.num_appended, grown.num_known) == (wanted, 0, 30)
    assert verify_store(path, values=True, complete=True).faults == ()
    assert not [name for name in (GROWING, JOINING) if (path / name).exists()]


def test_the_plain_command_finishes_a_join_before_it_looks(
    old: tuple[Path, Path], options: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, path = old
    replace = os.replace

    def stopped(source: Path, target: Path) -> None:
        if JOINING in str(source) and "samples" in str(target):
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stopped)
        with pytest.raises(KeyboardInterrupt):
            append(folder, path, batch_size=1, device="cpu")
    with pytest.raises(StoreMismatchError, match="rows that came to it later"):
        extract(folder, path, changed(options, batch_size=1, tokens="cls,patches"))
    assert open_store(path).num_rows == 30


def test_several_workers_add_together(old: tuple[Path, Path], tmp_path: Path) -> None:
    folder, path = old
    undisturbed = shutil.copytree(path, tmp_path / "undisturbed.zarr")
    wanted = append(folder, undisturbed, batch_size=1, device="cpu").store.digest
    start = Barrier(3)

    def work(rank: int) -> tuple[str, int]:
        start.wait()
        grown = append(folder, path, batch_size=1, device="cpu", workers=1, rank=rank, world=3)
        return grown.store.digest, grown.store.num_new

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(work, range(3)))
    assert {digest for digest, _ in found} == {wanted}
    assert sum(rows for _, rows in found) == 18
    assert verify_store(path, values=True, complete=True).faults == ()
