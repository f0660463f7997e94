"""Runs whose files were damaged or edited: refused, and made again where their checkpoints allow it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from activault.store import Store
from activault.store.errors import ConfigError, RunError
from activault.train.finished import load_run
from activault.train.runs import RunSummary

RunTiny = Callable[..., RunSummary]


def test_a_damaged_model_is_refused_and_made_again_from_its_checkpoints(
    store: Store, tmp_path: Path, run: RunTiny
) -> None:
    run(tmp_path / "run", store)
    weights = tmp_path / "run" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 64]))
    with pytest.raises(RunError, match="is not what was written; start the same `activault train` again"):
        load_run(tmp_path / "run")
    run(tmp_path / "run", store)
    assert weights.read_bytes() == whole
    load_run(tmp_path / "run")


def test_a_damaged_checkpoint_is_refused(store: Store, tmp_path: Path, run: RunTiny) -> None:
    run(tmp_path / "run", store)
    (path,) = (tmp_path / "run" / "closed_loop").glob("*.safetensors")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 64]))
    with pytest.raises(
        RunError, match=r"is not what was written; remove .*closed_loop to train the stage anew"
    ):
        run(tmp_path / "run", store)


@pytest.mark.parametrize(
    "field", [{"step": "x"}, {"step": -5}, {"step": 10**9}, {"loader": None}, {"pending": 3}]
)
def test_a_checkpoint_that_cannot_be_is_refused(
    field: dict[str, object], store: Store, tmp_path: Path, run: RunTiny
) -> None:
    run(tmp_path / "run", store)
    path = tmp_path / "run" / "closed_loop" / "checkpoint.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **field}))
    with pytest.raises(RunError, match="closed_loop"):
        run(tmp_path / "run", store)


def test_everything_of_a_run_can_be_read_by_others(store: Store, tmp_path: Path, run: RunTiny) -> None:
    run(tmp_path / "run", store)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != "lock"]
    assert {path.stat().st_mode & 0o444 for path in files} == {0o444}


def test_a_fault_of_the_last_stage_is_told_before_the_first_is_trained(
    store: Store, tmp_path: Path, run: RunTiny
) -> None:
    nothing = {"cls": 0, "registers": 0, "patches": 0}
    with pytest.raises(ConfigError):
        run(tmp_path / "run", store, stage2={"token_weights": nothing})
    assert not (tmp_path / "run").exists()
