"""How widely an epoch's order mixes rows, how many are held meanwhile, and whether that is as well as can be.

A store, the rows of an epoch and their bytes in; rows of a window out, which the order depends on, and rows
of a pool, which it does not. Windows must therefore not depend on the machine; pools may.

Where rows were shuffled when their store was planned any chunk is a random sample, and a window is what pools
hold. Where they stand in their source's order, perhaps class by class, a batch needs a chunk for each of its
rows: a window then holds as many, whatever memory that takes. Where there is less, pools are runs of a
window, and each chunk is read once for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .cores import available_bytes
from .plan import EpochPlan
from .turns import Turn
from .units import chunks_of, random_stream

__all__ = ["Mixing", "choose_mixing", "entropy_share", "most_pool_bytes", "shortcomings"]

Int64 = npt.NDArray[np.int64]
_POOL_BYTES: Final = 1 << 30
"""Memory of pools that need no more."""
_SHARE: Final = 4
"""Pools take at most a quarter of the memory that is available: those of all ranks on a machine together."""
_MOST_ROWS: Final = 1 << 62
"""What a state says is planned with in 64 bits."""
_MOST_READS: Final = 4
"""Four reads of each chunk took twice the processor time of one; more are told."""
_LEAST_SHARE: Final = 0.98
_STEPS: Final = 32
_STREAM: Final = (1 << 62) + 1


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """How rows are mixed, and held."""

    window_rows: int
    """Rows that the order interleaves; states call it pool_rows, which it was."""
    reads_per_chunk: int
    """Parts that a chunk's rows are spread over, of different windows."""
    pool_rows: int
    """Rows that are held at a time, while as many are read; the order does not depend on it."""
    chunk_rows: int
    """Rows a chunk of the store."""
    row_bytes: int
    """Memory that a row takes in a pool."""
    mixed_rows: int
    """Rows of a step that were to be mixed as by a full shuffle; 0 where a state says how they are."""
    found: frozenset[str]
    """Names in a state of what nobody asked for here, so that a state's takes its place."""

    def identity(self) -> dict[str, int]:
        """What the order depends on, as states name it."""
        return {"pool_rows": self.window_rows, "reads_per_chunk": self.reads_per_chunk}

    def as_in(self, state: Mapping[str, Any]) -> Mixing:
        """As a saved state has it, but for what was asked for, and for what makes no sense in the state."""
        if not isinstance(state, Mapping):
            return self
        told = {
            name: state.get(name, of_old) for name, of_old in (("pool_rows", None), ("reads_per_chunk", 1))
        }
        known = {name: value for name, value in told.items() if type(value) is int and 0 < value < _MOST_ROWS}
        taken = self.identity() | {name: known[name] for name in self.found & known.keys()}
        if taken == self.identity():
            return self
        window, reads = taken["pool_rows"], taken["reads_per_chunk"]
        return replace(self, window_rows=window, reads_per_chunk=reads, mixed_rows=0)


