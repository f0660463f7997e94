"""A join that is cut short at every one of its steps: the store is the old one, the grown one, or says so."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from activault.store import ActivaultError, NotAStoreError, TokenLayout, open_store, verify_store
from activault.store.growing import GROWING, JOINING
from activault.store.growing_join import finish_join, join_growth

from .conftest import MakePlan, Plan
from .grown import write_part

SMALL = {
    "layers": (0,),
    "kinds": ("cls", "patches"),
    "layout": TokenLayout(num_cls=1, num_registers=0, grid=(1, 2)),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
STEPS = ("replace", "rename", "link", "unlink", "rmdir", "mkdir")


class Killed(BaseException):
    """What no code catches."""


@contextmanager
def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Let `step` changes of folders happen and none after them; gives how many there were."""
    done = 0

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            if done >= step:
                raise Killed
            done += 1
            return change(*arguments, **options)

        return changed

    with monkeypatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, counted(getattr(os, name)))
        yield lambda: done


@cache
def digest_of(path: Path) -> str:
    """Of a store that stays as it is."""
    return open_store(path).digest


def assert_no_lie(path: Path, old: Plan, grown: Plan) -> str:
    """The store is the old or the grown one, or it tells what to do; returns which."""
    if not (path / "zarr.json").exists():
        with pytest.raises(
            NotAStoreError, match=r"run the same `activault extract \.\.\. --append` or `--ext"
        ):
            open_store(path)
        assert (path / JOINING).exists()
        return "joining"
    store = open_store(path)
    is_old = store.digest == digest_of(old.path)
    plan = old if is_old else grown
    assert store.digest == digest_of(plan.path)
    kept = slice(0, sum(store.layout.count(kind) for kind in store.kinds))
    assert np.array_equal(store.read(slice(None), store.layers), plan.stored[:, :, kept], equal_nan=True)
    assert verify_store(path, complete=True).faults == ()
    return "old" if is_old else "grown"


def rows(make_plan: MakePlan) -> tuple[Plan, Plan]:
    old = make_plan("old.zarr", num_rows=18, bad_rows=(17,), **SMALL)
    old.write()
    grown = make_plan("grown.zarr", num_rows=34, bad_rows=(17, 20), **SMALL)
    grown.write()
    return old, grown


def kinds(make_plan: MakePlan) -> tuple[Plan, Plan]:
    grown = make_plan("grown.zarr", num_rows=18, bad_rows=(17,), **SMALL)
    grown.write()
    old = make_plan("old.zarr", num_rows=18, bad_rows=(17,), **(SMALL | {"kinds": ("cls",)}))
    old.values = grown.values
    old.write()
    return old, grown


@pytest.mark.parametrize("pair", [rows, kinds], ids=["rows", "kinds"])
def test_cut_at_every_step(
    make_plan: MakePlan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pair: Callable[..., tuple[Plan, Plan]],
) -> None:
    old, grown = pair(make_plan)
    ready = shutil.copytree(old.path, tmp_path / "ready.zarr")
    write_part(ready, grown)
    seen, step = list[str](), -1
    while True:
        step += (
            5 if seen[-2:] == ["grown", "grown"] else 1
        )  # what is left then is to remove what is left over
        path = shutil.copytree(ready, tmp_path / "cut.zarr")
        with killed_at(step, monkeypatch) as done:
            try:
                join_growth(path)
            except Killed:
                pass
            else:
                break
            assert done() == step
        seen.append(assert_no_lie(path, old, grown))
        if (path / JOINING).exists() and step % 3:  # by whoever opens it for writing, or by the same command
            assert finish_join(path)
        else:
            join_growth(path)
        assert open_store(path).digest == digest_of(grown.path)
        assert not [name for name in (GROWING, JOINING) if (path / name).exists()]
        assert not [file for file in path.rglob("*") if file.name.endswith(".tmp")]
        shutil.rmtree(path)
    assert seen == sorted(seen, key=["old", "joining", "grown"].index)
    assert {"old", "joining", "grown"} == set(seen)


def test_a_join_cut_short_twice(make_plan: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, grown = rows(make_plan)
    path = shutil.copytree(old.path, tmp_path / "cut.zarr")
    write_part(path, grown)
    num_cuts = 0
    while open_store_or_none(path) != digest_of(grown.path):
        with killed_at(7, monkeypatch):
            try:
                join_growth(path)
            except Killed:
                num_cuts += 1
        if not (
            path / JOINING
        ).exists():  # the metadata are gathered anew each time, in more steps than these
            join_growth_to_its_renames(path, monkeypatch)
    assert num_cuts > 2
    finish_join(path)
    assert assert_no_lie(path, old, grown) == "grown"


def open_store_or_none(path: Path) -> str | None:
    try:
        return open_store(path).digest
    except NotAStoreError:
        return None


def join_growth_to_its_renames(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from activault.store import growing_join

    def stop(_: Path) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(growing_join, "_finish", stop)
        with pytest.raises(Killed):
            join_growth(path)


def killed_join(path: Path, renames: int) -> None:
    """In a child: join, and die at the rename after so many."""
    replace, left = os.replace, [renames]

    def counted(*names: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*names)

    os.replace = counted
    join_growth(path)


@pytest.mark.parametrize(
    ("step", "place", "state"),
    [(3, GROWING, "old"), (11, JOINING, "old"), (15, JOINING, "joining")],
    ids=["gathering", "first renames", "last renames"],
)
def test_killed(make_plan: MakePlan, tmp_path: Path, step: int, place: str, state: str) -> None:
    old, grown = rows(make_plan)
    path = shutil.copytree(old.path, tmp_path / "killed.zarr")
    write_part(path, grown)
    child = multiprocessing.get_context("fork").Process(target=killed_join, args=(path, step))
    child.start()
    child.join(100)
    assert child.exitcode == -signal.SIGKILL
    assert (path / place).exists()
    assert assert_no_lie(path, old, grown) == state
    assert join_growth(path)
    assert assert_no_lie(path, old, grown) == "grown"


def test_a_join_that_fails_for_good_says_why(
    make_plan: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, grown = rows(make_plan)
    path = shutil.copytree(old.path, tmp_path / "full.zarr")
    write_part(path, grown)
    replace = os.replace

    def refused(source: Path, target: Path) -> None:
        if "index.parquet" in str(target) and JOINING in str(source):
            raise OSError(30, "Read-only file system")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refused)
        with pytest.raises(ActivaultError, match="Read-only file system"):
            join_growth(path)
    assert assert_no_lie(path, old, grown) == "joining"
    assert finish_join(path)
    assert assert_no_lie(path, old, grown) == "grown"
