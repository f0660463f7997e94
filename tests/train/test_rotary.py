"""Teachers with rotary positions: the same turns, blocks to start from, other grids."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from activault.store.errors import ConfigError
from activault.train.raptor import Raptor, RaptorConfig
from activault.train.repeated import repeated_blocks
from activault.train.rotary import RotaryConfig

LAYERS, DIM, HEADS = 4, 32, 2


class Wrapped(nn.Module):
    """A teacher's block with its table, as whoever has the teacher hands it over."""

    rotary: Tensor

    def __init__(self, block: nn.Module, table: Tensor) -> None:
        super().__init__()
        self.block = block
        self.register_buffer("rotary", table, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.block(tokens, rope=self.rotary)


def teacher_of(name: str, grid: tuple[int, int]) -> tuple[list[nn.Module], Any, int]:
    """Blocks with their tables, the tables as handed over, and the number of tokens before the patches."""
    torch.manual_seed(3)
    patch = 16 if "patch16" in name else 14
    vit = timm.create_model(
        name,
        num_classes=0,
        img_size=(patch * grid[0], patch * grid[1]),
        embed_dim=DIM,
        depth=LAYERS,
        num_heads=HEADS,
    ).eval()
    for parameter in vit.blocks.parameters():
        nn.init.normal_(parameter, std=0.2)
    joined = vit._pos_embed(vit.patch_embed(torch.zeros(1, 3, patch * grid[0], patch * grid[1])))[1].detach()
    four = joined if joined.ndim == 4 else joined[None, None]
    sin, cos = four.chunk(2, dim=-1)
    pairs = "halves" if getattr(vit.blocks[0].attn, "rotate_half", False) else "neighbours"
    blocks = [
        Wrapped(block, joined[number] if joined.ndim == 4 else joined)
        for number, block in enumerate(vit.blocks)
    ]
    return blocks, SimpleNamespace(sin=sin, cos=cos, pairs=pairs), vit.num_prefix_tokens


TEACHERS = {
    "dinov3": "vit_small_patch16_dinov3",
    "dinov3-biased": "vit_small_patch16_dinov3_qkvb",
    "dinov3-gated": "vit_small_plus_patch16_dinov3",
    "eva02": "eva02_tiny_patch14_224",
    "rope": "vit_small_patch16_rope_224",
    "rope-mixed": "vit_small_patch16_rope_mixed_224",
}


def model_of(name: str, grid: tuple[int, int], **changes: Any) -> tuple[Raptor, list[nn.Module], Any, int]:
    blocks, tables, prefix = teacher_of(TEACHERS[name], grid)
    gated = hasattr(blocks[0].block.mlp, "fc1_g") or blocks[0].block.mlp.fc1.out_features != (
        blocks[0].block.mlp.fc2.in_features
    )
    config = RaptorConfig(
        dim=DIM,
        num_heads=HEADS,
        num_layers=LAYERS,
        mlp_width=blocks[0].block.mlp.fc2.in_features,
        mlp="swiglu" if gated else "gelu",
        eps=blocks[0].block.norm1.eps,
        rotary=RotaryConfig.of(tables, prefix),
        **{"cuts": (1, 2, 3), "depth": "none", **changes},
    )
    model = Raptor(config).eval()
    model.use_rotary(tables)
    return model, blocks, tables, prefix


@pytest.mark.parametrize("name", TEACHERS)
@torch.no_grad()
def test_a_started_model_of_a_block_a_layer_is_the_teacher(name: str) -> None:
    model, blocks, _, prefix = model_of(name, (3, 4))
    model.init_from_blocks(blocks)
    tokens = torch.randn(2, prefix + 12, DIM)
    expected = tokens
    made = model(tokens)
    for layer, block in enumerate(blocks):
        expected = block(expected)
        torch.testing.assert_close(made[:, layer], expected, rtol=1e-4, atol=1e-4)
    assert model.config.rotary is not None
    assert model.config.rotary.per_layer == (name == "rope-mixed")


@pytest.mark.parametrize("name", ["dinov3", "rope-mixed"])
@pytest.mark.parametrize("groups", [None, ((1, 3), (2, 4))], ids=["cuts", "groups"])
@torch.no_grad()
def test_every_layer_of_a_phase_has_its_own_table(name: str, groups: Any) -> None:
    """Teacher forcing puts several layers of a phase through its block at once."""
    model, _, _, prefix = model_of(name, (3, 4), cuts=() if groups else (2,), groups=groups, lora_rank=2)
    tokens = torch.randn(2, 4, prefix + 12, DIM)
    forced = model.predict_next(tokens)
    for layer in range(1, 5):
        alone = model(tokens[:, layer - 1], layer - 1, layer)[:, 0]
        torch.testing.assert_close(forced[:, layer - 1], alone)


@torch.no_grad()
def test_other_grids_take_the_teachers_tables_of_that_grid() -> None:
    model, blocks, _, prefix = model_of("dinov3", (3, 4))
    model.init_from_blocks(blocks)
    larger, tables, _ = teacher_of("vit_small_patch16_dinov3", (5, 2))
    tokens = torch.randn(1, prefix + 10, DIM)
    with pytest.raises(ConfigError, match=r"are for 17 tokens and these are 15; give the teacher's tables"):
        model(tokens)
    with pytest.raises(ConfigError, match=r"are for 17 tokens and these are 15"):
        model.predict_next(tokens.unsqueeze(1))
    model.use_rotary(tables)
    repeated = repeated_blocks(model.config, larger)
    torch.testing.assert_close(model(tokens), repeated(tokens), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_tables_travel_with_the_models_tensors(tmp_path: Path) -> None:
    model, _, _, prefix = model_of("rope-mixed", (2, 3))
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    again = Raptor(RaptorConfig.model_validate_json(model.config.model_dump_json())).eval()
    again.load_state_dict(load_file(tmp_path / "m.safetensors"), strict=True)
    tokens = torch.randn(1, prefix + 6, DIM)
    assert torch.equal(again(tokens), model(tokens))


@torch.no_grad()
def test_bfloat16_is_turned_in_float32() -> None:
    model, _, _, prefix = model_of("dinov3", (3, 4))
    tokens = torch.randn(1, prefix + 12, DIM)
    exact = model(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = model(tokens)
    assert made.dtype == torch.float32
    torch.testing.assert_close(made, exact, rtol=0.1, atol=0.1 * float(exact.abs().max()))


def test_tables_of_another_kind_are_refused() -> None:
    model, _, tables, _ = model_of("dinov3", (3, 4))
    with pytest.raises(ConfigError, match=r"are halves, per layer False, .*; got neighbours, False"):
        model.use_rotary(SimpleNamespace(sin=tables.sin, cos=tables.cos, pairs="neighbours"))
    with pytest.raises(ConfigError, match=r"16 wide; got .* 8 wide"):
        model.use_rotary(SimpleNamespace(sin=tables.sin[..., :8], cos=tables.cos[..., :8], pairs="halves"))
    plain = Raptor(RaptorConfig(dim=DIM, num_heads=HEADS, num_layers=LAYERS))
    with pytest.raises(ConfigError, match="rotary tables are for a model with rotary positions"):
        plain.use_rotary(tables)


def test_blocks_with_and_without_rotary_positions_do_not_mix() -> None:
    model, blocks, _, _ = model_of("dinov3", (3, 4))
    plain = Raptor(model.config.model_copy(update={"rotary": None}))
    with pytest.raises(ConfigError, match="the teacher's block has rotary positions and Raptor's has not"):
        plain.init_from_blocks(blocks)
    with pytest.raises(ConfigError, match="the teacher's block has no rotary positions"):
        model.init_from_blocks([block.block for block in blocks])


def test_an_eva_with_norms_inside_is_refused() -> None:
    blocks, tables, prefix = teacher_of("eva02_base_patch14_224", (3, 4))
    config = RaptorConfig(
        dim=DIM, num_heads=HEADS, num_layers=LAYERS, mlp="swiglu", rotary=RotaryConfig.of(tables, prefix)
    )
    with pytest.raises(ConfigError, match=r"no place for mlp\.norm\.bias, mlp\.norm\.weight; use init"):
        Raptor(config).init_from_blocks(blocks)
