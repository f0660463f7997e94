"""The untrained baseline is the teacher's own blocks, whatever they are made of."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from timm.layers import QuickGELU, SwiGLUPacked
from timm.models.vision_transformer import Block
from torch import nn

from activault.store import Store, split_rows
from activault.store.errors import ConfigError
from activault.train.metrics import evaluate_rollout
from activault.train.probes import probe
from activault.train.raptor import Raptor, RaptorConfig
from activault.train.repeated import repeated_blocks

CONFIG = RaptorConfig(dim=16, num_heads=2, num_layers=6, cuts=(2, 3), mlp="swiglu", depth="raw")
KINDS = {
    "eps": {"norm_layer": partial(nn.LayerNorm, eps=1e-5)},
    "quick-gelu": {"act_layer": QuickGELU, "norm_layer": partial(nn.LayerNorm, eps=1e-5)},
    "swiglu": {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU},
    "odd-width": {"mlp_ratio": 2.7},
    "qk-norm": {"qk_norm": True},
}


def blocks_of(kind: str, num: int) -> list[nn.Module]:
    torch.manual_seed(3)
    return [Block(16, 2, qkv_bias=True, init_values=0.3, **KINDS[kind]).eval() for _ in range(num)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("choice", "layers"),
    [("first", (1, 1, 3, 4, 4, 4)), ("middle", (2, 2, 3, 5, 5, 5)), ("last", (2, 2, 3, 6, 6, 6))],
)
@torch.no_grad()
def test_every_phase_repeats_one_of_its_own_blocks(kind: str, choice: str, layers: tuple[int, ...]) -> None:
    teacher = blocks_of(kind, 6)
    model = repeated_blocks(CONFIG, teacher, choice)
    x = torch.randn(2, 7, 16)
    expected = []
    for layer in layers:
        expected.append(teacher[layer - 1](expected[-1] if expected else x))
    assert torch.equal(model(x), torch.stack(expected, dim=1))
    assert torch.equal(model.last(x), expected[-1])


def test_nothing_is_copied() -> None:
    teacher = blocks_of("eps", 6)
    own = {id(parameter) for block in teacher for parameter in block.parameters()}
    assert {id(parameter) for parameter in repeated_blocks(CONFIG, teacher).parameters()} <= own


@pytest.mark.parametrize("kind", KINDS)
def test_it_stands_beside_a_surrogate_in_every_measure(store: Store, kind: str) -> None:
    config = CONFIG.model_copy(update={"num_layers": 4, "cuts": (2,)})
    baseline = repeated_blocks(config, blocks_of(kind, 4))
    rows = split_rows(store.samples, store.valid_rows)
    report = probe(
        store,
        Raptor(config),
        nn.LayerNorm(16),
        {"untrained": baseline, "function": baseline.last},
        rows["train"],
        rows["test"],
    )
    assert report.scores["untrained"] == report.scores["function"]
    assert evaluate_rollout(baseline, store, rows["test"]).layers == (1, 2, 3, 4)


@pytest.mark.parametrize("num", [5, 7])
def test_wrong_number_of_blocks_is_refused(num: int) -> None:
    with pytest.raises(ConfigError, match=f"over 6 layers takes as many teacher blocks; got {num}"):
        repeated_blocks(CONFIG, blocks_of("eps", num))
