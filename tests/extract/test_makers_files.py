"""Weights under the names that their makers gave them, and teachers whose weights are elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from activault.extract.backbone import load_backbone, load_teacher, save_teacher
from activault.store import WeightsError


@pytest.mark.usefixtures("small_models")
@pytest.mark.parametrize("biased", [False, True], ids=["zero", "not-zero"])
def test_metas_dinov3_files(biased: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under Meta's names: storage tokens, one bias for queries, keys and values, masks beside it."""
    teacher = load_backbone("vit_base_patch16_dinov3", image_size=32, random_seed=0)
    theirs = {}
    for name, tensor in teacher.tensors().items():
        name = name.replace("reg_token", "storage_tokens")
        theirs[name.replace("gamma_1", "ls1.gamma").replace("gamma_2", "ls2.gamma")] = tensor
    for block in range(3):
        theirs[f"blocks.{block}.attn.qkv.bias"] = torch.full((96,), float(biased))
        theirs[f"blocks.{block}.attn.qkv.bias_mask"] = torch.ones(96)
    theirs |= {"mask_token": torch.zeros(1, 32), "rope_embed.periods": torch.ones(4)}
    torch.save(theirs, tmp_path / "meta.pth")
    if biased:
        with pytest.raises(WeightsError, match="take vit_base_patch16_dinov3_qkvb"):
            load_backbone("vit_base_patch16_dinov3", image_size=32, weights=tmp_path / "meta.pth")
    else:
        loaded = load_backbone("vit_base_patch16_dinov3", image_size=32, weights=tmp_path / "meta.pth")
        assert loaded.info.weights_sha256 == teacher.info.weights_sha256
    assert capsys.readouterr().out == ""


def openai_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's CLIP under OpenAI's names, beside a text half."""
    swaps = {
        "patch_embed.proj": "conv1",
        "pos_embed": "positional_embedding",
        "cls_token": "class_embedding",
        "blocks.": "transformer.resblocks.",
        "norm_pre": "ln_pre",
        "attn.qkv.": "attn.in_proj_",
        "attn.proj": "attn.out_proj",
        "mlp.fc1": "mlp.c_fc",
        "mlp.fc2": "mlp.c_proj",
        "norm1": "ln_1",
        "norm2": "ln_2",
        "norm.": "ln_post.",
    }
    theirs = {"token_embedding.weight": torch.zeros(4, 4)}
    for name, tensor in tensors.items():
        for ours, other in swaps.items():
            name = name.replace(ours, other)
        theirs[f"visual.{name}"] = tensor
    theirs["visual.positional_embedding"] = theirs["visual.positional_embedding"][0]
    theirs["visual.class_embedding"] = theirs["visual.class_embedding"][0, 0]
    return theirs


def deit3_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's DeiT III under Meta's names, with its classifier."""
    renamed = {
        n.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): t for n, t in tensors.items()
    }
    return renamed | {"head.weight": torch.zeros(10, 32), "head.bias": torch.zeros(10)}


@pytest.mark.usefixtures("small_models")
@pytest.mark.parametrize(
    ("name", "rename"),
    [("vit_base_patch16_clip_quickgelu_224", openai_names), ("deit3_base_patch16_224", deit3_names)],
    ids=["openai-clip", "meta-deit3"],
)
def test_files_under_their_makers_names(
    name: str, rename: Callable[[dict[str, Tensor]], dict[str, Tensor]], tmp_path: Path
) -> None:
    teacher = load_backbone(name, image_size=32, random_seed=0)
    torch.save(rename(teacher.tensors()), tmp_path / "w.pth")
    loaded = load_backbone(name, image_size=32, weights=tmp_path / "w.pth")
    assert loaded.info.weights_sha256 == teacher.info.weights_sha256


@pytest.mark.usefixtures("small_models")
def test_patches_of_another_size_are_not_resampled_in_silence(tmp_path: Path) -> None:
    save_teacher(load_backbone("vit_base_patch16_224", image_size=32, random_seed=0), tmp_path)
    with pytest.raises(WeightsError, match=r"its patches are \(16, 16\) pixels, and here \(8, 8\)"):
        load_backbone("vit_base_patch8_224", image_size=32, weights=tmp_path / "model.safetensors")


@pytest.mark.usefixtures("small_models")
def test_a_teachers_weights_can_be_left_out(tmp_path: Path) -> None:
    whole, bare, elsewhere = (tmp_path / name for name in ("whole", "bare", "elsewhere"))
    for folder in (whole, bare, elsewhere):
        folder.mkdir()
    backbone = load_backbone("vit_base_patch16_dinov3", image_size=32, random_seed=0)
    save_teacher(backbone, whole)
    save_teacher(backbone, bare, weights=False)
    assert sorted(path.name for path in bare.iterdir()) == ["config.json", "rotary.safetensors"]
    with pytest.raises(WeightsError, match=r"made without its teacher's weights, .* \(random, seed 0; hash "):
        load_teacher(bare)
    again = load_teacher(bare, weights=whole / "model.safetensors")
    assert (again.info, again.preprocessing) == (backbone.info, backbone.preprocessing)
    save_teacher(load_backbone("vit_base_patch16_dinov3", image_size=32, random_seed=1), elsewhere)
    with pytest.raises(WeightsError, match=r"holds other weights \(hash .*\) than the store's, vit_base_"):
        load_teacher(bare, weights=elsewhere / "model.safetensors")
