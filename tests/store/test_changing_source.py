"""A source that is moved, deleted or replaced while it is copied is told from one that is damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from activault.store import CorruptStoreError
from activault.store import copying as copying_module
from activault.store.fetching import FileToFetch
from activault.store.transfer import pull

from .conftest import MakePlan, Plan, make_manifest
from .test_pull import AT_ONCE, tree


def replace_store(source: Path, other: Plan) -> None:
    shutil.rmtree(source)
    shutil.copytree(other.path, source)


def replace_by_twin(source: Path, other: Plan) -> None:
    """By a store of the same plan: its `zarr.json` is the same."""
    twin = Plan(source.with_name("twin.zarr"), make_manifest(), other.bad_rows)
    twin.write()
    replace_store(source, twin)


CHANGED: dict[str, tuple[Callable[[Path, Plan], object], str]] = {
    "deleted": (lambda source, _: shutil.rmtree(source), "its zarr.json is gone"),
    "moved": (lambda source, _: source.rename(source.with_name("moved.zarr")), "its zarr.json is gone"),
    "replaced": (replace_store, "its zarr.json is another one now"),
    "replaced by one of its plan": (replace_by_twin, "its index.parquet is another one now"),
    "its files taken": (lambda source, _: shutil.rmtree(source / "layer_04"), "missing in .*if it changed"),
}


@pytest.mark.parametrize(("change", "said"), CHANGED.values(), ids=CHANGED)
def test_a_source_that_changes_meanwhile_is_told_from_a_damaged_one(
    written: Plan,
    copy: Path,
    make_plan: MakePlan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path, Plan], object],
    said: str,
) -> None:
    other = make_plan("other.zarr", row_seed=5, bad_rows=(3,))
    other.write()
    original = copying_module.fetch_file

    def fetch(file: FileToFetch, *rest: Any) -> None:
        if file.path == "layer_02/cls/c/1/0/0":
            change(copy, other)
        original(file, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(copying_module, "fetch_file", fetch)
        with pytest.raises(CorruptStoreError, match=f"{said}.* run the same command again"):
            pull(copy, tmp_path / "b.zarr", num_threads=1, retries=AT_ONCE)
    pull(written.path, tmp_path / "b.zarr")
    assert tree(tmp_path / "b.zarr") == tree(written.path)
