"""A store of any number of rows: tables of full size, arrays only where they are read.

The manifest, sample table, records and index are those of a ViT-B/14 with 4 registers at 224 pixels: 13
layers of 3 kinds, its shards and its chunks. Only the width of a token is 8 instead of 768, so that the few
shards that are really written take no room. All other records are of shards that do not exist, made after a
real one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from activault.store import (
    ActivationLoader,
    Manifest,
    Outcome,
    Preprocessing,
    SourceInfo,
    StoreWriter,
    TeacherInfo,
    TokenLayout,
    choose_grid,
    create_store,
    open_store,
    plan_samples,
)
from activault.store.completion import write_completion
from activault.store.files import canonical_json, xxh3
from activault.store.records import record_path, statistics_path
from activault.store.root import read_root
from activault.store.storage import Folder

REAL_DIM: Final = 768
DIM: Final = 8
SPAN: Final = range(8)
BATCH_ROWS: Final = 64
_BAD_EVERY: Final = 99_991
"""A prime: bad rows fall anywhere in a shard."""
_READ_AHEAD: Final = 3
"""Pools that are really there: the first batch's, and what is read ahead meanwhile."""


def manifest(num_rows: int) -> Manifest:
    """What a ViT-B/14 with registers over ImageNet-like images would have, 8 wide."""
    layout = TokenLayout(num_cls=1, num_registers=4, grid=(16, 16))
    shard_rows, chunk_rows = choose_grid(
        num_rows=num_rows, layout=layout, kinds=layout.kinds, num_layers=13, dim=REAL_DIM
    )
    name = "vit_base_patch14_reg4_dinov2.lvd142m"
    return Manifest(
        num_rows=num_rows,
        layers=tuple(range(13)),
        kinds=layout.kinds,
        layout=layout,
        dtype="bfloat16",
        shard_rows=shard_rows,
        chunk_rows=chunk_rows,
        teacher=TeacherInfo(
            name=name,
            architecture=name.partition(".")[0],
            weights="none: the values are random",
            weights_sha256="0" * 64,
            license="unknown",
            num_blocks=12,
            dim=DIM,
            num_heads=12,
            timm_version="1",
            torch_version="2",
        ),
        preprocessing=Preprocessing(
            image_size=(224, 224),
            resize=256,
            interpolation="bicubic",
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
        ),
        source=SourceInfo(kind="folder", name="images", fingerprint="0" * 16),
        row_seed=0,
    )


def names(num_rows: int) -> tuple[list[str], list[str | None]]:
    """Keys and labels as ImageNet's are, in a seeded order; one label in a thousand is unknown."""
    classes = [f"n{10_007 * number + 1_440_764:08d}" for number in range(1000)]
    order = np.random.default_rng(0).permutation(num_rows).tolist()
    labels = [classes[row % 1000] for row in order]
    keys = [f"{label}/{label}_{row}.JPEG" for label, row in zip(labels, order, strict=True)]
    return keys, [label if row % 999 else None for label, row in zip(labels, order, strict=True)]


def samples(num_rows: int) -> pa.Table:
    """The sample table as it is planned."""
    return plan_samples(*names(num_rows), "images")


def loader(path: Path) -> ActivationLoader:
    """A training loader whose pools hold as many rows as they would at the real width."""
    return ActivationLoader(
        open_store(path), layers=SPAN, batch_size=BATCH_ROWS, pool_bytes=(1 << 30) * DIM // REAL_DIM
    )


def plan(path: Path, table: pa.Table) -> StoreWriter:
    """The planned store, empty, or as it is there."""
    return create_store(path, manifest(len(table)), table, _no_teacher)


def _no_teacher(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def fill(path: Path, num_rows: int) -> None:
    """Records of all shards; values of the first and of those that the first batch needs."""
    planned, table = open_store(path).manifest, samples(num_rows)
    _publish(path, table, [0])
    _invent(path, planned)
    complete(path, table)
    epoch = loader(path).plan(0)
    chunks = np.concatenate([pool.chunks for pool in epoch.pools[:_READ_AHEAD]])
    _publish(path, table, np.unique(chunks // planned.chunks_per_shard).tolist())


def complete(path: Path, table: pa.Table) -> None:
    """What a writer does once every shard is there; it would first look for the files of all shards."""
    write_completion(path, read_root(Folder(path)), table)


def _publish(path: Path, table: pa.Table, shards: Iterable[int]) -> None:
    random = np.random.default_rng(0)
    with plan(path, table) as writer:
        planned = writer.manifest
        for shard in shards:
            buffer = writer.buffer(shard)
            shape = (len(buffer.rows), planned.layout.num_tokens, DIM)
            for layer in planned.layers:
                buffer.write(layer, 0, random.standard_normal(shape, dtype=np.float32))
            sizes = _sizes(shard, len(buffer.rows))
            bad = dict.fromkeys(_bad_rows(buffer.rows), "truncated")
            outcomes = [
                Outcome(status=bad.get(row, "ok"), width=width, height=height)
                for row, (width, height) in zip(buffer.rows, sizes, strict=True)
            ]
            writer.publish(buffer, outcomes)


def _bad_rows(rows: range) -> list[int]:
    return list(range(-(-rows.start // _BAD_EVERY) * _BAD_EVERY, rows.stop, _BAD_EVERY))


def _sizes(shard: int, count: int) -> list[tuple[int, int]]:
    """Four images in ten are 500 x 375, as in ImageNet; the others are of all sizes."""
    random = np.random.default_rng(shard)
    found = random.integers(300, 600, (count, 2))
    found[random.random(count) < 0.4] = (500, 375)
    return [(int(width), int(height)) for width, height in found]


def _invent(path: Path, planned: Manifest) -> None:
    """Records and statistics files of all shards but the first, as writers make them."""
    known = json.loads((path / record_path(0)).read_text())
    statistics = (path / statistics_path(0)).read_bytes()
    random = np.random.default_rng(2)
    for shard in range(1, planned.num_shards):
        (path / statistics_path(shard)).write_bytes(statistics)
        (path / record_path(shard)).write_bytes(_record(known, planned, shard, random))


def _record(known: dict[str, Any], planned: Manifest, shard: int, random: np.random.Generator) -> bytes:
    rows = planned.shard_range(shard)
    runs: list[list[int]] = []
    for width, height in _sizes(shard, len(rows)):
        if runs and runs[-1][:2] == [width, height]:
            runs[-1][2] += 1
        else:
            runs.append([width, height, 1])
    files = [
        file
        | {"path": file["path"].replace("/c/0/", f"/c/{shard}/")}
        | {name: random.bytes(16).hex() for name in ("hash", "values")}
        for file in known["files"]
    ]
    body = {name: value for name, value in known.items() if name != "checksum"} | {
        "shard": shard,
        "rows": [rows.start, rows.stop],
        "sizes": runs,
        "bad": [[row, "truncated", None] for row in _bad_rows(rows)],
        "files": files,
        "statistics": known["statistics"] | {"path": statistics_path(shard)},
    }
    return canonical_json(body | {"checksum": xxh3(canonical_json(body))})
