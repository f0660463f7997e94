"""A Raptor by itself: this file, NAME.json and NAME.safetensors beside it, and PyTorch alone.

    from NAME import load
    model = load("NAME.json")                # eval mode, on the CPU
    layers = model(tokens)                   # layer 0 (batch, tokens, dim) -> (batch, L, tokens, dim)
    last = model.last(tokens)                # layer L alone; stop=9 leaves after layer 9

Layer 0 is what enters the teacher's first block: embedded patches with their positions, CLS and registers in
front, after any norm that stands before the blocks. The teacher's final norm is not applied; whoever reads a
layer out applies it. With rotary positions the tables are those of the grid that the model was trained at;
`use_rotary` takes the teacher's tables of another grid.

Block: y = x + a * A(x); out = o * (y + m * M(y)), with A and M attention and MLP after their norms and times
their LayerScales, and (a, m, o) = 1 + W2 silu(W1 z + b1) + b2 with z the layer that is made. Every linear map
may add a low-rank part of its own for each layer. Source: arXiv 2512.19941. Written by `activault export`.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Raptor", "load"]

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64}


class Raptor(nn.Module):
    """Layers 1 to L from layer 0; `config` is the table `model` of NAME.json."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.num_layers = int(config["num_layers"])
        self.phases = [list(phase) for phase in config["phases"]]
        self.places = {
            layer: (number, place)
            for number, phase in enumerate(self.phases)
            for place, layer in enumerate(phase)
        }
        self.blocks = nn.ModuleList(_Block(config, len(phase)) for phase in self.phases)
        self.rotary_sin: Tensor | None
        self.rotary_cos: Tensor | None
        shape = config["rotary"]["shape"] if config["rotary"] else None
        self.register_buffer("rotary_sin", None if shape is None else torch.zeros(shape))
        self.register_buffer("rotary_cos", None if shape is None else torch.ones(shape))

    def rollout(self, tokens: Tensor, start: int = 0, stop: int | None = None) -> Iterator[Tensor]:
        """Layers start+1 .. stop one by one from layer `start`, each (batch, tokens, dim)."""
        stop = self.num_layers if stop is None else stop
        if not 0 <= start < stop <= self.num_layers:
            raise ValueError(
                f"a roll-out goes from a layer to a later one in 0-{self.num_layers}; got {start}, {stop}"
            )
        for layer in range(start + 1, stop + 1):
            number, place = self.places[layer]
            depth = layer / self.num_layers if self.config["depth"] == "normalised" else float(layer)
            tokens = self.blocks[number](tokens, depth, place, self._table(layer))
            yield tokens

    def forward(self, tokens: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """`rollout` with all its layers stacked: (batch, stop - start, tokens, dim)."""
        return torch.stack(list(self.rollout(tokens, start, stop)), dim=1)

    def last(self, tokens: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Layer `stop` alone, L by default: (batch, tokens, dim)."""
        for layer in self.rollout(tokens, start, stop):
            tokens = layer
        return tokens

    def use_rotary(self, sin: Tensor, cos: Tensor) -> None:
        """The teacher's tables of another grid, each (1 or L, 1 or heads, patches, head width)."""
        assert self.rotary_sin is not None, "this model has no rotary positions"
        self.rotary_sin, self.rotary_cos = sin.to(self.rotary_sin), cos.to(self.rotary_sin)

    def _table(self, layer: int) -> tuple[Tensor, Tensor] | None:
        sin, cos = self.rotary_sin, self.rotary_cos
        if sin is None or cos is None:
            return None
        own = layer - 1 if len(sin) > 1 else 0
        return sin[own], cos[own]


class _LowRank(nn.Module):
    def __init__(self, num_in: int, num_out: int, num_layers: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.zeros(num_layers, rank, num_in))
        self.up = nn.Parameter(torch.zeros(num_layers, num_out, rank))

    def forward(self, x: Tensor, place: int) -> Tensor:
        return x @ self.down[place].T @ self.up[place].T


class _Linear(nn.Linear):
    """A linear map, and what the phase's layer `place` adds to it."""

    def __init__(self, num_in: int, num_out: int, bias: bool, num_layers: int, rank: int) -> None:
        super().__init__(num_in, num_out, bias=bias)
        self.lora = _LowRank(num_in, num_out, num_layers, rank) if rank else None

    def forward(self, x: Tensor, place: int = 0) -> Tensor:
        out: Tensor = super().forward(x)
        return out if self.lora is None else out + self.lora(x, place)


class _Attention(nn.Module):
    def __init__(self, config: dict[str, Any], num_layers: int) -> None:
        super().__init__()
        dim, rank = config["dim"], config["lora_rank"]
        self.num_heads = config["num_heads"]
        self.pairs = config["rotary"]["pairs"] if config["rotary"] else ""
        self.qkv = _Linear(dim, 3 * dim, config["qkv_bias"], num_layers, rank)
        self.proj = _Linear(dim, dim, True, num_layers, rank)

    def forward(self, x: Tensor, place: int, table: tuple[Tensor, Tensor] | None) -> Tensor:
        rows, tokens, dim = x.shape
        qkv = self.qkv(x, place).view(rows, tokens, 3, self.num_heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if table is not None:
            query, key = self._turned(query, *table), self._turned(key, *table)
        heads = functional.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.proj(heads.transpose(1, 2).reshape(rows, tokens, dim), place)
        return out

    def _turned(self, x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
        prefix = x.shape[-2] - sin.shape[-2]
        patches = x[..., prefix:, :]
        if self.pairs == "halves":
            first, second = patches.chunk(2, dim=-1)
            rotated = torch.cat([-second, first], dim=-1)
        else:
            rotated = torch.stack([-patches[..., 1::2], patches[..., ::2]], dim=-1).flatten(-2)
        return torch.cat([x[..., :prefix, :], (patches * cos + rotated * sin).to(x.dtype)], dim=-2)


class _Mlp(nn.Module):
    def __init__(self, config: dict[str, Any], num_layers: int) -> None:
        super().__init__()
        dim, hidden, rank = config["dim"], config["mlp_hidden"], config["lora_rank"]
        self.gated = config["gated"]
        self.fc1 = _Linear(dim, 2 * hidden if self.gated else hidden, True, num_layers, rank)
        self.fc2 = _Linear(hidden, dim, True, num_layers, rank)

    def forward(self, x: Tensor, place: int) -> Tensor:
        hidden = self.fc1(x, place)
        if self.gated:
            gate, value = hidden.chunk(2, dim=-1)
            hidden = functional.silu(gate) * value
        else:
            hidden = functional.gelu(hidden)
        out: Tensor = self.fc2(hidden, place)
        return out


class _LayerScale(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class _Depth(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(1, hidden)
        self.fc2 = nn.Linear(hidden, 3 * dim)

    def forward(self, depth: float) -> Tensor:
        scale: Tensor = 1 + self.fc2(functional.silu(self.fc1(self.fc1.weight.new_tensor([depth]))))
        return scale


class _Block(nn.Module):
    def __init__(self, config: dict[str, Any], num_layers: int) -> None:
        super().__init__()
        dim, eps = config["dim"], config["eps"]
        self.norm1 = nn.LayerNorm(dim, eps=eps)
        self.attn = _Attention(config, num_layers)
        self.ls1 = _LayerScale(dim)
        self.norm2 = nn.LayerNorm(dim, eps=eps)
        self.mlp = _Mlp(config, num_layers)
        self.ls2 = _LayerScale(dim)
        self.depth = None if config["depth"] == "none" else _Depth(dim, config["depth_hidden"])

    def forward(self, x: Tensor, depth: float, place: int, table: tuple[Tensor, Tensor] | None) -> Tensor:
        a = m = o = x.new_ones(())
        if self.depth is not None:
            a, m, o = self.depth(depth).chunk(3)
        x = x + a * self.ls1(self.attn(self.norm1(x), place, table))
        x = x + m * self.ls2(self.mlp(self.norm2(x), place))
        return o * x


def load(path: str | Path) -> Raptor:
    """The model of NAME.json, in eval mode on the CPU; its tensors are checked against their hash."""
    path = Path(path)
    record = json.loads(path.read_text(encoding="utf-8"))
    if record.get("format") != "activault raptor" or record.get("version") != 1:
        found = f"format {record.get('format')!r}, version {record.get('version')!r}"
        raise ValueError(
            f"{path} is to describe an activault raptor of version 1; got {found}; export it again"
        )
    data = (path.parent / Path(record["tensors"]).name).read_bytes()
    if hashlib.sha256(data).hexdigest() != record["sha256"]:
        raise ValueError(f"{record['tensors']} is not what {path} names; export it again")
    model = Raptor(record["model"])
    model.load_state_dict(_tensors(data), strict=True)
    return model.eval()


def _tensors(data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file: 8 bytes of length, a JSON header, then the values."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    values = bytearray(data[8 + length :])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            dtype = _DTYPES[entry["dtype"]]
            flat = torch.frombuffer(values[first:last], dtype=dtype)
            tensors[name] = flat.view(entry["shape"])
    return tensors
