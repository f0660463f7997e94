"""Every command through `main`: what it prints, what it leaves, and its exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from activault.jobs import cli
from activault.store import open_store

Command = Callable[..., Any]
COMMANDS = (
    *("demo", "extract", "info", "verify", "phases", "train", "probe", "analyze"),
    *("pull", "merge", "publish", "import", "export"),
)


def test_help_lists_the_commands_that_are_there(activault: Command) -> None:
    answer = activault("--help")
    assert answer.status == 0
    assert [name for name in COMMANDS if f" {name} " in answer.out] == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples(activault: Command, command: str) -> None:
    answer = activault(command, "--help")
    assert answer.status == 0
    assert answer.out.count(f"activault {command}") >= 2  # the usage line and an example


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("info",),
        ("info", "a", "b"),
        ("phases", "a", "--k", "two"),
        ("verify", "a", "--shallow"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(activault: Command, arguments: tuple[str, ...]) -> None:
    answer = activault(*arguments)
    assert answer.status == 2
    assert answer.out == ""
    assert "Traceback" not in answer.err


def test_extract_tells_rows_bytes_and_digest(
    activault: Command, images: Path, teacher: tuple[str, ...], tmp_path: Path
) -> None:
    answer = activault("extract", images, tmp_path / "s.zarr", *teacher, "--limit", 10)
    assert answer.status == 0
    assert "rows    10" in answer.out
    assert open_store(tmp_path / "s.zarr").digest in answer.out
    assert "of float32" in answer.out


def test_extract_again_does_nothing_new(
    activault: Command, images: Path, teacher: tuple[str, ...], store: Path
) -> None:
    answer = activault("extract", images, store, *teacher, "--json")
    assert answer.status == 0
    assert (answer.json["num_rows"], answer.json["num_new"]) == (24, 0)


def test_info_as_json_has_what_programs_rely_on(activault: Command, store: Path) -> None:
    facts = activault("info", store, "--json").json
    promised = {"digest", "arrays_digest", "num_rows", "num_bad", "complete", "layers", "dtype", "teacher"}
    assert promised <= set(facts)
    assert facts["num_rows"] == 24
    assert facts["layers"] == list(range(7))


def test_info_for_people_has_the_same_facts(activault: Command, store: Path) -> None:
    answer = activault("info", store)
    assert answer.status == 0
    assert open_store(store).digest in answer.out
    assert "teacher.architecture" in answer.out


def test_verify_exits_with_0_on_a_sound_store(activault: Command, store: Path) -> None:
    answer = activault("verify", store, "--deep", "--complete", "--json")
    assert answer.status == 0
    assert answer.json == {
        "ok": True,
        "state": "complete",
        "complete": True,
        "deep": True,
        "values": False,
        "finished_shards": 3,
        "num_shards": 3,
        "lost_shards": [],
        "shards_at_work": [],
        "writers_gone": False,
        "faults": [],
        "notes": [],
        "repair": None,
    }


def test_verify_lists_every_fault_and_exits_with_1(
    activault: Command, images: Path, teacher: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "s.zarr"
    activault("extract", images, path, *teacher, "--shard-rows", 8)
    for name in ("layer_01/patches/c/0/0/0", "layer_03/cls/c/2/0/0"):
        (path / name).unlink()
    answer = activault("verify", path)
    assert answer.status == 1
    assert "layer_01/patches" in answer.out
    assert "layer_03/cls" in answer.out
    assert "2 fault(s)" in answer.out


def test_phases_of_a_store(activault: Command, store: Path) -> None:
    found = activault("phases", store, "--k", 2, 3, "--json").json
    assert [len(phases["cuts"]) for phases in found["phases"]] == [1, 2]
    assert found["num_rows"] == 16  # the training split
    assert [point["k"] for point in found["cost_curve"]] == [1, 2, 3]


def test_phases_name_a_k_that_does_not_fit(activault: Command, store: Path) -> None:
    answer = activault("phases", store, "--k", 9)
    assert answer.status == 2
    assert "9" in answer.error_line


def test_phases_table_says_when_the_cost_is_not_the_published_one(activault: Command, store: Path) -> None:
    other, usual = activault("phases", store, "--cost", "sum"), activault("phases", store)
    assert other.status == usual.status == 0
    assert "Only the cost ncut" in other.out
    assert "Only the cost ncut" not in usual.out


def test_phases_shows_those_of_2_3_4_that_fit(activault: Command, store: Path) -> None:
    """Six blocks, and a phase of ncut has two layers."""
    assert [len(found["cuts"]) + 1 for found in activault("phases", store, "--json").json["phases"]] == [2, 3]


def test_train_resumes_and_tells_the_same_loss(activault: Command, recipe: Path, run: Path) -> None:
    again = activault("train", recipe, "--out", run, "--device", "cpu", "--json").json
    lines = (run / "closed_loop" / "metrics.jsonl").read_text().splitlines()
    assert again["stages"][-1]["name"] == "closed_loop"
    assert again["stages"][-1]["loss"] == json.loads(lines[-1])["loss"]


def test_train_overrides_reach_the_recipe(activault: Command, recipe: Path, tmp_path: Path) -> None:
    answer = activault("train", recipe, "--out", tmp_path / "r", "--set", "stage1.steps=0", "stage2.steps=2")
    assert answer.status == 0
    assert "closed_loop" in answer.out
    assert "phase_1" not in answer.out


def test_train_finds_its_phases_from_the_store(activault: Command, recipe: Path, tmp_path: Path) -> None:
    text = recipe.read_text().replace("cuts = [2, 4]", "num_phases = 2").replace("steps = 4", "steps = 2")
    (tmp_path / "two.toml").write_text(text)
    cuts = activault("train", tmp_path / "two.toml", "--out", tmp_path / "r", "--json").json["cuts"]
    assert cuts == activault("phases", recipe_store(recipe), "--k", 2, "--json").json["phases"][0]["cuts"]


def recipe_store(recipe: Path) -> str:
    return recipe.read_text().split('store = "')[1].split('"')[0]


def test_probe_holds_the_surrogate_beside_both_baselines(activault: Command, store: Path, run: Path) -> None:
    answer = activault("probe", store, "--run", run, "--json")
    assert answer.status == 0
    assert set(answer.json["scores"]) == {"teacher", "surrogate", "identity", "untrained blocks"}
    assert (answer.json["num_train"], answer.json["num_test"]) == (16, 8)
    assert json.loads((run / "probe.json").read_text())["scores"] == answer.json["scores"]


def test_probe_table_says_whether_the_baselines_are_beaten(
    activault: Command, store: Path, run: Path
) -> None:
    answer = activault("probe", store, "--run", run)
    assert "every baseline under both heads" in answer.out


def test_analyze_without_a_run_leaves_the_run_out(activault: Command, store: Path, tmp_path: Path) -> None:
    answer = activault("analyze", store, "--out", tmp_path / "report")
    assert answer.status == 0
    assert f"report: {tmp_path / 'report' / 'report.html'}" in answer.out
    numbers = json.loads((tmp_path / "report" / "numbers.json").read_text())
    assert numbers["num_rows"] == 24
    assert numbers["r2"] == numbers["probes"] == []


def test_analyze_with_a_run_measures_it_on_test_rows(
    activault: Command, store: Path, run: Path, tmp_path: Path
) -> None:
    answer = activault("analyze", store, "--run", run, "--out", tmp_path, "--device", "cpu", "--json")
    numbers = json.loads(Path(answer.json["numbers"]).read_text())
    assert numbers["num_rows"] == 8
    assert numbers["cuts"] == [2, 4]
    assert {row["kind"] for row in numbers["r2"]} == {"cls", "patches", "all"}
    assert {row["name"] for row in numbers["probes"]} >= {"teacher", "surrogate", "identity"}
    assert {curve["stage"] for curve in numbers["losses"]} == {"each phase alone", "closed loop"}
    assert "surrogate" in pq.read_table(tmp_path / "layers.parquet")["model"].to_pylist()


def test_a_damaged_probe_file_is_made_again(
    activault: Command, store: Path, run: Path, tmp_path: Path
) -> None:
    activault("probe", store, "--run", run)
    whole = (run / "probe.json").read_text()
    (run / "probe.json").write_text(whole[:40])
    assert activault("analyze", store, "--run", run, "--out", tmp_path).status == 0
    assert (run / "probe.json").read_text() == whole


def test_a_store_without_labels_gets_a_report_without_probes(
    activault: Command, images: Path, teacher: tuple[str, ...], run: Path, tmp_path: Path
) -> None:
    for path in [*images.glob("train/*/*.png"), *images.glob("test/*/*.png")]:
        place = tmp_path / "photos" / path.parts[-3] / f"{path.parent.name}{path.name}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    activault("extract", tmp_path / "photos", tmp_path / "s.zarr", *teacher)
    answer = activault("analyze", tmp_path / "s.zarr", "--run", run, "--out", tmp_path / "report", "--json")
    assert answer.status == 0
    numbers = json.loads(Path(answer.json["numbers"]).read_text())
    assert numbers["probes"] == []
    assert "left out" in numbers["notes"]["probes"]
    assert numbers["r2"]


def test_a_report_onto_a_file_is_one_line(activault: Command, store: Path, tmp_path: Path) -> None:
    (tmp_path / "report").write_text("taken")
    answer = activault("analyze", store, "--out", tmp_path / "report")
    assert answer.status == 1
    assert str(tmp_path / "report") in answer.error_line
    assert (tmp_path / "report").read_text() == "taken"


def test_a_run_of_another_teacher_is_refused(
    activault: Command, images: Path, run: Path, tmp_path: Path
) -> None:
    from activault.extract.backbone import load_backbone, save_teacher

    save_teacher(load_backbone("test_vit", image_size=32, resize=32, random_seed=7), tmp_path)
    flags = ("--teacher", "test_vit", "--weights", tmp_path / "model.safetensors", "--image-size", 32)
    activault("extract", images, tmp_path / "other.zarr", *flags)
    answer = activault("probe", tmp_path / "other.zarr", "--run", run)
    assert answer.status == 2
    assert "its own teacher's activations" in answer.error_line


def test_an_interruption_while_it_is_imported_is_one_line() -> None:
    code = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'activault.store': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from activault.jobs.entry import main\n"
        "sys.exit(main())\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (answer.returncode, answer.stdout, answer.stderr) == (130, "", "activault: interrupted\n")


def test_an_interruption_says_how_to_go_on(
    activault: Command, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from activault.jobs import inspect

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(inspect, "facts", interrupt)
    answer = activault("info", store)
    assert answer.status == 130
    assert "run the same command again" in answer.error_line


def test_a_missing_extra_is_named(activault: Command, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from activault.jobs import inspect

    def missing(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(inspect, "facts", missing)
    answer = activault("info", store)
    assert answer.status == 2
    assert "needs torch" in answer.error_line
    assert "'activault[all]'" in answer.error_line


def test_our_own_missing_module_is_not_hidden(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from activault.jobs import inspect

    def broken(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'activault.nowhere'", name="activault.nowhere")

    monkeypatch.setattr(inspect, "facts", broken)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["info", str(store)])


@pytest.mark.parametrize("command", ["info", "verify"])
def test_the_reader_commands_run_without_torch(store: Path, command: str) -> None:
    """As after `pip install activault` alone."""
    code = (
        "import sys\n"
        "for name in ('torch', 'timm', 'matplotlib', 'PIL', 'jaxtyping'): sys.modules[name] = None\n"
        "from activault.jobs.cli import main\n"
        f"sys.exit(main([{command!r}, {str(store)!r}, '--json']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


def test_a_command_without_its_extra_is_one_line(images: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from activault.jobs.cli import main\n"
        f"sys.exit(main(['extract', {str(images)!r}, {str(tmp_path / 's.zarr')!r}, '--teacher', 'demo']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "torch" in done.stderr
    assert "activault[all]" in done.stderr
    assert "Traceback" not in done.stderr
