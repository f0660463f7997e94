"""Weights of Hugging Face transformers: every layer is the one that transformers itself computes.

Tiny random models, saved by their own `save_pretrained`, loaded into timm's architecture of the family.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from activault.extract.backbone import Backbone, load_backbone
from activault.store import WeightsError

transformers = pytest.importorskip("transformers", reason="transformers is in the extra dev")

pytestmark = pytest.mark.usefixtures("small_models")
TOLERANCE = 1e-6
"""Of the largest value; all families but DINOv3 agree to the bit where this was written. The exact GELU in
place of the approximate one gives 2e-5, the GELU in place of CLIP's quick one 8e-3."""
Make = Callable[..., nn.Module]


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def shape(**changes: Any) -> dict[str, Any]:
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 128}
    return {**sizes, "image_size": 56, "patch_size": 14, "layer_norm_eps": 1e-6, **changes}


def dinov2(**changes: Any) -> nn.Module:
    return transformers.Dinov2Model(transformers.Dinov2Config(**shape(**changes)))


def dinov2_registers(**changes: Any) -> nn.Module:
    config = transformers.Dinov2WithRegistersConfig(**shape(num_register_tokens=4, **changes))
    return transformers.Dinov2WithRegistersModel(config)


def dinov3(**changes: Any) -> nn.Module:
    options = {"patch_size": 16, "image_size": 64, "layer_norm_eps": 1e-5, "num_register_tokens": 4}
    options |= {"query_bias": False, "value_bias": False}
    return transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**shape(**{**options, **changes})))


def vit(**changes: Any) -> nn.Module:
    options = {"patch_size": 16, "image_size": 64}
    return transformers.ViTModel(transformers.ViTConfig(**shape(**{**options, **changes})))


def vit_classifier() -> nn.Module:
    config = transformers.ViTConfig(**shape(patch_size=16, image_size=64))
    return transformers.ViTForImageClassification(config)


def mae() -> nn.Module:
    config = transformers.ViTMAEConfig(**shape(patch_size=16, image_size=64, mask_ratio=0.0))
    return transformers.ViTMAEModel(config)


def clip(**changes: Any) -> nn.Module:
    options = {"patch_size": 16, "image_size": 64, "layer_norm_eps": 1e-5}
    return transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**shape(**{**options, **changes})))


def siglip(**changes: Any) -> nn.Module:
    config = transformers.SiglipVisionConfig(**shape(patch_size=16, image_size=64, **changes))
    return transformers.SiglipVisionModel(config)


FAMILIES = [
    pytest.param("vit_small_patch14_dinov2", dinov2, id="dinov2"),
    pytest.param("vit_small_patch14_reg4_dinov2", dinov2_registers, id="dinov2-registers"),
    pytest.param("vit_base_patch16_dinov3", dinov3, id="dinov3"),
    pytest.param(
        "vit_base_patch16_dinov3_qkvb",
        lambda: dinov3(query_bias=True, value_bias=True),
        id="dinov3-biases",
    ),
    pytest.param("vit_base_patch16_224", vit, id="augreg"),
    pytest.param("vit_base_patch16_224", vit_classifier, id="augreg-classifier"),
    pytest.param("vit_base_patch16_224.mae", mae, id="mae"),
    pytest.param("vit_base_patch16_clip_224", lambda: clip(hidden_act="gelu"), id="clip"),
    pytest.param("vit_base_patch16_clip_quickgelu_224", clip, id="clip-quickgelu"),
    pytest.param("vit_base_patch16_siglip_224", siglip, id="siglip"),
    pytest.param("vit_base_patch16_siglip_224", lambda: siglip(hidden_act="gelu"), id="siglip-exact-gelu"),
]


