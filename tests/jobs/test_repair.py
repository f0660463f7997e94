"""`verify` and `info` on damaged, lost and distant stores, and the way from a fault to a sound store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from http_server import StaticServer

from activault.jobs.inspect import printable, show_report
from activault.store import open_store, remote
from activault.store.findings import Fault, VerifyReport

from .conftest import Command


@pytest.fixture
def copy(store: Path, tmp_path: Path) -> Path:
    return shutil.copytree(store, tmp_path / "photos.zarr")


def test_from_a_fault_to_a_sound_store(
    activault: Command, copy: Path, store: Path, images: Path, teacher: tuple[str, ...], tmp_path: Path
) -> None:
    file = copy / "layer_03/patches/c/1/0/0"
    file.write_bytes(file.read_bytes()[:-9] + b"\0" * 9)
    (copy / "layer_00/zarr.json").unlink()
    plan = tmp_path / "plan.json"
    found = activault("verify", copy, "--deep", "--repair-plan", plan)
    assert found.status == 1
    assert "mended by extracting again (1):" in found.out
    assert "mended without an image (1):" in found.out
    assert "--repair-plan plan.json`, then the same `activault extract` with --repair plan.json" in found.out
    assert "it extracts 8 row(s) again" in found.out
    assert json.loads(plan.read_text())["shards"][0]["rows"] == [8, 16]
    request = ("extract", images, copy, *teacher, "--shard-rows", 8)
    done = activault(*request, "--repair", plan, "--json").json
    assert (done["num_new"], done["digest"]) == (8, open_store(store).digest)
    assert activault("verify", copy, "--deep", "--complete").status == 0


def test_the_json_report_has_the_plan(activault: Command, copy: Path) -> None:
    (copy / "shards/00001.json").unlink()
    answer = activault("verify", copy, "--json")
    plan = answer.json["repair"]
    assert (answer.status, plan["records"], plan["shards"], plan["deep"]) == (1, [1], [], False)


def test_a_file_that_is_no_plan(
    activault: Command, copy: Path, images: Path, teacher: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "plan.json").write_text("{}")
    answer = activault("extract", images, copy, *teacher, "--repair", tmp_path / "plan.json")
    assert answer.status == 2
    assert "is no repair plan; make a new plan by `activault verify STORE --deep --repair-plan FILE`" in (
        answer.error_line
    )


def test_a_plan_replaces_nothing(activault: Command, copy: Path, tmp_path: Path) -> None:
    before = (copy / "zarr.json").read_bytes()
    answer = activault("verify", copy, "--repair-plan", copy / "zarr.json")
    assert answer.status == 2
    assert "a repair plan is kept outside of its store" in answer.error_line
    (tmp_path / "notes.txt").write_text("mine")
    answer = activault("verify", copy, "--repair-plan", tmp_path / "notes.txt")
    assert "holds something that is no repair plan and stays as it is" in answer.error_line
    assert (copy / "zarr.json").read_bytes() == before
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_values_are_held_against_the_records(activault: Command, copy: Path) -> None:
    sound = activault("verify", copy, "--values", "--json")
    assert (sound.status, sound.json["values"], sound.json["deep"], sound.json["ok"]) == (0, True, True, True)
    assert activault("verify", copy, "--deep", "--json").json["values"] is False


def test_how_a_partial_copy_is_mended(activault: Command, copy: Path, tmp_path: Path) -> None:
    part = tmp_path / "part.zarr"
    assert activault("pull", copy, part, "--rows", "8:16").status == 0
    (part / "layer_03/patches/c/1/0/0").unlink()
    answer = activault("verify", part)
    assert (
        f"without the teacher, a partial copy is mended by `activault pull SOURCE {part} --deep`"
        in answer.out
    )
    assert activault("pull", copy, part, "--rows", "8:16", "--deep").status == 0
    assert activault("verify", part, "--values", "--complete").status == 0


def test_lost_records_are_told_and_strangers_noted(activault: Command, copy: Path) -> None:
    (copy / "index.parquet").unlink()
    (copy / "shards/00001.json").unlink()
    (copy / "notes.txt").write_text("x")
    answer = activault("verify", copy)
    assert answer.status == 1
    assert "2 of 3 shards finished, the records of 1 lost, not complete" in answer.out
    assert "note: notes.txt: is no part of a store" in answer.out
    found = activault("verify", copy, "--json").json
    assert (found["state"], found["lost_shards"]) == ("lost records", [1])
    assert found["repair"]["shards"][0]["shard"] == 1
    assert [fault["remedy"] for fault in found["faults"]] == ["extract"]


def test_stores_behind_a_url(activault: Command, copy: Path, serve: Callable[[Path], StaticServer]) -> None:
    url = f"{serve(copy.parent).url}/{copy.name}"
    assert activault("info", url, "--json").json["digest"] == open_store(copy).digest
    sound = activault("verify", url, "--deep", "--complete", "--json")
    assert (sound.status, sound.json["ok"], sound.json["finished_shards"]) == (0, True, 3)
    (copy / "layer_03/patches/c/1/0/0").unlink()
    file = copy / "layer_00/cls/c/0/0/0"
    file.write_bytes(bytes(file.stat().st_size))
    broken = activault("verify", url, "--deep", "--json")
    assert broken.status == 1
    assert [fault["where"] for fault in broken.json["faults"]] == [
        "layer_03/patches/c/1/0/0",
        "layer_00/cls/c/0/0/0",
    ]


def test_lost_records_behind_a_url_that_lists_nothing(
    activault: Command, copy: Path, serve: Callable[[Path], StaticServer]
) -> None:
    (copy / "index.parquet").unlink()
    for file in [*copy.glob("layer_*/*/c/2/0/0"), *copy.glob("shards/0000[12].*")]:
        file.unlink()
    answer = activault("verify", f"{serve(copy.parent).url}/{copy.name}", "--json")
    assert (answer.json["state"], answer.json["lost_shards"], answer.json["finished_shards"]) == (
        "lost records",
        [1],
        1,
    )


def test_a_server_that_does_not_answer_is_one_line(
    activault: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "DEFAULTS", replace(remote.DEFAULTS, first_wait_s=0.001))  # as often, sooner
    answer = activault("verify", "http://127.0.0.1:9/photos.zarr")
    assert answer.status == 1
    assert "127.0.0.1:9" in answer.error_line


def test_a_store_steers_no_terminal() -> None:
    assert printable("a\x1b[31mb\x9b\u202ec") == "a\\x1b[31mb\\x9b\\u202ec"
    assert printable("ä ß 中") == "ä ß 中"


def test_behind_a_url_no_plan_is_offered(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fault = Fault("layer_00/cls/c/0/0/0", "must be what was written", "delete it", "extract", 0)
    manifest = open_store(store).manifest
    report = VerifyReport((fault,), 1, 1, complete=True, deep=True, manifest=manifest)
    show_report("s3://bucket/a.zarr", report)
    shown = capsys.readouterr().out
    assert "do what each line above says" in shown
    assert "--repair" not in shown
    show_report("a.zarr", report)
    assert "--repair plan.json" in capsys.readouterr().out
