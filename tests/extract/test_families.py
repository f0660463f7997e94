"""Every family of teachers, on random weights: layers are timm's own, and blocks stand by themselves."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from activault.extract.architectures import architecture_of, build, license_of, outline
from activault.extract.backbone import Backbone, load_backbone, load_teacher, save_teacher
from activault.store import ConfigError
from activault.train.blocks import RecurrentBlock
from activault.train.teacher_init import mlp_width, teacher_tensors

FAMILIES = {
    "dinov2": ("vit_base_patch14_dinov2", 14, (1, 0)),
    "dinov2-registers": ("vit_base_patch14_reg4_dinov2", 14, (1, 4)),
    "dinov3": ("vit_base_patch16_dinov3", 16, (1, 4)),
    "dinov3-biases": ("vit_base_patch16_dinov3_qkvb", 16, (1, 4)),
    "siglip2": ("vit_base_patch16_siglip_224.v2_webli", 16, (0, 0)),
    "clip": ("vit_base_patch16_clip_quickgelu_224.openai", 16, (1, 0)),
    "mae": ("vit_base_patch16_224.mae", 16, (1, 0)),
    "deit3": ("deit3_base_patch16_224", 16, (1, 0)),
    "augreg": ("vit_base_patch16_224.augreg_in21k", 16, (1, 0)),
    "eva02": ("eva02_base_patch14_224", 14, (1, 0)),
    "eva02-fused": ("eva02_small_patch14_224", 14, (1, 0)),
    "eva02-clip": ("eva02_base_patch16_clip_224", 16, (1, 0)),
    "rope-per-block": ("vit_base_patch16_rope_mixed_224", 16, (1, 0)),
}
ROTARY = ("dinov3", "dinov3-biases", "eva02", "eva02-fused", "eva02-clip", "rope-per-block")
POOLED = ("eva02", "eva02-fused")
"""Those whose final norm timm applies behind the pooling."""
PARTS = {
    "dinov2": ("vit_{}_patch14_dinov2", ("small", "base", "large")),
    "dinov2-registers": ("vit_{}_patch14_reg4_dinov2", ("small", "base", "large")),
    "dinov3": ("vit_{}_patch16_dinov3", ("small", "base", "large")),
    "siglip2": ("vit_{}_patch16_siglip_256", ("base", "large")),
    "clip-base": ("vit_{}_patch16_clip_224", ("base",)),
    "clip-large": ("vit_{}_patch14_clip_224", ("large",)),
    "mae": ("vit_{}_patch16_224.mae", ("base", "large")),
    "deit3": ("deit3_{}_patch16_224", ("small", "base", "large")),
    "augreg": ("vit_{}_patch16_224.augreg_in21k", ("small", "base", "large")),
    "eva02": ("eva02_{}_patch14_224", ("small", "base", "large")),
}
SIZES = {"small": (12, 384, 6), "base": (12, 768, 12), "large": (24, 1024, 16)}
"""Blocks, width and heads, as the papers have them."""


def images(backbone: Backbone, count: int = 2) -> Tensor:
    size = (count, 3, *backbone.preprocessing.image_size)
    return torch.randn(size, generator=torch.Generator().manual_seed(1))


@torch.inference_mode()
def timms_layers(backbone: Backbone, batch: Tensor) -> list[Tensor]:
    """Layers 1 on as timm gives them, its own order of tokens."""
    options = {"output_fmt": "NLC", "norm": False, "intermediates_only": True}
    if not backbone.vit.num_prefix_tokens:
        return list(backbone.vit.forward_intermediates(batch, **options))
    given = backbone.vit.forward_intermediates(batch, return_prefix_tokens=True, **options)
    return [torch.cat([prefix, patches], dim=1) for patches, prefix in given]


@pytest.mark.usefixtures("small_models")
@pytest.mark.parametrize("scale", [(0, 0), (3, 3), (2, 5)], ids=["native", "other", "not-square"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_layers_are_timms_own_bit_for_bit(family: str, scale: tuple[int, int]) -> None:
    name, patch, prefix = FAMILIES[family]
    native = tuple(build(architecture_of(name)).patch_embed.img_size)
    size = (scale[0] * patch, scale[1] * patch) if scale[0] else native
    backbone = load_backbone(name, image_size=size, random_seed=0)
    layout = backbone.layout
    assert (layout.num_cls, layout.num_registers) == prefix
    assert layout.grid == (size[0] // patch, size[1] // patch)
    batch = images(backbone)
    ours = dict(backbone.layers(batch, range(backbone.num_blocks + 1)))
    assert ours[0].shape == (2, layout.num_tokens, backbone.dim)
    for layer, tokens in enumerate(timms_layers(backbone, batch), start=1):
        assert torch.equal(ours[layer], tokens)
        assert torch.equal(backbone.blocks[layer - 1](ours[layer - 1]), tokens)
        assert tokens.isfinite().all()
    final = backbone.vit.forward_features(batch)
    assert torch.equal(
        backbone.norm(ours[layer]), final if family not in POOLED else backbone.vit.fc_norm(final)
    )


@pytest.mark.usefixtures("small_models")
def test_the_final_norm_of_a_pooling_model_is_the_one_that_its_weights_have(tmp_path: Path) -> None:
    """EVA-02's pre-training puts its norm on every token; timm keeps it as `fc_norm`, behind the pooling."""
    backbone = load_backbone("eva02_base_patch14_224", image_size=28, random_seed=0)
    tensors = backbone.tensors()
    published = {name: tensor for name, tensor in tensors.items() if not name.startswith("fc_norm.")}
    published |= {"mask_token": torch.zeros(1, 1, 32), "norm.weight": torch.full((32,), 3.0)}
    save_file(published | {"norm.bias": torch.full((32,), 7.0)}, tmp_path / "mim.safetensors")
    teacher = load_backbone("eva02_base_patch14_224", image_size=28, weights=tmp_path / "mim.safetensors")
    normed = teacher.norm(torch.randn(2, 5, 32))
    torch.testing.assert_close(normed.mean(-1), torch.full((2, 5), 7.0), rtol=0, atol=1e-4)
    torch.testing.assert_close(normed.std(-1, correction=0), torch.full((2, 5), 3.0), rtol=0, atol=1e-4)
    (tmp_path / "teacher").mkdir()
    save_teacher(teacher, tmp_path / "teacher")
    again = load_teacher(tmp_path / "teacher")
    assert torch.equal(again.norm(torch.ones(1, 1, 32)), torch.full((1, 1, 32), 7.0))