def shaken(model: nn.Module) -> nn.Module:
    """Every parameter random: at the start biases are 0 and scales alike, and hide what is swapped."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=generator)
            if tensor.ndim == 1 and ("norm" in name or "lambda" in name) and not name.endswith("bias"):
                tensor.copy_(1 + 0.3 * noise)
            else:
                tensor.copy_(noise * (0.5 if tensor.ndim != 2 else tensor.shape[-1] ** -0.5))
    return model.eval()


def hidden_states(model: nn.Module, images: Tensor, **options: Any) -> list[Tensor]:
    options["output_hidden_states"] = True
    if model.config.model_type == "vit_mae":
        # Patches are shuffled by noise, and here it rises.
        patches = images.shape[-1] // 16 * (images.shape[-2] // 16)
        options["noise"] = torch.arange(patches).float().repeat(len(images), 1)
    if isinstance(model, transformers.ViTForImageClassification):
        model = model.vit
    return list(model(images, **options).hidden_states)


@torch.inference_mode()
def assert_layers_are(backbone: Backbone, theirs: list[Tensor], images: Tensor) -> None:
    assert len(theirs) == backbone.num_blocks + 1
    for layer, tokens in backbone.layers(images, range(backbone.num_blocks + 1)):
        assert tokens.shape == theirs[layer].shape
        error = (tokens - theirs[layer]).abs().max() / theirs[layer].abs().max()
        assert error < TOLERANCE, f"layer {layer} differs by {error}"


@pytest.mark.parametrize(("architecture", "make"), FAMILIES)
def test_every_layer_is_transformers_own(architecture: str, make: Make, tmp_path: Path) -> None:
    model = shaken(make())
    model.save_pretrained(tmp_path)
    side = getattr(model.config, "vision_config", model.config).image_size
    backbone = load_backbone(architecture, weights=tmp_path, image_size=side)
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        theirs = hidden_states(model, images)
    assert_layers_are(backbone, theirs, images)
    last = theirs[-1]
    norms = {"layernorm", "post_layernorm", "norm"}
    their_norm = next(module for name, module in model.named_modules() if name.split(".")[-1] in norms)
    with torch.inference_mode():
        torch.testing.assert_close(backbone.norm(last), their_norm(last), rtol=1e-5, atol=1e-5)


AS_IT_IS = ["dinov3", "dinov2-registers"]
"""Families whose positions transformers computes, or resamples, as timm does."""
RESAMPLED = ["dinov2", "augreg", "mae", "clip", "siglip"]
"""Families whose positions it resamples without antialiasing: all the rest has to be the same."""
BY_NAME = {str(each.id): each.values for each in FAMILIES}


@pytest.mark.parametrize("grid", [(3, 5), (6, 2), (7, 7)], ids=str)
@pytest.mark.parametrize("family", AS_IT_IS + RESAMPLED)
def test_every_layer_at_other_sizes(
    family: str, grid: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    architecture, make = BY_NAME[family]
    model = shaken(make())
    model.save_pretrained(tmp_path)
    patch, options = model.config.patch_size, dict[str, Any]()
    backbone = load_backbone(architecture, weights=tmp_path, image_size=(grid[0] * patch, grid[1] * patch))
    images = torch.randn(2, 3, *backbone.preprocessing.image_size, generator=torch.Generator().manual_seed(1))
    if family in RESAMPLED:
        resample = torch.nn.functional.interpolate
        monkeypatch.setattr(torch.nn.functional, "interpolate", partial(resample, antialias=True))
        options = {} if family == "dinov2" else {"interpolate_pos_encoding": True}
    with torch.inference_mode():
        theirs = hidden_states(model, images, **options)
    assert_layers_are(backbone, theirs, images)


@pytest.mark.parametrize(
    ("architecture", "gate", "make"),
    [
        (
            "vit_small_plus_patch16_dinov3",
            "fc1_g",
            lambda width: dinov3(use_gated_mlp=True, hidden_act="silu", intermediate_size=width),
        ),
        ("vit_giant_patch14_dinov2", "fc1", lambda _: dinov2(use_swiglu_ffn=True)),
    ],
    ids=["dinov3", "dinov2"],
)
def test_gated_mlps(architecture: str, gate: str, make: Make, tmp_path: Path, monkeypatch: Any) -> None:
    if gate == "fc1":
        # transformers rounds the width up to a multiple of 8, as timm's ratio does at the giant's own width.
        create = timm.create_model
        monkeypatch.setattr(timm, "create_model", lambda *a, **o: create(*a, **{**o, "mlp_ratio": 176 / 32}))
    width = timm.create_model(architecture).blocks[0].mlp.get_submodule(gate).out_features
    model = shaken(make(width))
    model.save_pretrained(tmp_path)
    side = model.config.image_size
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        theirs = hidden_states(model, images)
    assert_layers_are(load_backbone(architecture, weights=tmp_path, image_size=side), theirs, images)


def test_siglip2_takes_flattened_patches(tmp_path: Path) -> None:
    config = transformers.Siglip2VisionConfig(
        **{name: value for name, value in shape(patch_size=16).items() if name != "image_size"},
        num_patches=16,
    )
    model = shaken(transformers.Siglip2VisionModel(config))
    model.save_pretrained(tmp_path)
    backbone = load_backbone("vit_base_patch16_siglip_256", weights=tmp_path, image_size=64)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    rows = images.view(2, 3, 4, 16, 4, 16).permute(0, 2, 4, 3, 5, 1).reshape(2, 16, -1)
    mask, grids = torch.ones(2, 16, dtype=torch.long), torch.tensor([[4, 4], [4, 4]])
    with torch.inference_mode():
        theirs = model(rows, mask, grids, output_hidden_states=True).hidden_states
    assert_layers_are(backbone, list(theirs), images)


def test_the_vision_half_of_a_whole_clip(tmp_path: Path) -> None:
    vision, text = shape(patch_size=16, image_size=64, layer_norm_eps=1e-5), shape(vocab_size=10)
    config = transformers.CLIPConfig(vision_config=vision, text_config=text, projection_dim=8)
    model = shaken(transformers.CLIPModel(config))
    model.save_pretrained(tmp_path)
    backbone = load_backbone("vit_base_patch16_clip_quickgelu_224", weights=tmp_path, image_size=64)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        theirs = hidden_states(transformers.CLIPVisionModel.from_pretrained(tmp_path).eval(), images)
    assert_layers_are(backbone, theirs, images)


@pytest.mark.parametrize("form", ["file", "prefix", "sharded", "bin", "sharded-bin"])
def test_every_form_of_a_folder_gives_the_same_weights(form: str, tmp_path: Path) -> None:
    model = shaken(dinov2())
    whole, other = tmp_path / "whole", tmp_path / "other"
    model.save_pretrained(whole)
    tensors = load_file(whole / "model.safetensors")
    other.mkdir()
    place = other
    if form == "file":
        save_file(tensors, place := other / "teacher.safetensors")
    elif form == "prefix":
        save_file({f"dinov2.{name}": tensor for name, tensor in tensors.items()}, other / "model.safetensors")
    elif form == "sharded":
        model.save_pretrained(other, max_shard_size="20KB")
        assert len(list(other.glob("model-*.safetensors"))) > 2
    elif form == "bin":
        torch.save(tensors, other / "pytorch_model.bin")
    else:
        halves = dict(list(tensors.items())[:9]), dict(list(tensors.items())[9:])
        for number, half in enumerate(halves):
            torch.save(half, other / f"pytorch_model-{number}.bin")
        places = {name: f"pytorch_model-{number}.bin" for number, half in enumerate(halves) for name in half}
        (other / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    name = "vit_small_patch14_dinov2"
    first, second = (load_backbone(name, weights=path, image_size=56) for path in (whole, place))
    assert first.info == second.info


def other(kind: str, **options: Any) -> Make:
    """A model of transformers that is none of the families, or is one in part."""
    return lambda: getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**options))


CLIP, DINOV3, VIT = "vit_base_patch16_clip_224", "vit_base_patch16_dinov3", "vit_base_patch16_224"
FOREIGN = {
    "activation": (CLIP, clip, "activation quick_gelu, and here is gelu; take .*_clip_quickgelu_224"),
    "biases": (
        DINOV3,
        lambda: shaken(dinov3(query_bias=True, value_bias=True)),
        "have biases of queries and values, .* take vit_base_patch16_dinov3_qkvb",
    ),
    "temperature": (DINOV3, lambda: dinov3(rope_theta=10.0), "says 10.0 rotary temperature, .* are 100.0"),
    "heads": (VIT, lambda: vit(num_attention_heads=4), "says 4 heads, and here are 2"),
    "epsilon": (VIT, lambda: vit(layer_norm_eps=1e-3), "says an epsilon of 0.001, and here is 1e-06"),
    "blocks": (VIT, lambda: vit(num_hidden_layers=4), r"13 unexpected \(blocks\.3\.attn\.q_proj"),
    "patch": (VIT, lambda: vit(patch_size=8), r"1 of another shape \(patch_embed\.proj\.weight\)"),
    "registers": (VIT, dinov2_registers, r"unexpected \(reg_token"),
    "no-registers": ("vit_small_patch14_reg4_dinov2", dinov2, r"1 missing \(reg_token\)"),
    "deit": (VIT, other("DeiT", **shape()), "distillation token"),
    "beit": (VIT, other("Beit", **shape()), "does not fit|known here"),
    "swin": (VIT, other("Swin", depths=[1], num_heads=[1]), "are of no Vision Transformer known here"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_weights_of_something_else_are_refused(kind: str, tmp_path: Path) -> None:
    architecture, make, message = FOREIGN[kind]
    make().save_pretrained(tmp_path)
    with pytest.raises(WeightsError, match=message):
        load_backbone(architecture, weights=tmp_path, image_size=112)
