"""What a model costs beside its teacher: parameters, multiply-accumulates, latency.

    cost_of(raptor, tokens)                 ->  Cost, by formula
    cost_of_blocks(teacher_blocks, ...)     ->  Cost, counted by running them once
    compare_cost(raptor, blocks, tokens=257) ->  CostComparison, with both latencies

A multiply-accumulate (MAC) is one product of a matrix product; with T tokens of width D, and E the width that
the MLP's first map makes (2 F where it is gated and F wide, else F), one application of a block takes

    qkv, proj      3 T D^2 + T D^2          depth       16 + 16 * 3 D
    attention      2 T^2 D                  low rank r  r T (4 D + 2 D + (D + E) + (F + D))
    MLP            T D E + T F D

Biases, norms, LayerScales, activations and rotary turns are left out, as usual: they are elementwise. A
Raptor is applied as often as its teacher has blocks, so it saves parameters, not MACs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from .blocks import DEPTH_HIDDEN, RecurrentBlock
from .raptor import Raptor
from .rollout import RolloutModel

__all__ = ["Cost", "CostComparison", "Latency", "compare_cost", "cost_of", "cost_of_blocks"]

WARM_UP, REPEATS = 2, 7
MOST_SECONDS = 3.0
"""Time for the measured runs of one model; at least three are made."""


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Seconds from layer 0 to layer L, of one batch."""

    median: float
    """Half of the runs were faster."""
    fastest: float
    """The fastest run."""
    slowest: float
    """The slowest run; far above the median, others use the machine."""
    runs: int
    """Measured runs, after the warm-up."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One model's cost."""

    parameters: int
    """Learned values."""
    num_bytes: int
    """Bytes of its tensors in their own type."""
    macs: int
    """Multiply-accumulates from layer 0 to layer L, of one row."""
    latency: Latency | None = None
    """Measured time of a batch; None if it was not measured."""


@dataclass(frozen=True, kw_only=True)
class CostComparison:
    """A surrogate beside its teacher's blocks."""

    surrogate: Cost
    teacher: Cost | None
    """None where the teacher's blocks are not at hand."""
    tokens: int
    """Tokens of a row."""
    batch_size: int
    """Rows of a measured batch."""
    device: str
    """Where latency was measured."""

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON takes it."""
        return asdict(self)

    @staticmethod
    def from_dict(record: dict[str, Any]) -> CostComparison:
        """The inverse of `to_dict`.

        Raises:
            ValueError: the record is no such comparison.
        """
        return TypeAdapter(CostComparison).validate_python(record)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """A table: what, teacher, surrogate, surrogate over teacher."""
        names = ("parameters", "MACs a row")
        ours = (self.surrogate.parameters, self.surrogate.macs)
        theirs = (self.teacher.parameters, self.teacher.macs) if self.teacher else (None, None)
        lines = [
            (name, _count(other), _count(own), _ratio(own, other))
            for name, own, other in zip(names, ours, theirs, strict=True)
        ]
        if own_latency := self.surrogate.latency:
            other_latency = self.teacher.latency if self.teacher else None
            ratio = _ratio(own_latency.median, other_latency.median if other_latency else None)
            name = f"latency, {self.batch_size} rows, {self.device}"
            lines.append((name, _spread(other_latency), _spread(own_latency), ratio))
        return lines


def cost_of(model: Raptor, tokens: int) -> Cost:
    """A Raptor's cost for rows of so many tokens, by formula."""
    macs = 0
    for block, phase in zip(model.blocks, model.phases, strict=True):
        assert isinstance(block, RecurrentBlock)
        macs += len(phase) * _block_macs(block, tokens)
    return Cost(parameters=model.num_parameters, num_bytes=_bytes(model), macs=macs)


@torch.no_grad()
def cost_of_blocks(blocks: Sequence[nn.Module], tokens: int, dim: int) -> Cost:
    """A teacher's cost: its blocks, each (batch, tokens, dim) to the same shape, run once on one row."""
    together = nn.ModuleList(blocks)
    own = next(together.parameters())
    x = torch.zeros(1, tokens, dim, device=own.device, dtype=own.dtype)
    # The fused kernels of some devices are not counted; this form computes the same products one by one.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        for block in blocks:
            x = block(x)
    parameters = sum(parameter.numel() for parameter in together.parameters())
    return Cost(parameters=parameters, num_bytes=_bytes(together), macs=counter.get_total_flops() // 2)


def compare_cost(
    model: Raptor,
    blocks: Sequence[nn.Module] | None,
    *,
    tokens: int,
    batch_size: int = 8,
    measure: bool = True,
) -> CostComparison:
    """A Raptor beside its teacher's blocks, both on the same device and with random numbers left alone."""
    device = model.depths.device
    x = torch.full((batch_size, tokens, model.config.dim), 0.5, device=device)
    ours, theirs = cost_of(model, tokens), None
    if measure:
        ours = _with_latency(ours, model, x)
    if blocks is not None:
        theirs = cost_of_blocks(blocks, tokens, model.config.dim)
        if measure:
            theirs = _with_latency(theirs, nn.Sequential(*blocks), x)
    return CostComparison(
        surrogate=ours, teacher=theirs, tokens=tokens, batch_size=batch_size, device=str(device)
    )


def _block_macs(block: RecurrentBlock, tokens: int) -> int:
    dim = block.attn.proj.out_features
    maps = (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2)
    macs = 2 * tokens * tokens * dim
    for linear in maps:
        macs += tokens * linear.in_features * linear.out_features
        if linear.lora is not None:
            rank = linear.lora.down.shape[1]
            macs += tokens * rank * (linear.in_features + linear.out_features)
    if block.depth is not None:
        macs += DEPTH_HIDDEN + DEPTH_HIDDEN * 3 * dim
    return macs


def _bytes(module: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _with_latency(cost: Cost, model: nn.Module, x: Tensor) -> Cost:
    return Cost(
        parameters=cost.parameters, num_bytes=cost.num_bytes, macs=cost.macs, latency=_latency(model, x)
    )


@torch.no_grad()
def _latency(model: nn.Module, x: Tensor) -> Latency:
    """Median and spread of a forward pass to the last layer, after warm-up."""
    run = model.last if isinstance(model, RolloutModel) else model
    seconds: list[float] = []
    for number in range(WARM_UP + REPEATS):
        _settle(x.device)
        started = time.perf_counter()
        run(x)
        _settle(x.device)
        if number >= WARM_UP:
            seconds.append(time.perf_counter() - started)
        if len(seconds) >= 3 and sum(seconds) > MOST_SECONDS:
            break
    return Latency(
        median=statistics.median(seconds), fastest=min(seconds), slowest=max(seconds), runs=len(seconds)
    )


def _settle(device: torch.device) -> None:
    """Wait for the device, so that the clock is read when the work is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _count(value: int | None) -> str:
    if value is None:
        return "-"
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return str(value)


def _ratio(ours: int | float, theirs: int | float | None) -> str:
    return f"{ours / theirs:.3f}" if theirs else "-"


def _spread(latency: Latency | None) -> str:
    if latency is None:
        return "-"
    low, middle, high = (1000 * value for value in (latency.fastest, latency.median, latency.slowest))
    return f"{middle:.1f} ms ({low:.1f}-{high:.1f})"
