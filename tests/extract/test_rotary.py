"""Tables of rotary positions: enough to run attention by, and held against what the model would have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from activault.extract.backbone import load_backbone, load_teacher, save_teacher
from activault.extract.rotary import RotaryTables
from activault.extract.weights import tensors_sha256
from activault.store import WeightsError

ROTARY = ("vit_base_patch16_dinov3", "eva02_small_patch14_224", "vit_base_patch16_rope_mixed_224")


def turned(x: Tensor, tables: RotaryTables, block: int) -> Tensor:
    """Rotary positions as `rotary.py` words them, from the files alone."""
    sin, cos = (table[block if len(table) > 1 else 0] for table in (tables.sin, tables.cos))
    if tables.pairs == "halves":
        first, second = x.chunk(2, dim=-1)
        rotated = torch.cat([-second, first], dim=-1)
    else:
        rotated = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
    return x * cos + rotated * sin


@pytest.mark.usefixtures("small_models")
@pytest.mark.parametrize("name", ROTARY)
@torch.inference_mode()
def test_the_tables_are_enough_to_run_attention_without_timm(name: str) -> None:
    patch = 14 if "patch14" in name else 16
    backbone = load_backbone(name, image_size=(2 * patch, 3 * patch), random_seed=0)
    tables = backbone.rotary
    assert tables is not None
    assert tables.sin.shape[2:] == (6, 16)
    prefix, x = backbone.vit.num_prefix_tokens, torch.randn(2, backbone.layout.num_tokens, 32)
    for number, block in enumerate(backbone.blocks):
        attention = block.block.attn
        qkv = attention.qkv(x)
        if getattr(attention, "q_bias", None) is not None:
            qkv = qkv + torch.cat([attention.q_bias, torch.zeros(32), attention.v_bias])
        query, key, value = qkv.view(2, -1, 3, 2, 16).permute(2, 0, 3, 1, 4)
        query, key = (
            torch.cat([part[:, :, :prefix], turned(part[:, :, prefix:], tables, number)], dim=2)
            for part in (query, key)
        )
        heads = torch.softmax(query @ key.transpose(-1, -2) / 4, dim=-1) @ value
        ours = attention.proj(heads.transpose(1, 2).reshape(2, -1, 32))
        theirs = attention(x, rope=block.rotary)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.fixture
def rotary_files(small_models: None, tmp_path: Path) -> Path:
    save_teacher(load_backbone("vit_base_patch16_dinov3", image_size=(32, 48), random_seed=0), tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("flipped", r"the tables in .* are not those its config\.json names"),
        ("gone", "there is no weights file"),
        ("other-grid", "not those of vit_base_patch16_dinov3 at 32 x 48 pixels"),
        ("other-pairs", "not those of vit_base_patch16_dinov3"),
        ("other-names", "does not hold tables"),
    ],
)
def test_damaged_tables_are_refused(rotary_files: Path, damage: str, message: str) -> None:
    path, config = rotary_files / "rotary.safetensors", rotary_files / "config.json"
    tables = load_file(path)
    if damage == "flipped":
        save_file({**tables, "sin": tables["sin"] + 1}, path)
    elif damage == "gone":
        path.unlink()
    elif damage == "other-pairs":
        config.write_text(config.read_text().replace('"halves"', '"neighbours"'))
    else:
        old = tensors_sha256(tables)
        if damage == "other-grid":
            tables = {name: table.flip(2).contiguous() for name, table in tables.items()}
        else:
            tables = {"sin": tables["sin"], "tan": tables["cos"]}
        save_file(tables, path)
        config.write_text(config.read_text().replace(old, tensors_sha256(tables)))
    with pytest.raises(WeightsError, match=message):
        load_teacher(rotary_files)


def test_tables_of_a_last_digit_apart_are_the_stores_own(rotary_files: Path) -> None:
    """Sines of another machine: what is in the files was used, so it is used again."""
    path, config = rotary_files / "rotary.safetensors", rotary_files / "config.json"
    tables = load_file(path)
    moved = {name: table + 1e-7 for name, table in tables.items()}
    save_file(moved, path)
    config.write_text(config.read_text().replace(tensors_sha256(tables), tensors_sha256(moved)))
    again = load_teacher(rotary_files)
    assert again.rotary is not None
    assert torch.equal(again.rotary.sin, moved["sin"])
