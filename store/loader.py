"""Shuffled batches of stored tokens, read ahead on threads and resumable at every batch.

    loader = ActivationLoader(store, layers=range(0, 8), batch_size=64, seed=0)
    for batch in loader:                      # one epoch
        batch.tokens                          # (64, 8, tokens, dim) float32
        saved = loader.state_dict()           # goes on after this batch

What to read comes from `plan.py`, reading it is in `prefetch.py`. A batch's memory is used again once every
tensor that looks into it is gone; keeping batches is safe and only takes more of it.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from .codecs import held_type
from .errors import ConfigError
from .plan import EpochPlan, plan_epoch
from .prefetch import Execution
from .reader import Store
from .reading import num_ahead
from .recycling import Recycler
from .selection import RowSelection, check_layers, check_rows

__all__ = ["ActivationLoader", "Batch"]

Int64 = npt.NDArray[np.int64]
_STATE_VERSION: Final = 1
_DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Batch:
    """Rows of one step."""

    tokens: torch.Tensor
    """(batch, layers, tokens, dim) of the loader's dtype."""
    rows: torch.Tensor
    """(batch,) int64 row numbers."""
    labels: torch.Tensor
    """(batch,) int64 places in `Store.classes`; -1 where unknown."""


class ActivationLoader:
    """Iterates over batches of a store, one epoch at a time, every row exactly once an epoch.

    Args:
        store: the store, complete or not.
        layers: layers of a batch, in the order wanted.
        tokens: `"all"`, `"cls,patches"` or a sequence of kinds.
        batch_size: rows a batch.
        seed: of the order, which depends on it, the epoch, the rows, the batch size and the pool alone.
        rows: which rows; every valid row by default.
        shuffle: False gives the rows in ascending order.
        drop_last: leave out a last batch that is smaller.
        num_threads: threads that read ahead; 0 reads in the caller's thread. By default two more than cores,
            at most 10, since some wait for the disk, and as many as pay where a store is far away.
        pool_bytes: memory for rows that wait for their batch, kept from epoch to epoch. Half is drawn from
            while half is filled; rows mix within a half. Up to three batches come on top of it.
        dtype: of the tokens: float32, or bfloat16 or float16, which halve what is copied to a device.

    Raises:
        ConfigError: an argument does not fit the store, or rows are bad, unwritten or named twice.
    """

    def __init__(
        self,
        store: Store,
        *,
        layers: Iterable[int],
        tokens: str | Sequence[str] = "all",
        batch_size: int,
        seed: int = 0,
        rows: RowSelection | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        num_threads: int | None = None,
        pool_bytes: int = 1 << 30,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if dtype not in _DTYPES:
            raise ConfigError(f"batches are of {', '.join(map(str, _DTYPES))}; got {dtype}")
        self.store = store
        self.layers = check_layers(layers, store.layers)
        self.kinds = store.parse_tokens(tokens)
        self.batch_size = _whole("batch_size", batch_size, 1)
        self.seed = _whole("seed", seed, 0)
        self.rows = _loadable(store, rows)
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.num_threads = (
            num_ahead(store.chunks, self.kinds)
            if num_threads is None
            else _whole("num_threads", num_threads, 0)
        )
        self.dtype = dtype
        self._pool_memory = {kind: Recycler(most_free=2) for kind in self.kinds}
        self._batch_memory = Recycler(most_free=3)
        self.num_tokens = sum(store.layout.count(kind) for kind in self.kinds)
        token_bytes = sum(
            store.layout.count(kind) * held_type(store.manifest, kind).itemsize for kind in self.kinds
        )
        row_bytes = len(self.layers) * token_bytes * store.dim
        self.pool_rows = max(1, _whole("pool_bytes", pool_bytes, 1) // (2 * row_bytes))
        if len(self) == 0:
            raise ConfigError(f"{len(self.rows)} rows make no batch of {batch_size}; lower batch_size")
        self._epoch = 0
        self._taken = 0
        self._iterator: object = None
        """The iterator whose turn it is; it counts the batches that are taken."""

    def __len__(self) -> int:
        """Batches an epoch."""
        whole, rest = divmod(len(self.rows), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    @property
    def epoch(self) -> int:
        """Epoch that the next batch is of, from 0."""
        return self._epoch

    def plan(self, epoch: int) -> EpochPlan:
        """The order of one epoch."""
        return plan_epoch(
            self.rows,
            chunk_rows=self.store.manifest.chunk_rows,
            batch_size=self.batch_size,
            pool_rows=self.pool_rows,
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
        )

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the current epoch; at its end the loader stands at the start of the next.

        Raises:
            ConfigError: another iterator was begun, or a state was loaded, since the last batch; or this is
                another process than the one that the iterator was begun in.
            CorruptStoreError: a shard is damaged; the message names its rows. No batch is left out.
        """
        mine = self._iterator = object()
        plan = self.plan(self._epoch)
        execution = Execution(
            self.store.chunks,
            plan,
            layers=self.layers,
            kinds=self.kinds,
            dtype=self.dtype,
            num_threads=self.num_threads,
            pool_memory=self._pool_memory,
            batch_memory=self._batch_memory,
        )
        with execution:
            for places, tokens in execution.batches(self._taken):
                rows = plan.rows[places.start : places.stop]
                labels = torch.from_numpy(self.store.label_ids[rows])
                # Counted before the consumer sees it: a state that is saved inside the loop goes on behind
                # it.
                self._advance(plan.num_batches)
                yield Batch(tokens, torch.from_numpy(rows.copy()), labels)
                if self._iterator is not mine:
                    raise ConfigError(
                        "a loader has one iterator at a time, which counts its batches; another was begun or "
                        "a state was loaded, so that this one ends; make a loader for each"
                    )

    def _advance(self, num_batches: int) -> None:
        """Count a batch as taken."""
        self._taken += 1
        if self._taken == num_batches:
            self._epoch, self._taken = self._epoch + 1, 0

    def stream(self) -> Iterator[Batch]:
        """Batches without end, epoch after epoch."""
        while True:
            yield from self

    def state_dict(self) -> dict[str, Any]:
        """Position of the next batch, and all that it depends on; values that JSON can hold."""
        return {"version": _STATE_VERSION, "epoch": self._epoch, "batch": self._taken} | self._identity()

    def _identity(self) -> dict[str, Any]:
        return {
            "store": self.store.digest,
            "rows": hashlib.sha256(self.rows.astype("<i8").tobytes()).hexdigest(),
            "seed": self.seed,
            "batch_size": self.batch_size,
            "pool_rows": self.pool_rows,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a saved state.

        Raises:
            ConfigError: the state is of another version, store, set of rows, seed, batch size or pool: its
                position would mean other rows here.
        """
        if not isinstance(state, Mapping):
            raise ConfigError(f"a loader state is what state_dict gave; got {state!r:.80}")
        if state.get("version") != _STATE_VERSION:
            raise ConfigError(f"a loader state has version {_STATE_VERSION}; got {state.get('version')!r}")
        for field, here in self._identity().items():
            if state.get(field) != here:
                raise ConfigError(
                    f"this loader's {field} is {here!r} and the state's is {state.get(field)!r}: its "
                    "position would mean other rows; make the loader as it was, or start anew"
                )
        epoch = _whole("epoch", state.get("epoch"), 0)
        batch = _whole("batch", state.get("batch"), 0, len(self))
        self._epoch, self._taken, self._iterator = epoch, batch, None


def _whole(name: str, value: object, least: int, stop: int = 1 << 63) -> int:
    """A whole number from `least` to below `stop`; NumPy's are taken too, truth values are not."""
    number = operator.index(value) if hasattr(value, "__index__") else None
    if number is None or isinstance(value, bool) or not least <= number < stop:
        most = "below 2^63" if stop == 1 << 63 else f"below {stop}"
        raise ConfigError(f"{name} is a whole number, at least {least} and {most}; got {value!r:.80}")
    return number


def _loadable(store: Store, rows: RowSelection | None) -> Int64:
    """Rows to go through, ascending."""
    if rows is None:
        return store.valid_rows
    numbers = np.sort(check_rows(rows, store.num_rows))
    if (np.diff(numbers) == 0).any():
        raise ConfigError(
            f"rows are named once each; {numbers[:-1][np.diff(numbers) == 0][0]} is there twice"
        )
    refused = numbers[~np.isin(numbers, store.valid_rows)]
    if len(refused):
        raise ConfigError(
            f"a loader takes rows that are finished and ok (see Store.valid_rows); {len(refused)} of "
            f"{len(numbers)} are not (first: {refused[0]})"
        )
    return numbers
