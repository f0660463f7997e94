"""Makes the golden stores of format 1: `python tests/assets/make_golden.py tests/assets/format1`. Run once.

They are never made again: a store of format 1 must open, verify and read the same for ever, and these are the
ones that this is held against. The script stays as the record of how they were made. It refuses a folder that
is there.

Of each store there is also what must be read from it: `<store>.npy`, all tokens as float32 (rows, layers,
tokens, dim), and in `expected.json` digests, tables, statistics and the sha256 of every file.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors.numpy import save_file

from activault.store import (
    Manifest,
    Outcome,
    Preprocessing,
    SourceInfo,
    Store,
    TeacherInfo,
    TokenLayout,
    create_store,
    open_store,
    plan_samples,
)
from activault.store.quantise import PatchMoments
from activault.store.transfer import pull

ROWS, LAYERS, DIM = 21, (0, 2, 3), 8
LAYOUT = TokenLayout(num_cls=1, num_registers=2, grid=(2, 3))
BAD = {
    3: Outcome(status="unreadable", reason="the file cannot be read", content="0" * 32),
    16: Outcome(status="too-large", reason="90,000 x 90,000 pixels", width=90_000, height=90_000),
}
STORES: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16", "license": "cc-by-4.0", "citation": "@misc{golden,\n  year={2026}\n}"},
    "float16": {"dtype": "float16"},
    "float16-plain": {"dtype": "float16", "compression": "none", "shard_rows": 32, "chunk_rows": 32},
    "float32": {"dtype": "float32", "preprocessing": None},
    "int8": {"dtype": "int8"},
    "unfinished": {"dtype": "bfloat16"},
    "some-patches": {
        "dtype": "bfloat16",
        "layout": LAYOUT.model_copy(update={"kept_patches": (0, 2, 5)}),
        "preprocessing": Preprocessing(
            image_size=(28, 42),
            resize=None,
            interpolation="bilinear",
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
            crop_mode="squash",
            orientation="exif",
        ),
        "row_seed": None,
        "details": {
            "autocast": "bfloat16",
            "max_pixels": 1 << 26,
            "compiled": False,
            "scale": 0.5,
            "note": None,
        },
    },
    "mean-patch": {"dtype": "float32", "layout": LAYOUT.model_copy(update={"kept_patches": "mean"})},
}
UNFINISHED_SHARDS = (0, 2)
PARTIAL = {"layers": "2-3", "tokens": "cls,patches", "rows": "8:16"}
INT8_PART = {"rows": "0:8"}
"""Rows that vary less than all of the store they are of, so that they alone are below R2 = 0.999."""


def golden_values() -> np.ndarray:
    """(rows, layers, tokens, dim) float32: spread over powers of two, with small and negative zero values."""
    rng = np.random.default_rng(20_260_101)
    shape = (ROWS, len(LAYERS), LAYOUT.num_tokens, DIM)
    values = rng.standard_normal(shape, dtype=np.float32) * np.exp2(rng.integers(-2, 3, DIM)).astype(
        np.float32
    )
    values[0, 0, 0, :3] = (0.0, -0.0, 1.0 + 2.0**-8)  # a tie that bfloat16 rounds to even
    return values


def make_manifest(values: np.ndarray, changes: dict[str, Any]) -> Manifest:
    patches = LAYOUT.span("patches")
    steps = []
    for place in range(len(LAYERS)):
        moments = PatchMoments(DIM)
        moments.add(np.ascontiguousarray(values[:, place, patches]))
        steps.append(moments.quantisation(ROWS))
    fields: dict[str, Any] = {
        "num_rows": ROWS,
        "layers": LAYERS,
        "kinds": LAYOUT.kinds,
        "layout": LAYOUT,
        "quantisation": tuple(steps) if changes["dtype"] == "int8" else None,
        "shard_rows": 8,
        "chunk_rows": 4,
        "teacher": TeacherInfo(
            name="golden",
            architecture="golden",
            weights="made up",
            weights_sha256="0" * 64,
            license="apache-2.0",
            num_blocks=3,
            dim=DIM,
            num_heads=2,
            timm_version="1.0.0",
            torch_version="2.0.0",
        ),
        "preprocessing": Preprocessing(
            image_size=(28, 42),
            resize=32,
            interpolation="bicubic",
            mean=(0.5, 0.4, 0.3),
            std=(0.2, 0.25, 0.3),
        ),
        "source": SourceInfo(kind="folder", name="golden images", fingerprint="f" * 32),
        "row_seed": 7,
    }
    return Manifest(**fields | changes)


def make_samples() -> pa.Table:
    keys = [f"{'test' if row % 5 == 0 else 'train'}/{row:02d} déjà 漢字.jpg" for row in range(ROWS)]
    labels = [None if row % 7 == 6 else ("chat", "chien")[row % 2] for row in range(ROWS)]
    return plan_samples(keys, labels, "golden images")


def write_teacher(folder: Path) -> None:
    """A dummy, but a valid pair of files."""
    save_file({"norm.weight": np.arange(DIM, dtype=np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text('{"info": {"architecture": "golden"}}\n')


def write_store(path: Path, name: str, values: np.ndarray) -> Store:
    manifest = make_manifest(values, STORES[name])
    with create_store(path, manifest, make_samples(), write_teacher) as writer:
        for shard in UNFINISHED_SHARDS if name == "unfinished" else range(manifest.num_shards):
            buffer = writer.buffer(shard)
            for place, layer in enumerate(LAYERS):
                tokens = values[buffer.rows.start : buffer.rows.stop, place]
                buffer.write(layer, 0, kept(tokens, manifest.layout))
            writer.publish(buffer, [BAD.get(row, _ok(row)) for row in buffer.rows])
        if name != "unfinished":
            writer.complete()
    return open_store(path)


def kept(tokens: np.ndarray, layout: TokenLayout) -> np.ndarray:
    """The tokens (rows, tokens, dim) of a layer that a store of this layout has."""
    patches = tokens[:, LAYOUT.span("patches")]
    if layout.kept_patches == "mean":
        patches = patches.mean(axis=1, keepdims=True, dtype=np.float32)
    elif layout.kept_patches is not None:
        patches = patches[:, list(layout.kept_patches)]
    return np.concatenate([tokens[:, : LAYOUT.span("patches").start], patches], axis=1)


def _ok(row: int) -> Outcome:
    return Outcome(status="ok", width=40 + row % 2, height=30, content=f"{row:032x}")


def facts_of(store: Store) -> dict[str, Any]:
    """What must stay the same, beside the values."""
    statistics = {
        f"layer_{layer:02d}/{kind}": {
            "count": (found := store.statistics(layer, kind)).count,
            "mean": found.mean.tolist(),
            "m2": found.m2.tolist(),
            "absmax": found.absmax.tolist(),
        }
        for layer in store.layers
        for kind in store.kinds
    }
    return {
        "digest": store.digest,
        "arrays_digest": store.arrays_digest,
        "complete": store.complete,
        "num_bad": store.num_bad,
        "num_bytes": store.num_bytes,
        "finished_rows": store.finished_rows.tolist(),
        "manifest": store.manifest.model_dump(mode="json"),
        "manifest_sha256": store.manifest.sha256(),
        "samples": store.samples.to_pydict(),
        "statistics": statistics,
    }


def file_hashes(path: Path) -> dict[str, str]:
    """sha256 of every file of a store."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def main(out: Path) -> None:
    if out.exists():
        raise SystemExit(f"{out} is there; golden stores are made once")
    out.mkdir(parents=True)
    values, expected = golden_values(), {}
    for name in STORES:
        write_store(out / f"{name}.zarr", name, values)
    pull(out / "bfloat16.zarr", out / "partial.zarr", **PARTIAL)
    with TemporaryDirectory() as folder:
        flat = np.concatenate([values[:8] / 4, values[8:]])
        write_store(Path(folder) / "int8.zarr", "int8", flat)
        pull(Path(folder) / "int8.zarr", out / "int8-partial.zarr", **INT8_PART)
    for name in (*STORES, "partial", "int8-partial"):
        store = open_store(out / f"{name}.zarr")
        np.save(out / f"{name}.npy", store.read(store.finished_rows, store.layers))
        expected[name] = facts_of(store) | {"files": file_hashes(out / f"{name}.zarr")}
    text = json.dumps(expected, indent=1, ensure_ascii=True, sort_keys=True) + "\n"
    (out / "expected.json").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
