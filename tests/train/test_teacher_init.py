"""A block started from a real timm block computes what that block computes, or says why it cannot."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from timm.layers import LayerScale
from timm.models.vision_transformer import Block, ResPostBlock
from torch import nn

from activault.store.errors import ConfigError
from activault.train.raptor import Raptor, RaptorConfig

DIM, HEADS, LAYERS = 24, 4, 6
CONFIG = RaptorConfig(dim=DIM, num_heads=HEADS, num_layers=LAYERS, cuts=(2, 3), depth="none")


def timm_block(**options: object) -> Block:
    given = {
        "qkv_bias": True,
        "init_values": 1e-5,
        "norm_layer": partial(nn.LayerNorm, eps=1e-6),
        **options,
    }
    block = Block(DIM, HEADS, **given).eval()
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.3)
    return block


@pytest.fixture
def teacher() -> list[Block]:
    torch.manual_seed(0)
    return [timm_block() for _ in range(LAYERS)]


@pytest.mark.parametrize(
    ("choice", "layers"), [("first", (1, 3, 4)), ("middle", (2, 3, 5)), ("last", (2, 3, 6))]
)
def test_initialised_block_equals_the_teachers(
    teacher: list[Block], choice: str, layers: tuple[int, ...]
) -> None:
    model = Raptor(CONFIG).eval()
    model.init_from_blocks(teacher, choice)
    x = torch.randn(2, 7, DIM)
    for phase, layer in enumerate(layers):
        torch.testing.assert_close(
            model.blocks[phase](x, model.depths[:1]), teacher[layer - 1](x), rtol=1e-5, atol=1e-5
        )


def test_mean_takes_the_mean_of_every_tensor(teacher: list[Block]) -> None:
    model = Raptor(CONFIG)
    model.init_from_blocks(teacher, "mean")
    expected = torch.stack([teacher[layer - 1].attn.qkv.weight for layer in (4, 5, 6)]).mean(0)
    torch.testing.assert_close(model.blocks[2].attn.qkv.weight, expected)


def test_fresh_depth_conditioning_stays_near_the_teacher(teacher: list[Block]) -> None:
    torch.manual_seed(1)
    model = Raptor(CONFIG.model_copy(update={"depth": "normalised"})).eval()
    model.init_from_blocks(teacher, "first")
    x = torch.randn(2, 7, DIM)
    expected = teacher[0](x)
    off = (model.blocks[0](x, model.depths[1:2]) - expected).norm() / expected.norm()
    assert 0 < off < 0.05


def test_teacher_without_layer_scale_or_biases_is_still_equal() -> None:
    block = timm_block(init_values=None, qkv_bias=False)
    model = Raptor(RaptorConfig(dim=DIM, num_heads=HEADS, num_layers=1, depth="none")).eval()
    model.init_from_blocks([block])
    x = torch.randn(2, 7, DIM)
    torch.testing.assert_close(model.last(x), block(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "config", "message"),
    [
        ({}, {"mlp": "swiglu"}, r"mlp\.fc1\.weight is \(96, 24\) in the teacher and \(192, 24\) in Raptor"),
        ({}, {"num_heads": 3}, r"4 heads and Raptor's 3"),
        ({}, {"eps": 1e-5}, r"eps 1e-06 and Raptor's 1e-05; set model\.eps"),
        ({"act_layer": nn.ReLU}, {}, r"is a GELU one and the teacher's has ReLU"),
        (
            {"act_layer": partial(nn.GELU, approximate="tanh")},
            {},
            r"GELU one and the teacher's has GELU\(approx",
        ),
        ({"qk_norm": True}, {}, r"no place for attn\.k_norm\.bias, .*use init = 'random'"),
        ({"mlp_ratio": 2.0}, {}, r"mlp\.fc1\.weight is \(48, 24\) in the teacher and \(96, 24\)"),
    ],
    ids=["swiglu", "heads", "eps", "activation", "tanh-gelu", "qk-norm", "width"],
)
def test_blocks_that_do_not_fit_are_refused(
    options: dict[str, object], config: dict[str, object], message: str
) -> None:
    model = Raptor(RaptorConfig(**{"dim": DIM, "num_heads": HEADS, "num_layers": 1, **config}))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ConfigError, match=message):
        model.init_from_blocks([timm_block(**options)])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_same_tensors_in_another_order_are_refused() -> None:
    """timm's ResPostBlock has Block's tensors, and its norms stand behind the branches."""
    block = ResPostBlock(DIM, HEADS, qkv_bias=True, norm_layer=partial(nn.LayerNorm, eps=1e-6)).eval()
    model = Raptor(RaptorConfig(dim=DIM, num_heads=HEADS, num_layers=1))
    assert {name for name in block.state_dict() if name not in model.blocks[0].state_dict()} == set()
    with pytest.raises(ConfigError, match=r"from the same tensors ResPostBlock computes something else"):
        model.init_from_blocks([block])


def test_a_small_layer_scale_does_not_hide_a_difference() -> None:
    class Twice(Block):
        def forward(self, x: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
            return x + 2 * (super().forward(x) - x)

    block = Twice(DIM, HEADS, qkv_bias=True, init_values=1e-5, norm_layer=partial(nn.LayerNorm, eps=1e-6))
    with pytest.raises(ConfigError, match=r"off by 0\.5 of what it adds"):
        Raptor(RaptorConfig(dim=DIM, num_heads=HEADS, num_layers=1)).init_from_blocks([block.eval()])


def test_rotary_positions_are_named() -> None:
    block = timm_block()
    block.register_buffer("rotary", torch.zeros(4, 12), persistent=False)
    with pytest.raises(ConfigError, match=r"turn them by rotary positions; use init = 'random'"):
        Raptor(RaptorConfig(dim=DIM, num_heads=HEADS, num_layers=1)).init_from_blocks([block])


def test_wrong_number_of_blocks_is_refused(teacher: list[Block]) -> None:
    with pytest.raises(ConfigError, match=r"Raptor of 6 layers starts from as many teacher blocks; got 5"):
        Raptor(CONFIG).init_from_blocks(teacher[:5])


def test_the_teacher_is_left_alone(teacher: list[Block]) -> None:
    before = teacher[1].ls1.gamma.clone()
    assert isinstance(teacher[1].ls1, LayerScale)
    model = Raptor(CONFIG)
    model.init_from_blocks(teacher, "last")
    with torch.no_grad():
        model.blocks[0].ls1.gamma += 1
    assert torch.equal(teacher[1].ls1.gamma, before)