def most_pool_bytes() -> int:
    """Memory that pools of this machine take where they would need more."""
    return max(_POOL_BYTES, available_bytes() // _SHARE)


def choose_mixing(
    rows: Int64,
    draws: npt.NDArray[np.float64] | None,
    *,
    chunk_rows: int,
    row_bytes: int,
    in_source_order: bool,
    pool_bytes: int | None,
    mixed_rows: int,
    reads_per_chunk: int | None,
) -> Mixing:
    """The mixing of a loader.

    Args:
        rows: (n,) the rows of an epoch, ascending.
        draws: (n,) how often each comes, relative to others; None is once.
        chunk_rows: rows a chunk of the store.
        row_bytes: memory that a row takes in a pool.
        in_source_order: whether rows that stand together may be alike.
        pool_bytes: memory for pools; None finds out what there is.
        mixed_rows: rows of a step that are to be mixed as by a full shuffle.
        reads_per_chunk: parts that a chunk's rows are spread over; None is one.
    """

    def room(num_bytes: int) -> int:
        return max(1, num_bytes // (2 * row_bytes))  # half is drawn from, half is filled

    reads = reads_per_chunk or 1
    found = {"pool_rows": pool_bytes is None or in_source_order, "reads_per_chunk": reads_per_chunk is None}
    if in_source_order:
        window = _window_rows(rows, draws, chunk_rows, mixed_rows, reads, least=room(_POOL_BYTES))
    else:
        window = room(pool_bytes or _POOL_BYTES)
    if pool_bytes is None:
        # Asked only where it matters.
        pool_bytes = _POOL_BYTES if window <= room(_POOL_BYTES) else most_pool_bytes()
    return Mixing(
        window_rows=window,
        reads_per_chunk=reads,
        pool_rows=max(chunk_rows, room(pool_bytes)),  # less than a chunk would be read for each of its rows
        chunk_rows=chunk_rows,
        row_bytes=row_bytes,
        mixed_rows=mixed_rows,
        found=frozenset(name for name, it_is in found.items() if it_is),
    )


def _window_rows(
    rows: Int64,
    draws: npt.NDArray[np.float64] | None,
    chunk_rows: int,
    mixed_rows: int,
    reads_per_chunk: int,
    *,
    least: int,
) -> int:
    """Rows of windows of `mixed_rows` units wherever the store has as many; `least` where that is enough."""
    firsts, counts = chunks_of(rows, chunk_rows)
    shares = counts.astype(np.float64) if draws is None else np.add.reduceat(draws, firsts)
    parts = np.minimum(reads_per_chunk, counts)
    # A unit of few rows is seldom in a batch: so many equal ones would mix rows as well.
    num_units = shares.sum() ** 2 / (shares**2 / parts).sum()
    num_windows = max(1, int(num_units / mixed_rows))
    if num_windows >= len(rows) / least:
        return least
    return -(-len(rows) // num_windows) + int((counts / parts).max())


def entropy_share(plan: EpochPlan, labels: Int64, step_rows: int) -> float:
    """Mean entropy of the labels of a step over that of a full shuffle's, estimated from some steps.

    Args:
        plan: the epoch.
        labels: of every row of the store.
        step_rows: rows a step of all ranks together.
    """
    turn = Turn(plan, min(step_rows, plan.num_rows), drop_last=True)
    steps = np.unique(np.linspace(0, turn.num_steps - 1, _STEPS).astype(np.int64)).tolist()
    random = random_stream(plan.seed, plan.epoch, _STREAM)
    shuffled = [random.choice(plan.num_rows, turn.batch_size, replace=False) for _ in range(_STEPS)]
    found = np.mean([_entropy(labels[turn.rows(step)]) for step in steps])
    full = np.mean([_entropy(labels[plan.drawn[places]]) for places in shuffled])
    return float(found / full) if full > 0 else 1.0


def _entropy(labels: Int64) -> float:
    """In bits."""
    share = np.unique(labels, return_counts=True)[1] / len(labels)
    return float(-(share * np.log2(share)).sum())


def shortcomings(mixing: Mixing, plan: EpochPlan, labels: Int64, step_rows: int) -> Iterator[str]:
    """What a user should know of an epoch over rows in their source's order: too little mixed, or at a price.

    Args:
        mixing: of the loader.
        plan: the epoch.
        labels: of every row of the store; all alike where there are none.
        step_rows: rows a step of all ranks together.
    """
    share = entropy_share(plan, labels, step_rows)
    if share < _LEAST_SHARE and mixing.window_rows < plan.num_rows:
        wanted = step_rows if step_rows > mixing.mixed_rows else 2 * mixing.mixed_rows
        yield (
            "rows stand in the order of their source, and steps are mixed less than by a full shuffle: "
            f"labels of {step_rows} rows have {share:.0%} of its entropy where {mixing.window_rows} rows are "
            f"mixed at a time; make the loader with mixed_rows={wanted}, without a state of this order"
        )
    window = min(mixing.window_rows, plan.num_rows)
    reads = min(-(-window // mixing.pool_rows), mixing.chunk_rows)
    if reads > _MOST_READS:
        needed, held = (2 * rows * mixing.row_bytes / 1e9 for rows in (window, mixing.pool_rows))
        yield (
            "rows stand in the order of their source; to mix them as a full shuffle does in one read of each "
            f"chunk takes {needed:.1f} GB of memory, and pools get {held:.1f} GB here: every chunk is read "
            f"{reads} times an epoch; run it with more memory, give pool_bytes, or mix less by a smaller "
            "mixed_rows"
        )
