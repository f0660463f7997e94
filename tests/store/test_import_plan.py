"""What the shape of a reference-layout array means, and what is refused because it cannot be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from activault.store import ConfigError
from activault.store.import_plan import ImportOptions, aligned_grid, infer_layers, infer_layout, plan_import
from activault.store.reference import Reference
from activault.store.reference_codec import make_codec
from activault.store.reference_files import ChunkFiles
from activault.store.reference_metadata import ArrayMetadata

MIB = 1 << 20


def reference(shape: tuple[int, ...], chunks: tuple[int, ...] = (128, 1, 261, 768)) -> Reference:
    return Reference(
        path=Path("activations.zarr"),
        metadata=ArrayMetadata(
            shape=shape,  # type: ignore[arg-type]
            chunks=chunks,  # type: ignore[arg-type]
            separator=".",
            fill=None,
            codec=make_codec(None, chunks),
        ),
        files=ChunkFiles(Path("activations.zarr"), ".", (1, 1, 1, 1), {}),
        fingerprint="f",
    )


@pytest.mark.parametrize(
    ("tokens", "said", "expected"),
    [
        (261, {}, (1, 4, (16, 16))),
        (257, {}, (1, 0, (16, 16))),
        (197, {}, (1, 0, (14, 14))),
        (201, {}, (1, 4, (14, 14))),
        (256, {}, (0, 0, (16, 16))),
        (261, {"registers": 4}, (1, 4, (16, 16))),
        (261, {"grid": (16, 16)}, (1, 4, (16, 16))),
        (205, {"grid": (10, 20)}, (1, 4, (10, 20))),
        (200, {"registers": 3}, (1, 3, (14, 14))),
        (200, {"num_cls": 0}, (0, 4, (14, 14))),
        (200, {"num_cls": 0, "registers": 0, "grid": (10, 20)}, (0, 0, (10, 20))),
    ],
)
def test_the_layout_follows_from_the_number_of_tokens(
    tokens: int, said: dict[str, Any], expected: tuple[int, int, tuple[int, int]]
) -> None:
    layout = infer_layout(tokens, ImportOptions(**said))
    assert (layout.num_cls, layout.num_registers, layout.grid) == expected
    assert layout.num_tokens == tokens


def test_an_ambiguous_number_of_tokens_lists_the_possibilities() -> None:
    with pytest.raises(
        ConfigError, match=r"200 tokens can be: 1 CLS \+ 3 registers \+ 14x14, 0 CLS \+ 4 reg"
    ):
        infer_layout(200, ImportOptions())


@pytest.mark.parametrize(
    "said",
    [
        {"registers": 6},
        {"grid": (17, 17)},
        {"grid": (16, 16), "registers": 3},
        {"num_cls": 0, "grid": (1, 262)},
    ],
)
def test_a_layout_that_does_not_fit_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="261 tokens must be CLS"):
        infer_layout(261, ImportOptions(**said))


@pytest.mark.parametrize(
    "said",
    [{"num_cls": 2}, {"registers": -1}, {"heads": 0}, {"grid": (0, 4)}, {"teacher": "\udcff"}],
    ids=lambda said: next(iter(said)),
)
def test_options_are_checked(said: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="got"):
        ImportOptions(**said)


@pytest.mark.parametrize(
    ("count", "text", "expected"),
    [(13, None, tuple(range(13))), (5, "0,3,6,9,12", (0, 3, 6, 9, 12)), (12, "1-12", tuple(range(1, 13)))],
)
def test_layers_along_the_axis(count: int, text: str | None, expected: tuple[int, ...]) -> None:
    assert infer_layers(count, text) == expected


def test_layers_that_may_lack_the_input_have_to_be_stated() -> None:
    with pytest.raises(ConfigError, match="state --layers 0-11 or --layers 1-12"):
        infer_layers(12, None)


def test_layers_are_as_many_as_the_axis_has() -> None:
    with pytest.raises(ConfigError, match="names each of the array's 13 layers; '0-11' are 12"):
        infer_layers(13, "0-11")


def test_what_nobody_said_is_unknown() -> None:
    manifest = plan_import(reference((1000, 13, 261, 768)), ImportOptions(), (128, 32), None)
    teacher = manifest.teacher
    assert {teacher.name, teacher.weights, teacher.weights_sha256, teacher.license, teacher.timm_version} == {
        "unknown"
    }
    assert (teacher.num_blocks, teacher.dim, teacher.num_heads) == (12, 768, None)
    assert manifest.preprocessing is None
    assert (manifest.source.kind, manifest.source.name) == ("arrays", "activations.zarr")


@pytest.mark.parametrize("buffer", [4096 * MIB, 2048 * MIB, 700 * MIB])
def test_a_shard_is_whole_chunks_of_the_source(buffer: int) -> None:
    shard_rows, chunk_rows = aligned_grid(reference((1_281_167, 13, 261, 768)), ImportOptions(), buffer)
    assert shard_rows % 128 == 0
    assert 128 % chunk_rows == 0
    assert shard_rows * 13 * 261 * 768 * 2 <= buffer


def test_odd_chunks_of_the_source_are_kept_together() -> None:
    rows = 100
    shard_rows, chunk_rows = aligned_grid(
        reference((10_000, 13, 261, 768), (rows, 1, 261, 768)), ImportOptions(), 4096 * MIB
    )
    assert shard_rows % rows == 0
    assert shard_rows % chunk_rows == 0
    assert chunk_rows == 25


def test_a_small_buffer_takes_less_than_a_chunk_of_the_source() -> None:
    shard_rows, _ = aligned_grid(reference((10_000, 13, 261, 768)), ImportOptions(), 400 * MIB)
    assert 0 < shard_rows < 128