@pytest.mark.usefixtures("small_models")
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_a_row_is_the_same_wherever_it_stands_in_the_batch(family: str) -> None:
    name, patch, _ = FAMILIES[family]
    backbone = load_backbone(name, image_size=(2 * patch, 3 * patch), random_seed=0)
    batch, order = images(backbone, 4), torch.tensor([2, 0, 3, 1])
    for (_, once), (_, again) in zip(
        backbone.layers(batch, range(4)), backbone.layers(batch[order], range(4)), strict=True
    ):
        assert torch.equal(once[order], again)


@pytest.mark.usefixtures("small_models")
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_tokens_stand_in_the_stores_order(family: str) -> None:
    """CLS, registers, patches: told apart by giving each kind a value of its own."""
    name, patch, (num_cls, num_registers) = FAMILIES[family]
    backbone = load_backbone(name, image_size=(2 * patch, 3 * patch), random_seed=0)
    vit = backbone.vit
    for parameter in (vit.pos_embed, vit.patch_embed.proj.weight, vit.patch_embed.proj.bias):
        if parameter is not None:
            parameter.zero_()
    vit.norm_pre = torch.nn.Identity()
    if num_cls:
        vit.cls_token.fill_(1)
    if num_registers:
        vit.reg_token.fill_(2)
    tokens = backbone.embed(images(backbone, 1))[0, :, 0].tolist()
    assert tokens == [1.0] * num_cls + [2.0] * num_registers + [0.0] * 6


