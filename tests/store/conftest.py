"""Small stores of random values: 3 layers, 1 CLS, 2 registers and 2 x 3 patches of width 8."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from activault.store import (
    Manifest,
    Outcome,
    Preprocessing,
    SourceInfo,
    Store,
    StoreWriter,
    TeacherInfo,
    TokenLayout,
    create_store,
    open_store,
    plan_samples,
)
from activault.store.manifest import Quantisation
from activault.store.quantise import PatchMoments

TEACHER = TeacherInfo(
    name="tiny",
    architecture="tiny",
    weights="random",
    weights_sha256="0" * 64,
    license="unknown",
    num_blocks=4,
    dim=8,
    num_heads=2,
    timm_version="1",
    torch_version="2",
)
PREPROCESSING = Preprocessing(
    image_size=(28, 42), resize=28, interpolation="bicubic", mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2)
)


def make_manifest(**changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "num_rows": 50,
        "layers": (0, 2, 4),
        "kinds": ("cls", "registers", "patches"),
        "layout": TokenLayout(num_cls=1, num_registers=2, grid=(2, 3)),
        "dtype": "bfloat16",
        "shard_rows": 16,
        "chunk_rows": 4,
        "teacher": TEACHER,
        "preprocessing": PREPROCESSING,
        "source": SourceInfo(kind="folder", name="images", fingerprint="f" * 16),
        "row_seed": 0,
    }
    fields |= changes
    if fields["dtype"] == "int8" and "quantisation" not in fields:
        fields["quantisation"] = quantisation_of(fields)
    return Manifest(**fields)


def normal_values(num_rows: int, num_layers: int, layout: TokenLayout, dim: int) -> np.ndarray:
    """(rows, layers, tokens, dim), the same for the same shape."""
    shape = (num_rows, num_layers, layout.num_tokens, dim)
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def quantisation_of(fields: Mapping[str, Any]) -> list[Quantisation]:
    """Steps for the values that a plan of these fields is made of."""
    layout, dim = fields["layout"], fields["teacher"].dim
    values = normal_values(fields["num_rows"], len(fields["layers"]), layout, dim)
    found = []
    for place in range(len(fields["layers"])):
        moments = PatchMoments(dim)
        moments.add(values[:, place, layout.span("patches")])
        found.append(moments.quantisation(fields["num_rows"]))
    return found


def make_samples(num_rows: int) -> pa.Table:
    labels = [None if row == 3 else f"class {row % 3}" for row in range(num_rows)]
    return plan_samples([f"folder/{row:03d}.jpg" for row in range(num_rows)], labels, "images")


def write_teacher(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(range(256)))


@dataclass
class Plan:
    """A store that is to be made, and the values that it is made of."""

    path: Path
    manifest: Manifest
    bad_rows: frozenset[int] = frozenset()
    values: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        manifest = self.manifest
        self.values = normal_values(manifest.num_rows, len(manifest.layers), manifest.layout, manifest.dim)
        self.samples = make_samples(manifest.num_rows)

    def open(self) -> StoreWriter:
        return create_store(self.path, self.manifest, self.samples, write_teacher)

    def outcomes(self, rows: Iterable[int]) -> list[Outcome]:
        bad = Outcome(status="truncated", reason="image file is truncated")
        return [
            bad if row in self.bad_rows else Outcome(status="ok", width=40 + row % 2, height=30)
            for row in rows
        ]

    def publish(self, writer: StoreWriter, shard: int) -> None:
        buffer = writer.buffer(shard)
        for place, layer in enumerate(self.manifest.layers):
            buffer.write(layer, 0, self.values[buffer.rows.start : buffer.rows.stop, place])
        writer.publish(buffer, self.outcomes(buffer.rows))

    def write(self, shards: Iterable[int] | None = None) -> Store:
        """Write the given shards, or all of them and complete the store."""
        with self.open() as writer:
            for shard in writer.unfinished if shards is None else shards:
                self.publish(writer, shard)
            if shards is None:
                writer.complete()
        return open_store(self.path)

    @property
    def stored(self) -> np.ndarray:
        """What a reader must get, by torch's own cast."""
        import torch

        casts = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
        values = torch.from_numpy(self.values)
        expected = values.to(casts.get(self.manifest.dtype, torch.bfloat16)).float().numpy().copy()
        for place, quantisation in enumerate(self.manifest.quantisation or ()):
            scale, offset = (np.array(part, np.float32) for part in (quantisation.scale, quantisation.offset))
            patches = self.manifest.layout.span("patches")
            codes = np.rint((self.values[:, place, patches] - offset) / scale).clip(-127, 127)
            expected[:, place, patches] = codes * scale + offset
        expected[sorted(self.bad_rows)] = np.nan
        return expected


MakePlan = Callable[..., Plan]


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test cuts the power, and waiting for the disk took half of their time; killed writers do sync."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def make_plan(tmp_path: Path) -> MakePlan:
    def make(name: str = "a.zarr", bad_rows: Iterable[int] = (), **changes: Any) -> Plan:
        return Plan(tmp_path / name, make_manifest(**changes), frozenset(bad_rows))

    return make


@pytest.fixture
def plan(make_plan: MakePlan) -> Plan:
    return make_plan(bad_rows=(7, 20))


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A complete store, written once; not to be changed."""
    plan = Plan(tmp_path_factory.mktemp("written") / "a.zarr", make_manifest(), frozenset((7, 20)))
    plan.write()
    return plan


@pytest.fixture
def store(written: Plan) -> Store:
    return open_store(written.path)


@pytest.fixture
def copy(written: Plan, tmp_path: Path) -> Path:
    """The same store, to be damaged."""
    return shutil.copytree(written.path, tmp_path / "copy.zarr")
