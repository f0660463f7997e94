"""Links, files and folders of others where a writer removes what is its own: all that is theirs stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from activault.store import NotAStoreError, StoreError, create_store, verify_store
from activault.store import scratch as scratch_module
from activault.store.growing import GROWING, JOINING, growing_root
from activault.store.growing_join import finish_join
from activault.store.locks import LOCK
from activault.store.staging import staging_path

from .conftest import Plan


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of somebody's work, with files, folders, and names that a writer would collect."""
    folder = tmp_path / "victim"
    for name in ("thesis.tex", "data/model.pt", ".draft.tmp", "layer_00/mine", "joined/mine"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    (folder / "empty").mkdir()
    return folder


def listing(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text() if path.is_file() else "a folder"
        for path in folder.rglob("*")
    }


def begun(plan: Plan) -> Path:
    """A store of which shard 0 alone is finished."""
    with plan.open() as writer:
        plan.publish(writer, 0)
    return plan.path


def assert_finished(plan: Plan) -> None:
    assert plan.write().complete
    assert verify_store(plan.path, deep=True).faults == ()
    assert [path for path in plan.path.rglob(".*") if path.name != LOCK] == []


@pytest.mark.parametrize("place", ["", "/abc.tmp", "/abc.tmp/layer_00-cls-c-1-0-0.tmp", "/a.gone.tmp"])
@pytest.mark.parametrize("marked", [False, True])
def test_a_link_in_a_staging_goes_and_what_it_leads_to_stays(
    plan: Plan, victim: Path, place: str, marked: bool
) -> None:
    link = begun(plan) / f"{staging_path(1)}{place}"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(victim)
    if marked:  # of a killed owner, so that its shard is taken over and not collected
        (plan.path / "shards/.00001.json.tmp").touch()
    before = listing(victim)
    assert_finished(plan)
    assert listing(victim) == before


@pytest.mark.parametrize("place", ["", "/abc.tmp"])
def test_a_file_in_the_place_of_a_staging_goes(plan: Plan, place: str) -> None:
    file = begun(plan) / f"{staging_path(1)}{place}"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    (plan.path / "shards/.00001.json.tmp").touch()
    assert_finished(plan)


@pytest.mark.parametrize("place", ["/mine", "/abc.tmp/mine"])
def test_a_folder_that_no_owner_makes_is_named_and_stays(plan: Plan, place: str) -> None:
    folder = begun(plan) / f"{staging_path(1)}{place}"
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("mine")
    with pytest.raises(StoreError, match=rf"{folder} is no part of the store .*; move it away, then run"):
        plan.write()
    assert (folder / "thesis.tex").read_text() == "mine"
    folder.rename(plan.path.parent / "mine")
    assert_finished(plan)


@pytest.mark.parametrize("name", ["teacher", "shards", "layer_00", "layer_00/cls", "teacher/config.json"])
def test_planning_anew_refuses_a_link(plan: Plan, victim: Path, name: str) -> None:
    def interrupted(_: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        create_store(plan.path, plan.manifest, plan.samples, interrupted)
    link, before = plan.path / name, listing(victim)
    if link.is_dir():
        link.rmdir()
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(victim)
    with pytest.raises(NotAStoreError, match="which planning does not make; move it away"):
        plan.open()
    assert listing(victim) == before


@pytest.mark.parametrize("name", [GROWING, JOINING])
def test_growth_behind_a_link_is_refused(plan: Plan, victim: Path, name: str) -> None:
    plan.write()
    before = listing(victim)
    (plan.path / name).symlink_to(victim)
    look = growing_root if name == GROWING else finish_join
    with pytest.raises(StoreError, match=rf"{name} is a link, .* remove the link"):
        look(plan.path)
    assert listing(victim) == before


def test_sweeping_follows_no_link(victim: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    (temporary / "activault-upload-a").mkdir(parents=True)
    (victim / "lock").touch()
    (temporary / "activault-upload-b").symlink_to(victim)
    for name, target in (("lock", victim / "lock"), ("plan", victim)):
        (temporary / "activault-upload-a" / name).symlink_to(target)
    before = listing(victim)
    scratch_module._sweep(temporary)
    assert listing(victim) == before
