"""One thread, and tiny stores made through the store's own writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from activault.store import Outcome, Store, create_store, open_store, plan_samples
from activault.store.layout import KINDS, TokenLayout
from activault.store.manifest import Manifest
from activault.store.provenance import Preprocessing, SourceInfo, TeacherInfo
from activault.train.recipe import TrainRecipe, parse_recipe
from activault.train.runs import RunSummary, train

DIM, HEADS, NUM_LAYERS = 16, 2, 4
LAYOUT = TokenLayout(num_cls=1, num_registers=1, grid=(2, 2))


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def smooth_layers(num_rows: int, num_tokens: int, num_layers: int = NUM_LAYERS, dim: int = DIM) -> np.ndarray:
    """(layers, rows, tokens, dim): every layer a little further along a fixed rotation of the one before."""
    rng = np.random.default_rng(5)
    turn = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    layers = [rng.normal(size=(num_rows, num_tokens, dim))]
    for _ in range(num_layers):
        layers.append(layers[-1] + 0.4 * np.tanh(layers[-1] @ turn))
    return np.stack(layers).astype(np.float32)


MakeStore = Callable[..., Store]


def store_maker(folder: Path) -> MakeStore:
    """`make(name, tokens=..., labels=..., ...)`: a complete store, float32 unless asked otherwise."""

    def make(
        name: str = "s.zarr",
        *,
        num_rows: int = 40,
        tokens: np.ndarray | None = None,
        labels: Sequence[str | None] | None = None,
        keys: Sequence[str] | None = None,
        layout: TokenLayout = LAYOUT,
        layers: Sequence[int] | None = None,
        num_heads: int = HEADS,
        kinds: Sequence[str] | None = None,
        complete: bool = True,
        **changes: Any,
    ) -> Store:
        tokens = smooth_layers(num_rows, layout.num_tokens) if tokens is None else tokens
        num_layers, num_rows, _, dim = tokens.shape
        layers = tuple(range(num_layers)) if layers is None else layers
        labels = [f"class{row % 2}" for row in range(num_rows)] if labels is None else labels
        keys = (
            [f"{'test' if row % 4 == 3 else 'train'}/{row}.png" for row in range(num_rows)]
            if keys is None
            else keys
        )
        manifest = Manifest(
            num_rows=num_rows,
            layers=tuple(layers),
            kinds=tuple(kind for kind in KINDS if kind in (kinds or layout.kinds)),
            layout=layout,
            shard_rows=16,
            chunk_rows=8,
            teacher=TeacherInfo(
                name="tiny",
                architecture="tiny",
                weights="random",
                weights_sha256="0" * 64,
                license="unknown",
                num_blocks=num_layers - 1,
                dim=dim,
                num_heads=num_heads,
                timm_version="1",
                torch_version="2",
            ),
            preprocessing=Preprocessing(
                image_size=(4, 4),
                resize=4,
                interpolation="bicubic",
                mean=(0.5, 0.5, 0.5),
                std=(0.5, 0.5, 0.5),
            ),
            source=SourceInfo(kind="folder", name="none", fingerprint="0"),
            **{"dtype": "float32", "row_seed": 0, **changes},
        )
        path = folder / name
        writer = create_store(path, manifest, plan_samples(keys, labels, "none"), {})
        for shard in writer.unfinished:
            buffer = writer.buffer(shard)
            rows = slice(buffer.rows.start, buffer.rows.stop)
            for layer in layers:
                buffer.write(layer, 0, np.ascontiguousarray(tokens[layer, rows]))
            writer.publish(buffer, [Outcome(status="ok", width=4, height=4)] * len(buffer.rows))
            if not complete:
                break
        if complete:
            writer.complete()
        return open_store(path)

    return make


@pytest.fixture
def make_store(tmp_path: Path) -> MakeStore:
    return store_maker(tmp_path)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One store for all tests that only read."""
    return store_maker(tmp_path_factory.mktemp("store"))()


TINY_STAGE = {
    "steps": 6,
    "batch_size": 8,
    "warmup_steps": 1,
    "learning_rate": 1e-2,
    "checkpoint_every": 2,
    "log_every": 2,
}
MakeRecipe = Callable[..., TrainRecipe]
RunTiny = Callable[..., RunSummary]


@pytest.fixture(scope="session")
def recipe() -> MakeRecipe:
    """`recipe(key=value, ...)`: two phases, a few steps a stage; a stage's table is laid over these."""

    def make(**changes: Any) -> TrainRecipe:
        stages = {name: {**TINY_STAGE, **changes.get(name, {})} for name in ("stage1", "stage2")}
        return parse_recipe({"store": "s", "cuts": [2], **changes, **stages})

    return make


@pytest.fixture(scope="session")
def run(recipe: MakeRecipe) -> RunTiny:
    """`run(out, store, cuts, key=value, ...)`: such a recipe trained on the CPU."""

    def make(
        out: Path, against: Store, cuts: Sequence[int] = (2,), /, *, progress: Any = None, **changes: Any
    ) -> RunSummary:
        return train(recipe(**changes), out, store=against, cuts=cuts, device="cpu", progress=progress)

    return make
