"""What a repair plan asks for, and what it mends without any image."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from activault.store import ConfigError, Store, StoreMismatchError, open_store, verify_store
from activault.store.repair import forget_shards, rebuild, rebuild_samples
from activault.store.repair_plan import RepairPlan, plan_repair, read_plan, refuse_plan_file, write_plan

from .conftest import MakePlan, Plan
from .lying_store import lie


def planned(path: Path, deep: bool = True) -> RepairPlan:
    return plan_repair(verify_store(path, deep=deep))


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 16
    file.write_bytes(content)


def carry_out(path: Path, plan: RepairPlan, made_from: Plan) -> list[int]:
    """The repair as `extract` does it; returns the shards that were written again."""
    rebuild(path, plan)
    other = Plan(path, made_from.manifest, made_from.bad_rows)
    with other.open() as writer:
        rebuild_samples(path, plan, other.samples)
        shards = forget_shards(path, plan)
        for shard in shards:
            other.publish(writer, shard)
        if not writer.unfinished:
            writer.complete()
    return shards


def test_a_sound_store_needs_nothing(written: Plan) -> None:
    plan = planned(written.path)
    assert not any((plan.shards, plan.metadata, plan.records, plan.tables, plan.delete, plan.from_copy))
    assert (plan.num_rows, plan.needs_images) == (0, False)


DAMAGE: dict[str, tuple[list[str], list[int], dict[str, object]]] = {
    "array": (["layer_02/patches/c/2/0/0"], [2], {}),
    "two arrays of one shard": (["layer_02/patches/c/2/0/0", "layer_00/cls/c/2/0/0"], [2], {}),
    "statistics": (["shards/00001.stats.safetensors"], [1], {}),
    "record": (["shards/00003.json"], [], {"records": (3,)}),
    "array metadata": (["layer_02/cls/zarr.json"], [], {"metadata": ("layer_02/cls/zarr.json",)}),
    "layer metadata": (["layer_04/zarr.json"], [], {"metadata": ("layer_04/zarr.json",)}),
    "samples": (["samples.parquet"], [], {"tables": ("samples.parquet",)}),
    "index": (["index.parquet"], [], {"tables": ("index.parquet",)}),
    "record and array": (["shards/00000.json", "layer_00/cls/c/0/0/0"], [0], {}),
    "index and record": (["index.parquet", "shards/00001.json"], [1], {"tables": ("index.parquet",)}),
    "much": (
        ["shards/00000.json", "layer_00/cls/c/1/0/0", "samples.parquet", "layer_00/zarr.json"],
        [1],
        {"records": (0,), "tables": ("samples.parquet",), "metadata": ("layer_00/zarr.json",)},
    ),
}


@pytest.mark.parametrize("harm", [Path.unlink, flip], ids=["deleted", "flipped"])
@pytest.mark.parametrize(("names", "shards", "fields"), DAMAGE.values(), ids=DAMAGE)
def test_a_plan_names_what_is_needed_and_mends_the_store(
    copy: Path,
    written: Plan,
    store: Store,
    names: list[str],
    shards: list[int],
    fields: dict[str, object],
    harm: Callable[[Path], object],
) -> None:
    for name in names:
        harm(copy / name)
    plan = planned(copy)
    if harm is flip or "index.parquet" not in names:  # an index that is missing is no fault
        assert [part.shard for part in plan.shards] == shards
        for field in ("metadata", "records", "tables"):
            assert getattr(plan, field) == fields.get(field, ()), field
    assert carry_out(copy, plan, written) == shards
    assert verify_store(copy, deep=True, complete=True).ok
    assert open_store(copy).digest == store.digest
    assert (copy / "index.parquet").read_bytes() == (written.path / "index.parquet").read_bytes()


def test_records_folder_and_all_are_restored_from_the_index(copy: Path, written: Plan, store: Store) -> None:
    kept = {file.name: file.read_bytes() for file in (copy / "shards").iterdir()}
    shutil.rmtree(copy / "shards")
    (copy / "shards").mkdir()
    for name, content in kept.items():
        if name.endswith("safetensors"):
            (copy / "shards" / name).write_bytes(content)
    plan = planned(copy)
    assert (plan.records, plan.shards) == ((0, 1, 2, 3), ())
    rebuild(copy, plan)
    assert {file.name: file.read_bytes() for file in (copy / "shards").iterdir()} == kept
    assert verify_store(copy, deep=True, complete=True).ok


def test_lost_records_are_extracted_again(plan: Plan) -> None:
    plan.write([0, 1, 2])
    (plan.path / "shards" / "00001.json").unlink()
    found = planned(plan.path)
    assert [(part.shard, part.rows) for part in found.shards] == [(1, (16, 32))]
    assert carry_out(plan.path, found, plan) == [1]
    report = verify_store(plan.path, deep=True)
    assert (report.ok, report.finished_shards, report.complete) == (True, 3, False), "and no others"


def test_samples_of_an_unfinished_store(plan: Plan) -> None:
    plan.write([0])
    before = (plan.path / "samples.parquet").read_bytes()
    flip(plan.path / "samples.parquet")
    found = planned(plan.path)
    assert (found.tables, found.needs_images) == (("samples.parquet",), False)
    assert carry_out(plan.path, found, plan) == []
    assert (plan.path / "samples.parquet").read_bytes() == before


def test_what_only_a_copy_restores(copy: Path) -> None:
    flip(copy / "teacher" / "model.safetensors")
    (copy / "teacher" / "config.json").unlink()
    plan = planned(copy)
    assert [reason.where for reason in plan.from_copy] == ["teacher/config.json", "teacher/model.safetensors"]
    assert not plan.needs_images


def test_a_store_without_its_own_zarr_json_has_a_plan_too(copy: Path) -> None:
    flip(copy / "zarr.json")
    plan = planned(copy)
    assert (plan.manifest, [reason.where for reason in plan.from_copy]) == ("", ["zarr.json"])
    assert not plan.needs_images


def test_a_record_of_no_shard_is_deleted(copy: Path, written: Plan) -> None:
    shutil.copyfile(copy / "shards" / "00001.json", copy / "shards" / "00009.json")
    plan = planned(copy)
    assert plan.delete == ("shards/00009.json",)
    rebuild(copy, plan)
    assert verify_store(copy, complete=True).ok


def test_a_plan_does_not_delete_what_is_the_stores(copy: Path) -> None:
    names = (
        "shards/00001.json",
        "zarr.json",
        "../copy.zarr/zarr.json",
        "/etc/hostname",
        "shards/../zarr.json",
    )
    rebuild(copy, planned(copy).model_copy(update={"delete": names}))
    assert verify_store(copy, deep=True, complete=True).ok


def test_a_shard_that_is_sound_by_now_is_left_alone(copy: Path, written: Plan) -> None:
    flip(copy / "layer_02/patches/c/2/0/0")
    plan = planned(copy)
    shutil.copyfile(written.path / "layer_02/patches/c/2/0/0", copy / "layer_02/patches/c/2/0/0")
    assert forget_shards(copy, plan) == []
    assert open_store(copy).complete


def test_a_plan_of_another_store_is_refused(
    copy: Path, make_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    other = make_plan("other.zarr", row_seed=5)
    other.write()
    flip(other.path / "layer_02/patches/c/2/0/0")
    plan = planned(other.path)
    for action in (rebuild, forget_shards):
        with pytest.raises(StoreMismatchError, match="the plan is of another store"):
            action(copy, plan)
    hostile = planned(copy).model_copy(update={"shards": plan.shards[:1], "records": (99,)})
    with pytest.raises(StoreMismatchError, match="the plan names shard 99"):
        rebuild(copy, hostile)


def test_a_plan_is_kept_as_json(copy: Path, tmp_path: Path) -> None:
    flip(copy / "layer_02/patches/c/2/0/0")
    plan = planned(copy)
    write_plan(tmp_path / "plan.json", plan)
    assert read_plan(tmp_path / "plan.json") == plan
    assert json.loads((tmp_path / "plan.json").read_text())["shards"][0]["rows"] == [32, 48]


@pytest.mark.parametrize(
    "text", [b"", b"[" * 99_999, b"{}", b'{"format": 2}', b"\xff", b"null"], ids=lambda text: str(text[:9])
)
def test_what_is_no_plan_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "plan.json").write_bytes(text)
    with pytest.raises(ConfigError, match=r"is no repair plan; make a new plan by"):
        read_plan(tmp_path / "plan.json")


def test_a_plan_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plan.json cannot be read \(No such file or directory\)"):
        read_plan(tmp_path / "plan.json")


def test_what_cannot_be_reached_is_not_extracted_again(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from activault.store.errors import AccessDeniedError
    from activault.store.storage import Folder

    original = Folder.size

    def size(self: Folder, path: str) -> int:
        if path == "layer_02/patches/c/2/0/0":
            raise AccessDeniedError(f"{path} cannot be read (Permission denied); grant the right to read it")
        return original(self, path)

    monkeypatch.setattr(Folder, "size", size)
    plan = planned(copy, deep=False)
    assert not plan.needs_images
    assert [reason.where for reason in plan.out_of_reach] == ["layer_02/patches/c/2/0/0"]


@pytest.mark.parametrize("name", ["zarr.json", "plan.json", "layer_00/cls/../plan.json", "link/new.json"])
def test_a_plan_is_not_kept_in_its_store(copy: Path, name: str) -> None:
    (copy.parent / "link").symlink_to(copy)
    place = copy.parent / name if name.startswith("link") else copy / name
    with pytest.raises(ConfigError, match="a repair plan is kept outside of its store"):
        refuse_plan_file(place, copy)


def test_a_plan_replaces_nothing_but_a_plan(copy: Path, written: Plan, tmp_path: Path) -> None:
    flip(copy / "layer_02/patches/c/2/0/0")
    plan, file = planned(copy), tmp_path / "plan.json"
    for content in (b"{}", b"notes", (written.path / "zarr.json").read_bytes()):
        file.write_bytes(content)
        for refused in (lambda: refuse_plan_file(file, copy), lambda: write_plan(file, plan)):
            with pytest.raises(
                ConfigError, match="holds something that is no repair plan and stays as it is"
            ):
                refused()
        assert file.read_bytes() == content
    file.write_bytes(b"")  # as mktemp makes it
    write_plan(file, planned(written.path))
    refuse_plan_file(file, copy)
    write_plan(file, plan)
    assert read_plan(file) == plan


def test_a_shard_whose_record_lies_is_not_taken_for_a_sound_one(make_plan: MakePlan) -> None:
    made = make_plan()
    digest = made.write().digest
    lie(made.path, made.samples, lambda record: record["files"][0].update(values="0" * 32))
    lie(made.path, made.samples, None, lambda tensors: tensors["layer_00.cls.m2"].__imul__(-1), shard=2)
    assert [part.shard for part in planned(made.path).shards] == [2]
    plan = plan_repair(verify_store(made.path, values=True))
    assert plan.values
    assert carry_out(made.path, plan, made) == [0, 2]
    assert verify_store(made.path, values=True, complete=True).faults == ()
    assert open_store(made.path).digest == digest
    assert carry_out(made.path, plan, made) == []
