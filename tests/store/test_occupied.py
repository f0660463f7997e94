"""Stores of one plan and other values: at a place they differ in the digest alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow import parquet

from activault.store import NotAStoreError, StoreMismatchError, open_store
from activault.store.publishing import plan_publish, publish
from activault.store.root import make_root, read_root
from activault.store.sealed import write_sealed
from activault.store.storage import Folder

from .conftest import Plan, make_manifest
from .test_publish import Memory
from .test_pull import tree


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two stores of one plan whose files have the same names and sizes, with other values."""
    folder, manifest = tmp_path_factory.mktemp("twins"), make_manifest(dtype="float32", compression="none")
    plans = [Plan(folder / name, manifest) for name in ("a.zarr", "b.zarr")]
    plans[1].values = -plans[1].values
    digests = {plan.write().digest for plan in plans}
    assert len(digests) == 2
    return plans[0].path, plans[1].path


def test_another_store_of_the_same_plan_is_refused(twins: tuple[Path, Path]) -> None:
    first, second = twins
    place = Memory()
    publish(first, place)
    before = dict(place.files)
    digests = f"{open_store(first).digest} there and {open_store(second).digest} here"
    with pytest.raises(StoreMismatchError, match=digests):
        publish(second, place)
    assert place.files == before


def test_a_publication_of_the_same_plan_is_not_gone_on_with(twins: tuple[Path, Path]) -> None:
    first, second = twins
    place = Memory(fail_after=20)
    with pytest.raises(ConnectionError):
        publish(first, place)
    place.left = 10**9
    before = dict(place.files)
    with pytest.raises(StoreMismatchError, match="another store is being published"):
        publish(second, place)
    assert place.files == before
    publish(first, place, deep=True)
    assert place.files == tree(first)


def test_a_store_that_was_finished_meanwhile_is_kept(twins: tuple[Path, Path]) -> None:
    first, second = twins
    place = Memory()
    late = plan_publish(second, place)
    publish(first, place)
    with pytest.raises(StoreMismatchError, match="another store is being published"):
        late.run()
    assert place.files == tree(first)


@pytest.mark.parametrize("index", [None, b"PAR1"], ids=["missing", "damaged"])
def test_a_store_there_that_cannot_be_told_is_kept(twins: tuple[Path, Path], index: bytes | None) -> None:
    place = Memory()
    publish(twins[0], place)
    place.remove("index.parquet")
    if index is not None:
        place.files["index.parquet"] = index
    before = dict(place.files)
    with pytest.raises(StoreMismatchError, match="nobody can tell whether it is this one"):
        publish(twins[0], place)
    assert place.files == before


def refusal(store: Path, place: Memory) -> str:
    before = dict(place.files)
    with pytest.raises(StoreMismatchError) as caught:
        publish(store, place)
    assert place.files == before
    return str(caught.value)


@pytest.mark.parametrize("spoil", ["cut", "flip", "halve"])
def test_a_damaged_root_there_is_not_called_another_store(twins: tuple[Path, Path], spoil: str) -> None:
    place = Memory()
    publish(twins[0], place)
    root = place.files["zarr.json"]
    spoilt = {
        "cut": root[:-1],
        "flip": root.replace(b'"num_rows": 50', b'"num_rows": 51'),
        "halve": root[:99],
    }
    place.files["zarr.json"] = spoilt[spoil]
    said = refusal(twins[0], place)
    assert "holds a damaged zarr.json" in said
    assert said.endswith("choose another destination, or empty it")


def test_a_damaged_index_there_has_one_remedy(twins: tuple[Path, Path]) -> None:
    place = Memory()
    publish(twins[0], place)
    place.files["index.parquet"] = place.files["index.parquet"][:-1]
    said = refusal(twins[0], place)
    assert "whose index.parquet is damaged, so that nobody can tell" in said
    assert "delete" not in said


def test_other_images_and_another_teacher_are_told(written: Plan, tmp_path: Path) -> None:
    place = Memory()
    publish(written.path, place)
    root = read_root(Folder(written.path))
    place.files["zarr.json"] = make_root(root.manifest, "0" * 64, root.teacher).to_bytes()
    assert "holds a store of other images" in refusal(written.path, place)
    place.files["zarr.json"] = make_root(root.manifest, root.samples, {}).to_bytes()
    assert "holds a store with other files of the teacher" in refusal(written.path, place)


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match=r"nothing.zarr does not exist; check the path$"):
        publish(tmp_path / "nothing.zarr", Memory())


def test_another_programs_tables_of_the_same_store_are_put_again(written: Plan, copy: Path) -> None:
    """The index's bytes are not in the digest; only what is here has the hash that is looked for."""
    place = Memory()
    publish(written.path, place)
    table = parquet.read_table(copy / "index.parquet")
    metadata = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    write_sealed(copy / "index.parquet", table, {**metadata, "other": "words"})
    assert (copy / "index.parquet").read_bytes() != place.files["index.parquet"]
    publish(copy, place)
    assert place.files == tree(copy)
