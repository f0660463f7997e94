"""Every layer is timm's own, bit for bit; sizes and names that cannot be used are refused with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor

from activault.extract.backbone import Backbone, load_backbone, load_teacher, save_teacher
from activault.store import ConfigError, WeightsError

TEACHERS = [
    pytest.param("vit_small_patch14_dinov2", (28, 28), (1, 0, (2, 2)), id="dinov2"),
    pytest.param("vit_small_patch14_reg4_dinov2", (28, 28), (1, 4, (2, 2)), id="dinov2-registers"),
    pytest.param("vit_small_patch14_reg4_dinov2", (28, 42), (1, 4, (2, 3)), id="dinov2-registers-wide"),
    pytest.param("vit_small_patch14_dinov2", (42, 14), (1, 0, (3, 1)), id="dinov2-tall"),
    pytest.param("vit_tiny_patch16_224", (224, 224), (1, 0, (14, 14)), id="native-size"),
    pytest.param("test_vit3", (32, 48), (0, 1, (2, 3)), id="no-class-token"),
    pytest.param("vit_xsmall_patch16_clip_224", (32, 32), (1, 0, (2, 2)), id="norm-before-blocks"),
]


def images(backbone: Backbone, count: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    size = (count, *backbone.preprocessing.image_size, 3)
    return backbone.prepare(torch.randint(0, 256, size, generator=generator, dtype=torch.uint8))


@pytest.mark.parametrize(("name", "size", "layout"), TEACHERS)
@torch.inference_mode()
def test_layers_are_timms_own_bit_for_bit(
    name: str, size: tuple[int, int], layout: tuple[int, int, tuple[int, int]]
) -> None:
    backbone = load_backbone(name, image_size=size, random_seed=0)
    assert (backbone.layout.num_cls, backbone.layout.num_registers, backbone.layout.grid) == layout
    batch = images(backbone)
    outputs: list[Tensor] = []
    inputs: list[Tensor] = []
    hooks = [b.register_forward_hook(lambda _m, _i, out: outputs.append(out)) for b in backbone.blocks]
    hooks.append(backbone.blocks[0].register_forward_pre_hook(lambda _m, args: inputs.append(args[0])))
    final, theirs = backbone.vit.forward_intermediates(batch, return_prefix_tokens=True, output_fmt="NLC")
    for hook in hooks:
        hook.remove()
    ours = dict(backbone.layers(batch, range(backbone.num_blocks + 1)))
    assert list(ours) == list(range(backbone.num_blocks + 1))
    assert torch.equal(ours[0], inputs[0])
    for layer, (patches, prefix) in enumerate(theirs, start=1):
        assert torch.equal(ours[layer], torch.cat([prefix, patches], dim=1))
        assert torch.equal(ours[layer], outputs[layer - 1])
        assert ours[layer].shape == (2, backbone.layout.num_tokens, backbone.dim)
    assert torch.equal(backbone.norm(ours[backbone.num_blocks]), final)


@torch.inference_mode()
def test_positions_are_resampled_as_timm_does_it() -> None:
    name, size = "vit_small_patch14_reg4_dinov2", (28, 42)
    native = load_backbone(name, image_size=518, random_seed=0)
    backbone = load_backbone(name, image_size=size, random_seed=0)
    config = {"state_dict": native.tensors()}
    theirs = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=config, img_size=size).eval()
    batch = images(backbone)
    assert torch.equal(theirs.pos_embed, backbone.vit.pos_embed)
    assert torch.equal(theirs.forward_features(batch), backbone.norm(dict(backbone.layers(batch, [12]))[12]))


def test_pixels_are_normalised_as_torchvision_does_it(tiny: Backbone) -> None:
    pixels = torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (tiny.preprocessing.mean, tiny.preprocessing.std))
    assert torch.equal(tiny.prepare(pixels), (pixels.permute(0, 3, 1, 2).float() / 255 - mean) / std)


@torch.inference_mode()
def test_only_asked_layers_are_given_and_no_later_block_runs(tiny: Backbone) -> None:
    ran: list[int] = []
    hooks = [
        block.register_forward_hook(lambda _m, _i, _o, number=number: ran.append(number))
        for number, block in enumerate(tiny.blocks, start=1)
    ]
    assert [layer for layer, _ in tiny.layers(images(tiny), {3, 0})] == [0, 3]
    for hook in hooks:
        hook.remove()
    assert ran == [1, 2, 3]


def test_a_layer_out_of_range_is_refused_before_anything_runs(tiny: Backbone) -> None:
    with pytest.raises(ConfigError, match=r"layers of test_vit are 0-6; got \[7\]"):
        tiny.layers(images(tiny), [0, 7])


def test_frozen(tiny: Backbone) -> None:
    assert not tiny.training
    assert not any(parameter.requires_grad for parameter in tiny.parameters())


def test_random_weights_are_a_function_of_the_seed_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    same, again, other = (load_backbone("test_vit", image_size=32, random_seed=s) for s in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert same.info == again.info
    assert same.info.weights_sha256 != other.info.weights_sha256


def test_the_weights_hash_does_not_depend_on_the_image_size() -> None:
    teachers = [load_backbone("test_vit", image_size=size, random_seed=0) for size in (32, 160, (32, 48))]
    assert len({teacher.info.weights_sha256 for teacher in teachers}) == 1


def test_mean_and_std_are_those_of_the_weights_that_the_name_tags() -> None:
    plain = load_backbone("vit_small_patch16_224", image_size=32, random_seed=0)
    tagged = load_backbone("vit_small_patch16_224.dino", image_size=32, random_seed=0)
    assert plain.preprocessing.mean == (0.5, 0.5, 0.5)
    assert tagged.preprocessing.mean == (0.485, 0.456, 0.406)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vit_base_dinov2", "timm has no model 'vit_base_dinov2'; nearest names: vit_base_patch14_dinov2"),
        ("vit_small_patch14_dinov2.meta", r"nearest names: .*vit_small_patch14_dinov2\.lvd142m"),
        ("hf-hub:someone/model", "timm has no model"),
        ("qqqq", r"timm has no model 'qqqq'; `timm.list_models\('vit_\*'\)` lists names"),
        ("dem", "nearest names: demo"),
        ("resnet50", "'resnet50' is not a plain ViT; the nearest that works is vit_base_patch14_reg4_dinov2"),
        ("deit_small_distilled_patch16_224", "distillation token .* works is deit_small_patch16_224"),
        ("flexivit_large.1200ep_in1k", "is a FlexiViT, .* works is vit_large_"),
        ("naflexvit_base_patch16_siglip", "is not a plain ViT; .* works is vit_base_patch16_siglip"),
        ("beit_base_patch16_224", "is not a plain ViT"),
    ],
)
def test_names_that_cannot_be_used(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_backbone(name, image_size=224, random_seed=0)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (100, "multiple of the patch size 14; got 100: the nearest are 98 and 112"),
        ((28, 30), "got 30: the nearest are 28 and 42"),
        (7, "got 7: the nearest are 14 and 28"),
    ],
)
def test_sizes_that_cannot_be_used(size: int | tuple[int, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_backbone("vit_small_patch14_dinov2", image_size=size, random_seed=0)


def test_a_resize_below_the_crop_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least the image size 32, to crop from it; got 31"):
        load_backbone("test_vit", image_size=32, resize=31, random_seed=0)


def test_weights_come_from_one_place(tiny_weights: Path) -> None:
    with pytest.raises(ConfigError, match="either a weights file or a random seed"):
        load_backbone("test_vit", image_size=32, weights=tiny_weights, random_seed=0)
    with pytest.raises(ConfigError, match="'demo' has its own weights"):
        load_backbone("demo", weights=tiny_weights)


@pytest.mark.parametrize("size", [(32, 32), (32, 48)], ids=str)
@torch.inference_mode()
def test_a_teacher_comes_back_from_its_files(size: tuple[int, int], tmp_path: Path) -> None:
    backbone = load_backbone("test_vit3", image_size=size, resize=40, random_seed=0)
    save_teacher(backbone, tmp_path)
    again = load_teacher(tmp_path)
    assert (again.info, again.preprocessing, again.layout) == (
        backbone.info,
        backbone.preprocessing,
        backbone.layout,
    )
    batch = images(backbone)
    for (_, ours), (_, theirs) in zip(
        again.layers(batch, range(10)), backbone.layers(batch, range(10)), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_the_same_teacher_writes_the_same_bytes_at_every_size(tmp_path: Path) -> None:
    written = []
    for size in (32, 64):
        folder = tmp_path / str(size)
        folder.mkdir()
        save_teacher(load_backbone("test_vit", image_size=size, random_seed=0), folder)
        written.append((folder / "model.safetensors").read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"architecture": "test_vit"', '"architecture": "test_vit3"', "does not fit test_vit3"),
        ('"architecture": "test_vit"', '"architecture": "../x"', "timm has no model"),
        ('"num_heads": 2', '"num_heads": 4', "names other blocks, width or heads"),
        ('"weights_sha256": "', '"weights_sha256": "0', "are not those its config.json names"),
        ('"native_size"', '"size"', "does not describe a teacher"),
        ("{", "", "does not describe a teacher"),
    ],
)
def test_altered_teacher_files_are_refused(
    tiny: Backbone, tmp_path: Path, old: str, new: str, message: str
) -> None:
    save_teacher(tiny, tmp_path)
    config = (tmp_path / "config.json").read_text()
    assert old in config
    (tmp_path / "config.json").write_text(config.replace(old, new, 1))
    with pytest.raises((WeightsError, ConfigError), match=message):
        load_teacher(tmp_path)


def test_damaged_teacher_weights_are_refused(tiny: Backbone, tmp_path: Path) -> None:
    save_teacher(tiny, tmp_path)
    data = bytearray((tmp_path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(WeightsError, match=r"are not those its config\.json names"):
        load_teacher(tmp_path)


@pytest.mark.parametrize("size", [160_000, (16, 80_000_000)])
def test_an_input_beyond_memory_is_refused_before_any_is_taken(
    size: int | tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activault.extract.input_size.memory_bytes", lambda: 10**10)
    message = (
        r"[0-9]{1,3},[0-9]{3},[0-9]{3} tokens, which take at least .* GB, and there are 10.0 GB; choose a"
    )
    with pytest.raises(ConfigError, match=message):
        load_backbone("test_vit", image_size=size, random_seed=0)
