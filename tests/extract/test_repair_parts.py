"""Repair of partial copies by the request that made the whole store, or by one for their own parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from activault.extract import calibration, repair
from activault.extract import run as module
from activault.extract.run import ExtractOptions, extract
from activault.store import StoreMismatchError, open_store, verify_store
from activault.store.repair_plan import plan_repair
from activault.store.transfer import pull

from .conftest import MakeFolder, changed


def lose(*names: str) -> Callable[[Path], object]:
    return lambda store: [(store / name).unlink() for name in names]


ROWS: dict[str, Any] = {"rows": "8:16"}
DAMAGE: dict[str, tuple[dict[str, Any], Callable[[Path], object], int]] = {
    "rows: array": (ROWS, lose("layer_06/cls/c/1/0/0"), 8),
    "rows: record and index": (ROWS, lose("shards/00001.json", "index.parquet"), 8),
    "rows: tables": (ROWS, lose("samples.parquet", "index.parquet"), 0),
    "rows: array and tables": (ROWS, lose("samples.parquet", "index.parquet", "layer_00/cls/c/1/0/0"), 8),
    "a layer": ({"layers": "6"}, lose("layer_06/cls/c/2/0/0"), 4),
    "a kind": ({"tokens": "patches"}, lose("layer_00/patches/c/0/0/0"), 8),
    "some of all": (
        {"layers": "6", "tokens": "cls", "rows": "8:20"},
        lose("layer_06/cls/c/1/0/0", "shards/00002.stats.safetensors", "index.parquet"),
        12,
    ),
}


@pytest.mark.parametrize(("part", "harm", "num_rows"), DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("asked", ["the whole", "the part"])
def test_a_damaged_partial_copy_is_made_what_it_was(
    make_folder: MakeFolder,
    tmp_path: Path,
    options: ExtractOptions,
    part: dict[str, Any],
    harm: Callable[[Path], object],
    num_rows: int,
    asked: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, whole, path = make_folder(20), tmp_path / "whole.zarr", tmp_path / "part.zarr"
    extract(folder, whole, options)
    pull(whole, path, **part)
    digest = open_store(path).digest
    harm(path)
    plan = plan_repair(verify_store(path, deep=True, complete=True))
    assert plan.num_rows == num_rows
    if not num_rows:
        monkeypatch.setattr(module, "load_backbone", lambda *_, **__: pytest.fail("a teacher was loaded"))
    fields = {name: part[name] for name in ("layers", "tokens") if name in part and asked == "the part"}
    assert repair(folder, path, changed(options, **fields), plan).num_new == num_rows
    assert verify_store(path, values=True, complete=True).faults == ()
    assert open_store(path).digest == digest


def test_int8_steps_stay_with_a_copy(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, whole = make_folder(20), tmp_path / "whole.zarr"
    int8 = changed(options, dtype="int8")
    extract(folder, whole, int8)
    monkeypatch.setattr(calibration, "calibrate", lambda *_, **__: pytest.fail("steps were calibrated"))
    for tokens in ("cls", "patches"):
        path = tmp_path / f"{tokens}.zarr"
        pull(whole, path, layers="6", tokens=tokens, rows="8:16")
        digest = open_store(path).digest
        (path / f"layer_06/{tokens}/c/1/0/0").unlink()
        repair(folder, path, int8, plan_repair(verify_store(path)))
        assert open_store(path).digest == digest


@pytest.mark.parametrize("other", [{"layers": "0,3"}, {"tokens": "cls"}, {"seed": 1}], ids=str)
def test_a_request_without_the_parts_is_refused(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions, other: dict[str, Any]
) -> None:
    folder, whole, path = make_folder(20), tmp_path / "whole.zarr", tmp_path / "part.zarr"
    extract(folder, whole, options)
    pull(whole, path, layers="6", tokens="patches", rows="8:16")
    (path / "layer_06/patches/c/1/0/0").unlink()
    plan = plan_repair(verify_store(path))
    with pytest.raises(StoreMismatchError, match="was planned differently"):
        repair(folder, path, changed(options, **other), plan)
    assert (path / "shards/00001.json").exists()
