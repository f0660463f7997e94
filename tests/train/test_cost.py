"""Formulas against what PyTorch counts when the model runs, and the table beside the teacher's."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import Block
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from activault.train.cost import compare_cost, cost_of, cost_of_blocks
from activault.train.raptor import Raptor, RaptorConfig

DIM, HEADS, LAYERS, TOKENS = 24, 4, 5, 7
KINDS: dict[str, dict[str, Any]] = {
    "gelu": {},
    "swiglu": {"mlp": "swiglu"},
    "iso": {"mlp": "swiglu_iso"},
    "autonomous": {"depth": "none"},
    "lora": {"lora_rank": 3},
    "lora-gated": {"lora_rank": 2, "mlp": "swiglu"},
    "width": {"mlp_width": 50},
    "groups": {"cuts": (), "groups": ((1, 3, 5), (2, 4)), "lora_rank": 2},
}


def teacher(**options: Any) -> list[nn.Module]:
    norm = partial(nn.LayerNorm, eps=1e-6)
    made = [
        Block(DIM, HEADS, qkv_bias=True, init_values=1e-5, norm_layer=norm, **options) for _ in range(LAYERS)
    ]
    return [block.eval() for block in made]


def made(**changes: Any) -> Raptor:
    given = {"dim": DIM, "num_heads": HEADS, "num_layers": LAYERS, "cuts": (2,), **changes}
    return Raptor(RaptorConfig(**given)).eval()


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_macs_are_those_of_the_products_that_are_made(kind: str) -> None:
    model = made(**KINDS[kind])
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.last(torch.randn(1, TOKENS, DIM))
    assert cost_of(model, TOKENS).macs == counter.get_total_flops() / 2


def test_a_tied_copy_of_the_teacher_costs_its_macs_and_a_part_of_its_parameters() -> None:
    blocks = teacher()
    theirs, ours = cost_of_blocks(blocks, TOKENS, DIM), cost_of(made(depth="none", cuts=()), TOKENS)
    assert ours.macs == theirs.macs
    assert ours.parameters * LAYERS == theirs.parameters
    assert ours.num_bytes == 4 * ours.parameters


def test_published_form_costs_what_is_published() -> None:
    """34 % more parameters and 31.5 % more MACs than the teacher's block, at DINOv2 ViT-B's width."""
    config = RaptorConfig(dim=768, num_heads=12, num_layers=1, mlp="swiglu", depth="raw")
    with torch.device("meta"):
        model, block = Raptor(config), Block(768, 12, qkv_bias=True, init_values=1e-5)
    plain = cost_of(Raptor(config.model_copy(update={"mlp": "gelu", "depth": "none"})), 261)
    ours = cost_of(model, 261)
    parameters = sum(parameter.numel() for parameter in block.parameters())
    assert ours.parameters / parameters == pytest.approx(1.34, abs=0.005)
    assert ours.macs / plain.macs == pytest.approx(1.315, abs=0.005)


def test_iso_flop_kind_costs_the_plain_one() -> None:
    plain, gated = (cost_of(made(mlp=mlp), TOKENS).macs for mlp in ("gelu", "swiglu_iso"))
    assert gated == plain


def test_table_stands_beside_the_teachers() -> None:
    compared = compare_cost(made(), teacher(), tokens=TOKENS, batch_size=2)
    assert compared.teacher is not None
    for cost in (compared.surrogate, compared.teacher):
        assert cost.latency is not None
        assert 0 < cost.latency.fastest <= cost.latency.median <= cost.latency.slowest
        assert cost.latency.runs >= 3
    rows = compared.rows()
    assert [row[0] for row in rows] == ["parameters", "MACs a row", "latency, 2 rows, cpu"]
    assert rows[0][3] == f"{compared.surrogate.parameters / compared.teacher.parameters:.3f}"
    assert compared.to_dict()["teacher"]["macs"] == compared.teacher.macs


def test_without_a_teacher_only_ours_is_told() -> None:
    rows = compare_cost(made(), None, tokens=TOKENS, measure=False).rows()
    assert [(row[1], row[3]) for row in rows] == [("-", "-"), ("-", "-")]


def test_measuring_draws_no_random_numbers() -> None:
    model, blocks = made(), teacher()
    state = torch.get_rng_state()
    compare_cost(model, blocks, tokens=TOKENS, batch_size=2)
    assert torch.equal(torch.get_rng_state(), state)
