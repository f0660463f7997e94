"""Stores of one plan and the same values that are not the same store: never mixed, never overwritten.

Their records say other things of the images, or of the statistics.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from activault.store import CorruptStoreError, Outcome, StoreMismatchError, open_store
from activault.store.completion import write_completion
from activault.store.files import xxh3
from activault.store.merging import merge, plan_merge
from activault.store.root import read_root
from activault.store.storage import Folder
from activault.store.transfer import pull

from .conftest import Plan
from .test_pull import rewrite_record, sound, tree

Change = Callable[[Outcome], Outcome]
SHARD = 1


def known(outcome: Outcome) -> Outcome:
    return replace(outcome, content="1" * 32)


CHANGES: dict[str, tuple[Change, Change]] = {
    "sizes": (lambda each: each, lambda each: replace(each, width=each.width and 1000)),
    "bad": (lambda each: each, lambda each: replace(each, reason=each.reason and "other words")),
    "images": (known, lambda each: replace(each, content="2" * 32)),
}


class Changed(Plan):
    """The same values, with other outcomes in one shard."""

    change: Change

    def outcomes(self, rows: Iterable[int]) -> list[Outcome]:
        rows = list(rows)
        outcomes = super().outcomes(rows)
        in_shard = rows[0] // self.manifest.shard_rows == SHARD
        return [self.change(each) if in_shard else each for each in outcomes]


def write(path: Path, like: Plan, change: Change, shards: Iterable[int] | None = None) -> Path:
    plan = Changed(path, like.manifest, like.bad_rows)
    plan.change = change
    plan.write(shards)
    return path


@pytest.fixture(params=CHANGES)
def twins(request: pytest.FixtureRequest, written: Plan, tmp_path: Path) -> tuple[Path, Path, str]:
    paths = [
        write(tmp_path / f"{name}.zarr", written, change)
        for name, change in zip("ab", CHANGES[request.param], strict=True)
    ]
    stores = [open_store(path) for path in paths]
    assert stores[0].arrays_digest == stores[1].arrays_digest
    assert stores[0].digest != stores[1].digest
    return *paths, request.param


@pytest.mark.parametrize("deep", [False, True], ids=["", "deep"])
def test_another_store_is_not_pulled_over_a_copy(
    twins: tuple[Path, Path, str], tmp_path: Path, deep: bool
) -> None:
    a, b, field = twins
    copy = pull(a, tmp_path / "copy.zarr")
    said = rf"another store of the same plan and values: {field} of shards/00001.json is .* there and .* in "
    with pytest.raises(StoreMismatchError, match=said):
        pull(b, copy, deep=deep)
    assert tree(copy) == tree(a)


def test_another_store_does_not_finish_an_unfinished_copy(
    twins: tuple[Path, Path, str], written: Plan, tmp_path: Path
) -> None:
    _, b, field = twins
    half = write(tmp_path / "half.zarr", written, CHANGES[field][0], [0, 1])
    copy = pull(half, tmp_path / "copy.zarr")
    before = tree(copy)
    with pytest.raises(StoreMismatchError, match="another store"):
        pull(b, copy)
    assert tree(copy) == before


def test_a_part_of_another_store_is_not_pulled_over_a_part(
    twins: tuple[Path, Path, str], tmp_path: Path
) -> None:
    a, b, _ = twins
    copy = pull(a, tmp_path / "copy.zarr", layers="2")
    before = tree(copy)
    with pytest.raises(StoreMismatchError, match="another store"):
        pull(b, copy, layers="2")
    assert tree(copy) == before


def test_a_damaged_record_is_told_from_another_stores(twins: tuple[Path, Path, str], tmp_path: Path) -> None:
    a, b, _ = twins
    copy = pull(a, tmp_path / "copy.zarr")
    record = copy / "shards/00001.json"
    record.write_bytes(record.read_bytes().replace(b'"sizes"', b'"sises"'))
    with pytest.raises(StoreMismatchError, match="another store"):  # the index has it still
        pull(b, copy)
    pull(a, copy)
    assert tree(copy) == tree(a)
    record.write_bytes(record.read_bytes()[:-1])
    (copy / "index.parquet").unlink()
    pull(a, copy)
    assert tree(copy) == tree(a)


@pytest.mark.parametrize("turned", [False, True], ids=["a b", "b a"])
def test_stores_that_differ_are_not_merged(
    twins: tuple[Path, Path, str], tmp_path: Path, turned: bool
) -> None:
    a, b, field = twins
    words = "the contents of the images differ" if field == "images" else f"{field} differ"
    with pytest.raises(StoreMismatchError, match=f"shards/00001.json: {words}"):
        plan_merge([b, a] if turned else [a, b])


def test_parts_that_differ_are_refused_before_anything_is_copied(
    twins: tuple[Path, Path, str], tmp_path: Path
) -> None:
    one = pull(twins[0], tmp_path / "one.zarr", layers="0")
    two = pull(twins[1], tmp_path / "two.zarr", layers="2,4")
    with pytest.raises(StoreMismatchError, match=r"shards/00001.json: .* differ"):
        merge([one, two], tmp_path / "out.zarr")
    assert not (tmp_path / "out.zarr").exists()


@pytest.mark.parametrize("turned", [False, True], ids=["a b", "b a"])
def test_contents_that_one_source_knows_are_kept(written: Plan, tmp_path: Path, turned: bool) -> None:
    known_here = write(tmp_path / "known.zarr", written, known)
    sources = [known_here, written.path] if turned else [written.path, known_here]
    out = merge(sources, tmp_path / "out.zarr")
    assert open_store(out).digest == open_store(known_here).digest


def with_statistics(copy: Path, change: Callable[[dict[str, np.ndarray]], None]) -> Path:
    """Another store, not completed yet, with other statistics of the same files."""
    file = copy / f"shards/{SHARD:05d}.stats.safetensors"
    tensors = load_file(file)
    change(tensors)
    file.write_bytes(data := save(tensors))

    def changed(body: dict[str, Any]) -> None:
        body["statistics"] |= {"bytes": len(data), "hash": xxh3(data)}

    rewrite_record(copy, SHARD, changed)
    return copy


def nudge(tensors: dict[str, np.ndarray]) -> None:
    tensors["layer_02.cls.mean"] += 1e-12


@pytest.mark.parametrize("layers", [None, "2"])
def test_other_statistics_make_another_store(
    written: Plan, copy: Path, tmp_path: Path, layers: str | None
) -> None:
    other = with_statistics(copy, nudge)
    ours = pull(written.path, tmp_path / "ours.zarr", layers)
    before = tree(ours)
    with pytest.raises(
        StoreMismatchError, match=r"statistics of shards/00001.json is \w{32} there and \w{32}"
    ):
        pull(other, ours, layers, deep=True)
    assert tree(ours) == before


def test_other_statistics_are_seen_without_reading_them(written: Plan, copy: Path, tmp_path: Path) -> None:
    other = with_statistics(copy, nudge)
    ours = pull(written.path, tmp_path / "ours.zarr")
    with pytest.raises(StoreMismatchError, match="statistics of shards"):
        pull(other, ours)
    with pytest.raises(StoreMismatchError, match="statistics of the same files differ"):
        plan_merge([written.path, other])


def test_statistics_of_no_array_are_not_dropped_without_a_word(copy: Path, tmp_path: Path) -> None:
    other = with_statistics(copy, lambda tensors: tensors.update({"layer_02.cls.median": np.zeros(8)}))
    with pytest.raises(
        CorruptStoreError, match=r"no others; it has 'layer_02.cls.median'; copy from another"
    ):
        pull(other, tmp_path / "out.zarr")


def test_a_statistics_file_in_another_writers_words_is_copied_as_it_is(copy: Path, tmp_path: Path) -> None:
    """Its header has the tensors in another order: what is in the file is the same, its hash is not."""
    file = copy / f"shards/{SHARD:05d}.stats.safetensors"
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = dict(reversed(json.loads(data[8 : 8 + size]).items()))
    text = json.dumps(header, separators=(",", ":")).encode().ljust(size)
    file.write_bytes(other := data[:8] + text + data[8 + size :])
    assert other != data
    rewrite_record(copy, SHARD, lambda body: body["statistics"].update(hash=xxh3(other)))
    write_completion(copy, read_root(Folder(copy)), open_store(copy).samples)
    out = pull(copy, tmp_path / "out.zarr")
    assert tree(out) == tree(copy)
    sound(out)
    pull(copy, out, deep=True)
    assert tree(out) == tree(copy)