@pytest.mark.usefixtures("small_models")
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_a_teacher_comes_back_from_its_files(family: str, tmp_path: Path) -> None:
    name, patch, _ = FAMILIES[family]
    backbone = load_backbone(name, image_size=(2 * patch, 3 * patch), random_seed=0)
    save_teacher(backbone, tmp_path)
    assert (tmp_path / "rotary.safetensors").is_file() == (family in ROTARY)
    again, batch = load_teacher(tmp_path), images(backbone)
    assert (again.info, again.layout) == (backbone.info, backbone.layout)
    for (_, ours), (_, theirs) in zip(
        again.layers(batch, range(4)), backbone.layers(batch, range(4)), strict=True
    ):
        assert torch.equal(ours, theirs)


class Operations(TorchDispatchMode):
    """Names of what torch does meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = set[str]()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen.add(function.__name__.partition(".")[0])
        return function(*args, **(kwargs or {}))


def test_an_outline_cuts_and_scales_no_values() -> None:
    """On tensors without memory torch would do it in Python, for seconds with a large model."""
    outline.cache_clear()
    with Operations() as operations:
        vit = outline("vit_tiny_patch16_224")
    assert all(parameter.is_meta for parameter in vit.parameters())
    assert "empty" in operations.seen
    assert not {"erfinv_", "clamp_", "mul_"} & operations.seen


@pytest.mark.parametrize("family", PARTS)
def test_the_real_sizes(family: str) -> None:
    """The models that timm registers, built without memory."""
    pattern, sizes = PARTS[family]
    for size in sizes:
        vit = outline(architecture_of(pattern.format(size)))
        assert (len(vit.blocks), vit.embed_dim, vit.blocks[0].attn.num_heads) == SIZES[size]


@pytest.mark.parametrize(
    ("name", "license_"),
    [
        ("vit_base_patch14_dinov2.lvd142m", "Apache-2.0"),
        ("vit_base_patch16_224.mae", "CC-BY-NC-4.0"),
        ("eva02_base_patch14_224.mim_in22k", "MIT"),
        ("vit_base_patch16_siglip_224.v2_webli", "Apache-2.0"),
    ],
)
def test_licences_are_those_that_timm_records(name: str, license_: str) -> None:
    assert license_of(name) == license_


def test_dinov3_has_a_licence_of_its_own() -> None:
    assert "dinov3" in license_of("vit_base_patch16_dinov3.lvd1689m")


@pytest.mark.usefixtures("small_models")
def test_blocks_can_be_trained_through_and_copied() -> None:
    """Training and interventions call them with gradients on tokens, on their own copies."""
    backbone = load_backbone("vit_base_patch16_dinov3", image_size=32, random_seed=0)
    block = copy.deepcopy(backbone.blocks[0]).requires_grad_(True)
    tokens = torch.randn(1, backbone.layout.num_tokens, 32, requires_grad=True)
    block(tokens).sum().backward()
    assert tokens.grad is not None
    assert all(parameter.grad is not None for parameter in block.parameters())


@pytest.mark.usefixtures("small_models")
@pytest.mark.parametrize("family", [*ROTARY, "clip"])
def test_what_raptors_block_cannot_copy_it_refuses(family: str) -> None:
    name, patch, _ = FAMILIES[family]
    blocks = list(load_backbone(name, image_size=2 * patch, random_seed=0).blocks)
    own = RecurrentBlock(32, 2, mlp_width=mlp_width(blocks, gated=False), eps=1e-5)
    with pytest.raises(ConfigError, match="init = 'random'"):
        teacher_tensors(blocks[0], own, 1e-5)


@pytest.mark.usefixtures("small_models")
@pytest.mark.parametrize(
    "name", ["vit_base_patch16_xp_224", "vit_small_patch16_18x2_224", "eva_giant_patch14_224"]
)
@torch.inference_mode()
def test_blocks_of_other_kinds(name: str, tmp_path: Path) -> None:
    """Parallel branches, EVA's first blocks: no room of the adapter looks into them."""
    backbone = load_backbone(name, image_size=(28, 42) if "14" in name else (32, 48), random_seed=0)
    assert backbone.num_heads == 2
    batch = images(backbone)
    ours = dict(backbone.layers(batch, range(4)))
    assert all(torch.equal(ours[n], t) for n, t in enumerate(timms_layers(backbone, batch), start=1))
    save_teacher(backbone, tmp_path)
    assert torch.equal(dict(load_teacher(tmp_path).layers(batch, [3]))[3], ours[3])
