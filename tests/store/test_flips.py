"""Damage of every kind, in every kind of file and dtype: `verify --deep` names it, no read gives it out.

`benchmarks/flips.py` does the same 500 times over.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from activault.store import NotAStoreError, Store, StoreError, open_store, verify_store
from activault.store.codecs import crc32c
from activault.store.manifest import Quantisation

from .conftest import Plan, make_manifest

KINDS = {
    "root": "zarr.json",
    "layer group": "layer_*/zarr.json",
    "array metadata": "layer_*/*/zarr.json",
    "array": "layer_*/*/c/*/0/0",
    "shard index": "layer_*/*/c/*/0/0",
    "record": "shards/*.json",
    "statistics": "shards/*.safetensors",
    "samples": "samples.parquet",
    "index": "index.parquet",
    "teacher": "teacher/*",
}


STEPS = Quantisation(scale=(5 / 128,) * 8, offset=(0.0,) * 8, variance=1.0)


@pytest.fixture(scope="module", params=["bfloat16", "float16", "float32", "int8"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    manifest = make_manifest(
        num_rows=20,
        layers=(0, 2),
        shard_rows=8,
        dtype=request.param,
        quantisation=(STEPS, STEPS) if request.param == "int8" else None,
    )
    plan = Plan(tmp_path_factory.mktemp("flips") / "a.zarr", manifest, frozenset((7,)))
    plan.write()
    return plan


class Reads:
    """What a sound store gives, to hold against what a damaged one gives."""

    def __init__(self, store: Store) -> None:
        self.values = store.read(slice(None), store.layers)
        self.samples = store.samples
        self.statistics = store.statistics(2, "patches")

    def refuse_lies(self, path: Path) -> None:
        """Everything that can be read is what it was, or raises."""
        for reads in (self._values, self._samples, self._statistics):
            try:
                reads(open_store(path))
            except StoreError:
                continue

    def _values(self, store: Store) -> None:
        for first in range(0, len(self.values), store.manifest.chunk_rows):
            rows = slice(first, first + store.manifest.chunk_rows)
            try:
                found = store.read(rows, store.layers)
            except StoreError:
                continue
            assert np.array_equal(found, self.values[rows], equal_nan=True)

    def _samples(self, store: Store) -> None:
        """Rows of a shard whose record cannot be believed are pending, all others what they were."""
        finished = pa.array(np.isin(np.arange(store.num_rows), store.finished_rows))
        assert store.samples.filter(finished).equals(self.samples.filter(finished))
        others = store.samples.filter(pc.invert(finished))["status"].to_pylist()
        assert set(others) <= {"pending"}

    def _statistics(self, store: Store) -> None:
        found = store.statistics(2, "patches")
        assert found == self.statistics or len(store.finished_rows) < store.num_rows


def is_named(path: Path, name: str) -> bool:
    try:
        return name in {fault.where for fault in verify_store(path, deep=True).faults}
    except NotAStoreError:
        return name == "zarr.json"


@pytest.fixture
def damaged(whole: Plan) -> Iterator[Callable[[str, bytes], None]]:
    """Give a file other bytes; what it held comes back at the end."""
    kept: dict[Path, bytes] = {}

    def damage(name: str, content: bytes) -> None:
        kept.setdefault(whole.path / name, (whole.path / name).read_bytes())
        (whole.path / name).write_bytes(content)

    yield damage
    for file, content in kept.items():
        file.write_bytes(content)


@pytest.mark.parametrize("complete", [True, False], ids=["complete", "unfinished"])
def test_no_flipped_byte_goes_unseen_or_is_read(whole: Plan, tmp_path: Path, complete: bool) -> None:
    path = shutil.copytree(whole.path, tmp_path / "a.zarr")
    if not complete:
        (path / "index.parquet").unlink()
    reads, random = Reads(open_store(path)), np.random.default_rng(0)
    for kind, pattern in KINDS.items():
        files = sorted(path.glob(pattern))
        for _ in range(3 if complete else len(files[:1])):
            file = files[random.integers(len(files))]
            content = bytearray(file.read_bytes())
            first = len(content) - 36 if kind == "shard index" else 0  # two entries and a checksum
            place = int(random.integers(first, len(content)))
            content[place] ^= int(random.integers(1, 256))
            sound = file.read_bytes()
            file.write_bytes(content)
            name = file.relative_to(path).as_posix()
            assert is_named(path, name), f"byte {place} of {name}"
            reads.refuse_lies(path)
            file.write_bytes(sound)


HARM: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda _: b"",
    "longer": lambda content: content + b"\0" * 16,
    "zeros in the middle": lambda content: content[:30] + bytes(len(content) - 60) + content[-30:],
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_no_other_harm_goes_unseen_or_is_read(
    whole: Plan, harm: Callable[[bytes], bytes], damaged: Callable[[str, bytes], None]
) -> None:
    reads = Reads(open_store(whole.path))
    for pattern in dict.fromkeys(KINDS.values()):
        file = sorted(whole.path.glob(pattern))[-1]
        sound = file.read_bytes()
        name = file.relative_to(whole.path).as_posix()
        if harm(sound) == sound:
            continue
        damaged(name, harm(sound))
        assert is_named(whole.path, name), name
        reads.refuse_lies(whole.path)
        damaged(name, sound)


SWAPPED = {
    "shards of an array": ("layer_00/patches/c/0/0/0", "layer_00/patches/c/1/0/0"),
    "layers of a shard": ("layer_00/cls/c/1/0/0", "layer_02/cls/c/1/0/0"),
    "statistics": ("shards/00000.stats.safetensors", "shards/00001.stats.safetensors"),
    "records": ("shards/00000.json", "shards/00001.json"),
    "tables": ("samples.parquet", "index.parquet"),
    "array metadata": ("layer_00/cls/zarr.json", "layer_00/patches/zarr.json"),
    "teacher": ("teacher/config.json", "teacher/model.safetensors"),
}


@pytest.mark.parametrize(("one", "other"), SWAPPED.values(), ids=SWAPPED)
def test_swapped_files_are_both_named(
    whole: Plan, one: str, other: str, damaged: Callable[[str, bytes], None]
) -> None:
    """Whole array files of one size, each right in itself, are the one thing that only `--deep` finds."""
    reads = Reads(open_store(whole.path))
    contents = [(whole.path / name).read_bytes() for name in (one, other)]
    damaged(one, contents[1])
    damaged(other, contents[0])
    assert is_named(whole.path, one)
    assert is_named(whole.path, other)
    if "/c/" not in one or len(contents[0]) != len(contents[1]):
        reads.refuse_lies(whole.path)


def test_chunks_that_are_swapped_with_every_checksum_right_are_named(plan: Plan) -> None:
    plan.write()
    file = plan.path / "layer_00/cls/c/0/0/0"
    content = bytearray(file.read_bytes())
    index = np.frombuffer(bytes(content[-68:-4]), "<u8").reshape(4, 2)
    swapped = index[[1, 0, 2, 3]]
    content[-68:-4] = swapped.tobytes()
    content[-4:] = crc32c(swapped.tobytes()).to_bytes(4, "little")
    file.write_bytes(content)
    assert is_named(plan.path, "layer_00/cls/c/0/0/0")
