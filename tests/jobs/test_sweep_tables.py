"""What a sweep leaves: a row a run, a row a figure of a layer, page and drawing, baselines too."""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from activault.jobs import sweep as module
from activault.jobs.phases import rows_of
from activault.jobs.sweep import run_sweep
from activault.jobs.sweep_pages import _beats
from activault.jobs.sweep_result import _over_starts
from activault.jobs.training_macs import training_macs
from activault.store import open_store
from activault.train import Identity, evaluate_rollout, load_recipe, load_run
from activault.train.run_setup import rows_of as rows_to_train_on

SWEEP = """
recipe = "{recipe}"
[set]
validation = 0.3
[[cells]]
name = "both | seeds"
seeds = [0, 1]
[[cells]]
name = "groups"
set = {{ stage1.steps = 0, stage2.steps = 1, stage2.warmup_steps = 0, stage2.ema_decay = 0.5 }}
ema = true
[[cells]]
name = "broken"
set = {{ store = "absent.zarr" }}
[baselines]
names = ["identity", "repeated", "linear", "power"]
num_phases = [2]
"""
Row = dict[str, Any]


@pytest.fixture(scope="module")
def out(recipe: Path, in_this_process: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep's folder: three finished runs, a failed one, four baselines."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "tiny.toml").write_text(SWEEP.format(recipe=recipe))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "run_locally", in_this_process([]))
        run_sweep(folder / "tiny.toml", folder / "out", seconds_per_step=1, device="cpu", quiet=True)
    return folder / "out"


@pytest.fixture(scope="module")
def rows(out: Path) -> dict[str, Row]:
    return {row["run"]: row for row in pq.read_table(out / "results.parquet").to_pylist()}


def test_a_run_has_all_that_a_reader_asks_for(rows: dict[str, Row], out: Path) -> None:
    row = rows["both_seeds_seed=1"]
    run = load_run(out / "runs" / "both_seeds_seed=1")
    record = json.loads((run.path / "run.json").read_text())
    assert (row["cell"], row["seed"], row["status"], row["error"]) == ("both | seeds", 1, "finished", None)
    assert (row["cuts"], row["phases"]) == ([2, 4], "1-2, 3-4, 5-6")
    assert row["store_digest"] == record["store_digest"]
    stage = json.loads((run.path / "closed_loop" / "stage.json").read_text())
    assert row["run_sha256"] == stage["run"]
    assert row["num_parameters"] == run.model.num_parameters
    assert (row["steps"], row["num_evaluated_rows"]) == (18, 8)
    assert row["train_seconds"] > 0
    assert 0 < row["teacher_accuracy"] <= 1
    for head in ("frozen", "refitted"):
        assert row[f"{head}_retention"] == pytest.approx(row[f"{head}_accuracy"] / row["teacher_accuracy"])
    assert rows["both_seeds_seed=0"]["recipe_sha256"] != row["recipe_sha256"]
    assert rows["groups_seed=0"]["set.stage1.steps"] == "0"
    macs = json.loads((run.path / "cost.json").read_text())["surrogate"]["macs"]
    assert (row["macs"], row["train_macs"]) == (macs, training_macs(run.recipe, macs))


def test_a_cell_says_which_weights_are_measured(rows: dict[str, Row], out: Path) -> None:
    row, path = rows["groups_seed=0"], out / "runs" / "groups_seed=0"
    assert (row["weights"], rows["both_seeds_seed=0"]["weights"]) == ("last_ema", "last")
    store = open_store(load_run(path).recipe.store)
    averaged, last = (
        evaluate_rollout(load_run(path, ema=ema).model, store, rows_of(store, "test")).mean_r2
        for ema in (True, False)
    )
    assert row["mean_r2"] == pytest.approx(averaged)
    assert row["mean_r2"] != pytest.approx(last)
    probe = json.loads((path / "probe_ema.json").read_text())
    assert row["frozen_accuracy"] == probe["scores"]["surrogate"]["frozen_accuracy"]
    assert not (path / "probe.json").exists()


def test_other_weights_are_measured_of_runs_that_stand(
    out: Path, tmp_path: Path, carried_out: list[str]
) -> None:
    """Nothing is trained anew, and other runs are left alone."""
    shutil.copytree(out.parent, tmp_path / "again")
    path, folder = tmp_path / "again" / "tiny.toml", tmp_path / "again" / "out"
    checkpoint = folder / "runs" / "groups_seed=0" / "closed_loop" / "checkpoint.json"
    made = checkpoint.stat().st_mtime_ns
    path.write_text(path.read_text().replace("ema = true", "ema = false"))
    run_sweep(path, folder, seconds_per_step=1, device="cpu", quiet=True)
    assert carried_out == ["groups_seed=0", "broken_seed=0"]
    assert checkpoint.stat().st_mtime_ns == made
    table = {row["run"]: row for row in pq.read_table(folder / "results.parquet").to_pylist()}
    assert table["groups_seed=0"]["weights"] == "last"
    assert (folder / "runs" / "groups_seed=0" / "probe.json").exists()


def test_figures_of_layers_are_those_of_the_test_rows(out: Path, recipe: Path) -> None:
    run = load_run(out / "runs" / "both_seeds_seed=1")
    store = open_store(run.recipe.store)
    test = rows_of(store, "test")
    learned, held_out = rows_to_train_on(load_recipe(recipe, ["validation=0.3"]), store)
    assert len(held_out)
    assert not set(test) & {*learned, *held_out}
    assert all(str(store.samples["key"][row]).startswith("test/") for row in test)
    expected = evaluate_rollout(run.model, store, test).to_dict()
    layers = pq.read_table(out / "layers.parquet").to_pylist()
    ours = [row for row in layers if row["run"] == "both_seeds_seed=1"]
    assert len(ours) == 5 * 6 * len(expected["r2"])
    for row in ours:
        value = expected[row["metric"]][row["kind"]][row["layer"] - 1]
        assert row["value"] == (None if value == "constant" else pytest.approx(value, abs=1e-9))


def test_baselines_are_rows_beside_the_runs(rows: dict[str, Row], out: Path) -> None:
    found = {name: row for name, row in rows.items() if row["baseline"]}
    assert list(found) == [
        "baseline_identity",
        "baseline_repeated_k=2",
        "baseline_linear_k=2",
        "baseline_power_k=2",
    ]
    assert all(row["status"] == "finished" for row in found.values())
    assert all(row["refitted_retention"] > 0 and row["steps"] == 0 for row in found.values())
    assert {row["teacher_accuracy"] for row in found.values()} == {
        rows["both_seeds_seed=0"]["teacher_accuracy"]
    }
    store = open_store(load_run(out / "runs" / "both_seeds_seed=0").recipe.store)
    identity = evaluate_rollout(Identity(6), store, rows_of(store, "test"))
    assert found["baseline_identity"]["mean_r2"] == pytest.approx(identity.mean_r2)
    assert len(found["baseline_linear_k=2"]["cuts"]) == 1
    dim, kinds = store.dim, len(store.layout.kinds)
    assert found["baseline_power_k=2"]["num_parameters"] == 2 * kinds * (dim**2 + dim)
    assert found["baseline_linear_k=2"]["num_parameters"] == 6 * kinds * (dim**2 + dim)


def test_a_failed_run_has_a_row_that_says_why(rows: dict[str, Row], out: Path) -> None:
    assert rows["broken_seed=0"]["status"] == "failed"
    assert rows["broken_seed=0"]["mean_r2"] is None
    assert "absent.zarr" in rows["broken_seed=0"]["error"]
    assert "| broken_seed=0 | failed | exit status 1: " in (out / "results.md").read_text()


def test_the_page_has_means_and_spreads(rows: dict[str, Row], out: Path) -> None:
    page = (out / "results.md").read_text()
    both = [rows[f"both_seeds_seed={seed}"] for seed in (0, 1)]
    r2 = [row["mean_r2"] for row in both]
    (line,) = [line for line in page.splitlines() if line.startswith(r"| both \| seeds | 1-2, 3-4, 5-6 |")]
    spoken = f"{np.mean(r2):.3f} \N{PLUS-MINUS SIGN} {statistics.stdev(r2):.3f} (2)"
    assert f"| {spoken.replace('-', chr(0x2212))} |" in line
    assert (
        "7 of 8 finished. R2 is that of the closed loop on 8 test rows; heads are fitted on 16 training"
        in page
    )
    assert "| both_seeds_seed=1 | 1-2, 3-4, 5-6 |" in page, "single runs stand beside their mean"
    assert (
        "| groups | `stage1.steps=0`, `stage2.steps=1`, `stage2.warmup_steps=0`, `stage2.ema_decay=0.5`, "
        in page
    )
    assert "measured with the weights `last_ema` |" in page
    assert "| all | `validation=0.3` |" in page
    verdicts = [row["beats_baselines"] for row in both]
    said = {0: "no", 1: "1 of 2", 2: "yes"}[int(sum(verdicts))]
    macs = f"{both[0]['train_macs'] / 1e12:,.3g}"
    assert f" | {said} | {macs} | " in line
    layer = pq.read_table(out / "layers.parquet").to_pylist()
    values = [
        row["value"]
        for row in layer
        if row["cell"] == "groups" and row["metric"] == "r2" and row["kind"] == "patches"
    ]
    table = page.split("## R2 by layer: patches")[1].split("##")[0]
    told = " | ".join(f"{value:.3f}".replace("-", "\N{MINUS SIGN}") for value in values)
    assert f"| groups | {told} |" in table
    for table in page.split("\n\n"):
        widths = {line.replace(r"\|", "").count("|") for line in table.splitlines() if line.startswith("|")}
        assert len(widths) <= 1, "every line of a table has as many cells"


def test_the_drawing_shows_every_configuration(out: Path) -> None:
    drawn = (out / "comparison.svg").read_text()
    for cell in ("both | seeds", "groups", "identity", "untrained blocks k=2", "linear k=2"):
        assert cell in drawn


def test_time_is_summed_over_starts() -> None:
    assert _over_starts([1.0, 2.0, 3.5, 0.5, 1.5]) == 5.0
    assert _over_starts([]) == 0.0


@pytest.mark.parametrize(
    ("verdicts", "said"), [([], "-"), ([1.0], "yes"), ([0.0, 0.0], "no"), ([1.0, 0.0, 1.0], "2 of 3")]
)
def test_runs_that_beat_the_baselines_are_counted(verdicts: list[float], said: str) -> None:
    assert _beats(verdicts) == said
