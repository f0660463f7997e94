"""Which patches are kept: what the words mean, and that the store reads back what was selected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from activault.extract import extract
from activault.extract.backbone import Backbone, load_backbone, load_teacher
from activault.extract.run import ExtractOptions
from activault.extract.tokens import KeptPatches, kept_tokens, parse_patches
from activault.store import (
    ConfigError,
    StoreMismatchError,
    TokenLayout,
    WeightsError,
    open_store,
    verify_store,
)
from activault.store.layout import TokenKind, require_all_tokens

from .conftest import MakeFolder, changed


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("all", None),
        ("mean", "mean"),
        ("every:1", None),
        ("every:5", (0, 5, 10)),
        ("every:12", (0,)),
        ("random:12", None),
    ],
)
def test_words(text: str, kept: KeptPatches) -> None:
    assert parse_patches(text, (3, 4), seed=0) == kept


def test_random_patches_are_drawn_by_the_seed_and_ascend() -> None:
    drawn = [parse_patches("random:20", (16, 16), seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert isinstance(drawn[0], tuple)
    assert list(drawn[0]) == sorted(set(drawn[0]))
    assert len(drawn[0]) == 20


def test_random_patches_come_from_the_whole_grid() -> None:
    counts = np.zeros(16)
    for seed in range(400):
        counts[list(parse_patches("random:4", (4, 4), seed) or ())] += 1
    assert counts.min() > 60
    assert counts.max() < 140


@pytest.mark.parametrize(
    "text", ["some", "every", "every:0", "every:-1", "random:x", "random:13", "mean:2", ""]
)
def test_words_that_mean_nothing(text: str) -> None:
    with pytest.raises(ConfigError, match=r"patches are all, mean, every:N or random:N|has 12 patches; got"):
        parse_patches(text, (3, 4), seed=0)


@pytest.mark.parametrize("kept", [None, "mean", (0, 3, 5)], ids=str)
@pytest.mark.parametrize("prefix", [(1, 0), (1, 4), (0, 0)], ids=str)
def test_selection(kept: KeptPatches, prefix: tuple[int, int]) -> None:
    layout = TokenLayout(num_cls=prefix[0], num_registers=prefix[1], grid=(2, 3), kept_patches=kept)
    tokens = torch.randn(2, sum(prefix) + 6, 8)
    found, patches = kept_tokens(tokens, layout), tokens[:, sum(prefix) :]
    assert found.shape == (2, layout.num_tokens, 8)
    assert torch.equal(found[:, : sum(prefix)], tokens[:, : sum(prefix)])
    expected = {None: patches, "mean": patches.mean(1, keepdim=True)}
    wanted = expected[kept] if not isinstance(kept, tuple) else patches[:, list(kept)]
    assert torch.equal(found[:, sum(prefix) :], wanted)


@pytest.mark.parametrize("kept", [None, "mean", (0, 3, 5)], ids=str)
@pytest.mark.parametrize("kinds", [("cls",), ("registers",), ("patches",), ("cls", "patches")], ids="-".join)
def test_kinds_are_selected_with_the_patches(kinds: tuple[TokenKind, ...], kept: KeptPatches) -> None:
    layout = TokenLayout(num_cls=1, num_registers=4, grid=(2, 3), kept_patches=kept)
    tokens = torch.randn(2, 11, 8)
    whole = kept_tokens(tokens, layout)
    expected = torch.cat([whole[:, layout.span(kind)] for kind in kinds], dim=1)
    assert torch.equal(kept_tokens(tokens, layout, kinds), expected)


def test_a_cls_token_is_looked_at_where_it_is() -> None:
    layout, tokens = TokenLayout(num_cls=1, num_registers=4, grid=(2, 3)), torch.randn(2, 11, 8)
    assert kept_tokens(tokens, layout, ("cls",)).data_ptr() == tokens.data_ptr()


def test_the_mean_is_taken_in_float32() -> None:
    """In bfloat16 the sum of 1,024 values near 1 would lose its last digits."""
    layout = TokenLayout(num_cls=1, num_registers=0, grid=(32, 32), kept_patches="mean")
    tokens = (1 + torch.rand(1, 1025, 4) / 100).bfloat16()
    exact = tokens[:, 1:].double().mean(1)
    assert (kept_tokens(tokens, layout)[:, 1] - exact).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("patches", ["mean", "every:2", "random:3"])
def test_a_store_reads_back_what_was_selected(
    patches: str, dtype: str, make_folder: MakeFolder, options: ExtractOptions, tiny: Backbone, tmp_path: Path
) -> None:
    images = make_folder(9)
    whole, part = tmp_path / "whole.zarr", tmp_path / "part.zarr"
    extract(images, whole, changed(options, dtype="float32"))
    extract(images, part, changed(options, dtype=dtype, patches=patches))
    all_of, some = open_store(whole), open_store(part)
    kept = parse_patches(patches, tiny.layout.grid, 0)
    assert some.manifest.layout.kept_patches == kept
    everything = all_of.read(slice(0, 9), (0, 6), tokens="patches")
    if kept == "mean":
        expected = everything.mean(axis=2, keepdims=True)
    else:
        assert isinstance(kept, tuple)
        expected = everything[:, :, list(kept)]
    tolerance = {"float32": 1e-6, "bfloat16": 1e-2, "int8": 0.2}[dtype]
    np.testing.assert_allclose(
        some.read(slice(0, 9), (0, 6), tokens="patches"), expected, atol=tolerance, rtol=tolerance
    )
    own_cls, their_cls = (held.read(slice(0, 9), (0, 6), tokens="cls") for held in (some, all_of))
    np.testing.assert_allclose(own_cls, their_cls, rtol=0.01, atol=0.01)
    assert verify_store(part, deep=True, complete=True).ok
    with pytest.raises(ConfigError, match="made without most patches"):
        require_all_tokens(some.layout, some.manifest.kinds, "training")


def test_a_choice_of_patches_is_part_of_the_request(
    make_folder: MakeFolder, options: ExtractOptions, tmp_path: Path
) -> None:
    images, store = make_folder(9), tmp_path / "s.zarr"
    extract(images, store, changed(options, patches="random:3"))
    with pytest.raises(StoreMismatchError, match=r"patches is '3 places .* there and '2 places"):
        extract(images, store, changed(options, patches="random:2"))


def test_patches_of_a_store_without_patches_are_refused(
    make_folder: MakeFolder, options: ExtractOptions, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="patches are mean, but tokens are cls, without patches"):
        extract(make_folder(3), tmp_path / "s.zarr", changed(options, patches="mean", tokens="cls"))


def test_a_store_without_its_teachers_weights(
    make_folder: MakeFolder, options: ExtractOptions, tiny_weights: Path, tmp_path: Path
) -> None:
    extract(make_folder(3), tmp_path / "s.zarr", changed(options, teacher_weights=False))
    store = open_store(tmp_path / "s.zarr")
    assert [path.name for path in store.teacher_dir.iterdir()] == ["config.json"]
    assert verify_store(tmp_path / "s.zarr", deep=True, complete=True).ok
    with pytest.raises(WeightsError, match=store.manifest.teacher.weights_sha256):
        load_teacher(store.teacher_dir)
    assert load_teacher(store.teacher_dir, weights=tiny_weights).info == store.manifest.teacher


@pytest.mark.usefixtures("small_models")
def test_a_rotary_teacher_travels_with_its_store(make_folder: MakeFolder, tmp_path: Path) -> None:
    from activault.extract.backbone import save_teacher

    weights = tmp_path / "weights"
    weights.mkdir()
    save_teacher(load_backbone("vit_base_patch16_dinov3", image_size=32, random_seed=0), weights)
    options = ExtractOptions(
        teacher="vit_base_patch16_dinov3",
        weights=weights / "model.safetensors",
        image_size=(32, 48),
        dtype="float32",
        device="cpu",
        workers=1,
    )
    extract(make_folder(3), tmp_path / "s.zarr", options)
    store = open_store(tmp_path / "s.zarr")
    assert store.layout.num_registers == 4
    teacher = load_teacher(store.teacher_dir)
    assert teacher.rotary is not None
    assert (teacher.layout, teacher.info) == (store.layout, store.manifest.teacher)
    tokens = torch.from_numpy(store.read(slice(0, 3), range(4)))
    for layer, block in enumerate(teacher.blocks):
        with torch.inference_mode():
            torch.testing.assert_close(block(tokens[:, layer]), tokens[:, layer + 1], rtol=1e-5, atol=1e-5)
    assert verify_store(tmp_path / "s.zarr", deep=True, complete=True).ok
