"""A store that lost its records is told from one that was never finished; the report says which shards."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from activault.store import VerifyReport, verify_store

from .conftest import Plan


def lost_records(report: VerifyReport) -> list[str]:
    return [fault.where for fault in report.faults if "was lost" in fault.detail]


def test_an_unfinished_store_lost_nothing(plan: Plan) -> None:
    plan.write([0, 2])
    report = verify_store(plan.path)
    assert (report.ok, report.state, report.lost_shards) == (True, "unfinished", ())


def test_a_lost_record_is_named(plan: Plan) -> None:
    plan.write([0, 1, 2])
    (plan.path / "shards" / "00001.json").unlink()
    report = verify_store(plan.path)
    assert (report.state, report.lost_shards, report.finished_shards) == ("lost records", (1,), 2)
    assert lost_records(report) == ["shards/00001.json"]
    assert "the record of rows 16 to 31 was lost; run again what made the store" in str(report.faults[0])


@pytest.mark.parametrize("left", ["layer_04/patches/c/1/0/0", "layer_00/cls/c/1/0/0"])
def test_one_array_file_that_is_left_tells_of_a_lost_record(plan: Plan, left: str) -> None:
    plan.write([0, 1])
    kept = (plan.path / left).read_bytes()
    for file in [*plan.path.glob("layer_*/*/c/1/0/0"), *plan.path.glob("shards/00001.*")]:
        file.unlink()
    assert verify_store(plan.path).state == "unfinished", "folders that are empty tell of nothing"
    (plan.path / left).write_bytes(kept)
    assert verify_store(plan.path).lost_shards == (1,)


def test_files_of_a_shard_with_an_owner_were_not_lost(plan: Plan) -> None:
    plan.write([0, 1])
    (plan.path / "shards" / "00001.json").unlink()
    (plan.path / "shards" / ".00001.json.tmp").write_bytes(b"")
    report = verify_store(plan.path)
    assert (report.ok, report.state, report.shards_at_work) == (True, "unfinished", (1,))


def test_marks_of_a_killed_writer_are_told_from_those_of_a_living_one(plan: Plan) -> None:
    with plan.open() as writer:
        assert writer.claim(1)
        report = verify_store(plan.path)
        assert (report.shards_at_work, report.writers_gone) == ((1,), False)
    (plan.path / "shards" / ".00001.json.tmp").write_bytes(b"")
    report = verify_store(plan.path)
    assert (report.shards_at_work, report.writers_gone) == ((1,), True)


def test_all_records_of_an_unfinished_store(plan: Plan) -> None:
    plan.write([0, 1, 3])
    shutil.rmtree(plan.path / "shards")
    report = verify_store(plan.path)
    assert (report.state, report.lost_shards) == ("lost records", (0, 1, 3))
    assert "it is missing, and with it every record" in str(report.faults[0])


def test_all_records_of_a_complete_store_are_known_from_its_index(copy: Path) -> None:
    shutil.rmtree(copy / "shards")
    report = verify_store(copy)
    assert (report.state, report.lost_shards, report.finished_shards) == ("complete", (), 0)
    where = {fault.where for fault in report.faults}
    assert {f"shards/0000{shard}.json" for shard in range(4)} <= where
    assert {f"shards/0000{shard}.stats.safetensors" for shard in range(4)} <= where


def test_records_and_index_of_a_complete_store(copy: Path) -> None:
    (copy / "index.parquet").unlink()
    for record in (copy / "shards").glob("*.json"):
        record.unlink()
    report = verify_store(copy)
    assert (report.state, report.lost_shards) == ("lost records", (0, 1, 2, 3))
    assert "index.parquet was lost" in str(report.notes[0])


def test_outcomes_without_an_index_are_noted(copy: Path) -> None:
    (copy / "index.parquet").unlink()
    report = verify_store(copy, deep=True)
    assert (report.ok, report.state) == (True, "unfinished")
    assert [note.where for note in report.notes] == ["samples.parquet"]
    assert "has outcomes, which come with completion" in report.notes[0].text


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "layer_99/cls/c/0/0/0",
        "layer_00/extra/zarr.json",
        "layer_00/cls/c/4/0/0",
        "layer_00/cls/c/01/0/0",
        "teacher/more.bin",
        "shards/readme",
        "shards/00004.stats.safetensors",
    ],
)
def test_names_that_no_store_has_are_noted(copy: Path, name: str) -> None:
    (copy / name).parent.mkdir(parents=True, exist_ok=True)
    (copy / name).write_bytes(b"x")
    report = verify_store(copy, deep=True)
    assert report.ok
    assert len(report.notes) == 1
    assert name.startswith(report.notes[0].where)


def test_a_card_and_hidden_files_are_not_noted(copy: Path) -> None:
    for name in ("CARD.md", ".nfs0001", "layer_00/.x.tmp", "teacher/model.tmp"):
        (copy / name).write_bytes(b"x")
    assert verify_store(copy).notes == ()
