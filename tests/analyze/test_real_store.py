"""The analyses on a store on disk, not only on what stands in for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from activault.analyze import ReportInputs, analyze_store, store_facts, write_report
from activault.store import (
    Manifest,
    Outcome,
    Preprocessing,
    SourceInfo,
    Store,
    TeacherInfo,
    create_store,
    open_store,
    plan_samples,
)

BAD = 5
ROWS, LAYERS, DIM = 20, 7, 8


def write_teacher(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")


@pytest.fixture(scope="module")
def walk(make_source) -> Any:
    """What the store is made of: the same rows, in memory."""
    source = make_source(rows=ROWS, layers=LAYERS, dim=DIM)
    source.bad = (BAD,)
    return source


@pytest.fixture(scope="module")
def store(walk, tmp_path_factory) -> Store:
    teacher = TeacherInfo(
        name="tiny",
        architecture="vit_tiny",
        weights="random",
        weights_sha256="0" * 64,
        license="unknown",
        num_blocks=LAYERS - 1,
        dim=DIM,
        num_heads=2,
        timm_version="1",
        torch_version="2",
    )
    manifest = Manifest(
        num_rows=ROWS,
        layers=tuple(range(LAYERS)),
        kinds=walk.layout.kinds,
        layout=walk.layout,
        dtype="float32",
        shard_rows=8,
        chunk_rows=4,
        teacher=teacher,
        preprocessing=Preprocessing(
            image_size=(28, 42), resize=28, interpolation="bicubic", mean=(0, 0, 0), std=(1, 1, 1)
        ),
        source=SourceInfo(kind="folder", name="pictures", fingerprint="f" * 16),
        row_seed=0,
    )
    samples = plan_samples([f"{row:02d}.jpg" for row in range(ROWS)], [None] * ROWS, "pictures")
    path = tmp_path_factory.mktemp("stores") / "tiny.zarr"
    with create_store(path, manifest, samples, write_teacher) as writer:
        for shard in writer.unfinished:
            buffer = writer.buffer(shard)
            for layer in range(LAYERS):
                buffer.write(layer, 0, walk.array[buffer.rows.start : buffer.rows.stop, layer])
            outcomes = [
                Outcome(status="empty", reason="empty file")
                if row == BAD
                else Outcome(status="ok", width=9, height=9)
                for row in buffer.rows
            ]
            writer.publish(buffer, outcomes)
        writer.complete()
    return open_store(path)


def test_a_store_gives_what_its_arrays_give(store, walk) -> None:
    found, expected = (analyze_store(each, memory_bytes=40_000) for each in (store, walk))
    assert found.num_rows == ROWS - 1
    np.testing.assert_array_equal(found.teacher.similarity.matrix, expected.teacher.similarity.matrix)
    assert found.teacher.dynamics == expected.teacher.dynamics
    assert found.phases == expected.phases


def test_a_report_of_a_store(store, tmp_path) -> None:
    facts = store_facts(store)
    assert (facts.source, facts.num_rows, facts.num_bad, facts.tokens_per_layer) == ("pictures", ROWS, 1, 9)
    assert facts.float32_bytes == ROWS * LAYERS * 9 * DIM * 4
    analysis = analyze_store(store)
    page = write_report(
        tmp_path, ReportInputs(store=facts, analysis=analysis, cuts=analysis.phases_of(2).cuts)
    )
    assert "vit_tiny on 19 images of pictures at 28 \N{MULTIPLICATION SIGN} 42 pixels" in page.read_text()
