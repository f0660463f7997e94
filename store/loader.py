"""Shuffled batches of stored tokens, read ahead on threads and resumable at every batch.

    loader = ActivationLoader(store, layers=range(0, 8), batch_size=64, seed=0)
    for batch in loader:                      # one epoch
        batch.tokens                          # (64, 8, tokens, dim) float32
        saved = loader.state_dict()           # goes on after this batch

On several devices every rank makes the same loader but for `rank`; they need not talk to one another:

    ActivationLoader(store, ..., rank=rank, world=world, drop_last=True)

The order of the rows comes from `plan.py`, a rank's part of it from `turns.py`; reading is in `prefetch.py`
and `pools.py`. Memory is used again once every tensor that looks into it is gone; keeping batches is safe and
only takes more of it: where `dtype` is what the store holds, a batch that is kept keeps its whole pool.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from .batches import Batch, PinnedMemory, RecycledMemory
from .codecs import held_type
from .errors import ConfigError
from .loader_state import LoaderState, loadable_rows, position_of, whole
from .plan import EpochPlan, plan_epoch
from .pools import Pools
from .prefetch import Execution
from .reader import Store
from .reading import num_ahead
from .sampling import check_weights, class_weights, draw_rows
from .selection import RowSelection, check_layers
from .turns import Turn

__all__ = ["ActivationLoader", "Batch"]

_DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
_UNITS: Final = 64
"""Chunks or parts of chunks in a pool from which on batches of 64 are as well mixed as by a full shuffle,
whatever the order of the rows; see docs/decisions.md."""
_MOST_READS: Final = 4


class ActivationLoader:
    """Iterates over batches of a store, one epoch at a time, every row exactly once an epoch.

    Args:
        store: the store, complete or not.
        layers: layers of a batch, in the order wanted.
        tokens: `"all"`, `"cls,patches"` or a sequence of kinds.
        batch_size: rows a batch of this rank; `world` times as many are taken at a step.
        seed: of the order, which depends on it, the epoch, the rows (or their weights), the pool and
            `reads_per_chunk` alone: neither on the batch size nor on the number of ranks.
        rows: which rows; every valid row by default.
        shuffle: False gives the rows in ascending order.
        drop_last: leave out a last batch, of all ranks together, that is smaller. Otherwise it is shared out
            as evenly as can be, and where it has fewer rows than there are ranks some get a batch of none;
            every rank has as many steps, and no row comes twice.
        num_threads: threads that read ahead; 0 reads in the caller's thread. By default two more than cores,
            at most 10, since some wait for the disk, and as many as pay where a store is far away.
        pool_bytes: memory for rows that wait for their batch, of all ranks together, kept from epoch to
            epoch. Half is drawn from while half is filled; rows mix within a half. Up to three batches come
            on top of it, for each rank. One rank reads every chunk once an epoch; of several, neighbours
            share a chunk of each pool and both read it: about (world - 1) / (chunks in half a pool) more.
        dtype: of the tokens: float32, or bfloat16 or float16, which halve what is copied to a device and
            come without a copy where the store holds them so.
        rank: which of the ranks this is, from 0.
        world: how many ranks there are.
        reads_per_chunk: parts that the rows of a chunk are spread over through the epoch. Bytes are read so
            many times as often, and rows mix so many times as widely. By default 1 where the store's rows
            were shuffled when it was planned; else what brings 64 parts into a pool, at most 4.
        weights: (store.num_rows,) how often a row is drawn, relative to others; an epoch is as many draws as
            there are rows, with replacement. See `sampling.py`.
        balanced: draw so that each class comes as often as any other, in place of `weights`.
        pin_memory: batches lie in page-locked memory, which a GPU fetches from by itself; see `Batch.to`.

    Raises:
        ConfigError: an argument does not fit the store, rows are bad, unwritten or named twice, or memory is
            to be pinned where there is no GPU.
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
        rank: int = 0,
        world: int = 1,
        reads_per_chunk: int | None = None,
        weights: npt.ArrayLike | None = None,
        balanced: bool = False,
        pin_memory: bool = False,
    ) -> None:
        if dtype not in _DTYPES:
            raise ConfigError(f"batches are of {', '.join(map(str, _DTYPES))}; got {dtype}")
        if pin_memory and not torch.cuda.is_available():
            raise ConfigError("pin_memory needs a GPU, and torch finds none here; leave it out")
        self.store = store
        self.layers = check_layers(layers, store.layers)
        self.kinds = store.parse_tokens(tokens)
        self.batch_size = whole("batch_size", batch_size, 1)
        self.seed = whole("seed", seed, 0)
        self.rows = loadable_rows(store, rows)
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.num_threads = (
            num_ahead(store.chunks, self.kinds)
            if num_threads is None
            else whole("num_threads", num_threads, 0)
        )
        self.dtype = dtype
        self.world = whole("world", world, 1)
        self.rank = whole("rank", rank, 0, self.world)
        self.pool_rows = max(1, whole("pool_bytes", pool_bytes, 1) // (2 * self._row_bytes))
        self.reads_per_chunk = self._reads_per_chunk(reads_per_chunk)
        self._weights = self._checked_weights(weights, balanced)
        self._pin_memory = pin_memory
        if len(self) == 0:
            raise ConfigError(
                f"{len(self.rows)} rows make no batch of {self.batch_size * self.world}; lower batch_size"
            )
        self._epoch = 0
        self._row = 0
        """Rows of the epoch that all ranks together have taken."""
        self._iterator: object = None
        """The iterator whose turn it is; it counts the rows that are taken."""

    def __len__(self) -> int:
        """Batches an epoch, the same for every rank."""
        full, rest = divmod(len(self.rows), self.batch_size * self.world)
        return full + (rest > 0 and not self.drop_last)

    @property
    def epoch(self) -> int:
        """Epoch that the next batch is of, from 0."""
        return self._epoch

    @property
    def _row_bytes(self) -> int:
        manifest = self.store.manifest
        token_bytes = sum(
            manifest.layout.count(kind) * held_type(manifest, kind).itemsize for kind in self.kinds
        )
        return len(self.layers) * token_bytes * manifest.dim

    def _reads_per_chunk(self, asked: int | None) -> int:
        manifest = self.store.manifest
        if asked is not None:
            return whole("reads_per_chunk", asked, 1)
        if manifest.row_seed is not None or not self.shuffle:
            return 1
        num_chunks = max(1, self.pool_rows // manifest.chunk_rows)
        return min(_MOST_READS, -(-_UNITS // num_chunks))

    def _checked_weights(self, weights: Any, balanced: bool) -> npt.NDArray[np.float64] | None:
        """(rows,) of each row's draws; None where every row comes once."""
        if weights is None and not balanced:
            return None
        if weights is not None and balanced:
            raise ConfigError("rows are drawn by weights or balanced by class; got both; leave one out")
        if not self.shuffle:
            raise ConfigError("rows that are drawn by weight come in random order; leave out shuffle=False")
        if balanced:
            return class_weights(self.store.label_ids[self.rows], self.rows)
        return check_weights(weights, self.rows, self.store.num_rows)

    def plan(self, epoch: int) -> EpochPlan:
        """The order of one epoch, of all ranks together."""
        rows = self.rows
        if self._weights is not None:
            rows = draw_rows(rows, self._weights, self.seed, epoch)
        return plan_epoch(
            rows,
            chunk_rows=self.store.manifest.chunk_rows,
            pool_rows=self.pool_rows,
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
            reads_per_chunk=self.reads_per_chunk,
        )

    def _turn(self, epoch: int, start: int) -> Turn:
        return Turn(self.plan(epoch), self.batch_size, start, self.rank, self.world, self.drop_last)

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the current epoch; at its end the loader stands at the start of the next.

        Raises:
            ConfigError: another iterator was begun, or a state was loaded, since the last batch; or this is
                another process than the one that the iterator was begun in.
            CorruptStoreError: a shard is damaged; the message names its rows. No batch is left out.
        """
        yield from self._batches(endless=False)

    def stream(self) -> Iterator[Batch]:
        """Batches without end, epoch after epoch; the next one's first rows are read before one ends."""
        yield from self._batches(endless=True)

    def _batches(self, *, endless: bool) -> Iterator[Batch]:
        mine = self._iterator = object()
        epoch, row = self._epoch, self._row

        def turn_of(number: int) -> Turn | None:
            if number == 0:
                return self._turn(epoch, row)
            return self._turn(epoch + number, 0) if endless else None

        with Execution(self._pools, turn_of, self.num_threads) as execution:
            for turn, step, tokens in execution.batches():
                rows, span = turn.rows(step), turn.span(step)
                labels = torch.from_numpy(self.store.label_ids[rows])
                # Counted before the consumer sees it: a state that is saved inside the loop goes on behind
                # it.
                is_last = step + 1 == turn.num_steps
                self._epoch, self._row = turn.plan.epoch + is_last, 0 if is_last else span.stop
                yield Batch(tokens, torch.from_numpy(rows), labels, len(span))
                if self._iterator is not mine:
                    raise ConfigError(
                        "a loader has one iterator at a time, which counts its batches; another was begun or "
                        "a state was loaded, so that this one ends; make a loader for each"
                    )

    @cached_property
    def _pools(self) -> Pools:
        return Pools(
            self.store.chunks,
            layers=self.layers,
            kinds=self.kinds,
            dtype=self.dtype,
            memory=lambda most_free: PinnedMemory() if self._pin_memory else RecycledMemory(most_free),
        )

    def state_dict(self) -> dict[str, Any]:
        """Position of the next batch, and all that it depends on; values that JSON can hold.

        The same for every rank, and of use to any number of ranks and any batch size.
        """
        state = LoaderState(epoch=self._epoch, row=self._row, identity=self._identity())
        return state.to_dict()

    def _identity(self) -> dict[str, Any]:
        weights = None
        if self._weights is not None:
            weights = hashlib.sha256(self._weights.astype("<f8").tobytes()).hexdigest()
        return {
            "store": self.store.digest,
            "rows": hashlib.sha256(self.rows.astype("<i8").tobytes()).hexdigest(),
            "seed": self.seed,
            "pool_rows": self.pool_rows,
            "reads_per_chunk": self.reads_per_chunk,
            "weights": weights,
            "shuffle": self.shuffle,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a saved state, whatever its number of ranks, batch size and threads were.

        Every row that was not taken yet comes once in what is left of the epoch.

        Raises:
            ConfigError: the state is of another version, store, set of rows, weights, seed or pool: its
                position would mean other rows here.
        """
        epoch, row = position_of(state, self._identity(), len(self.rows))
        left = len(self.rows) - row
        if self.drop_last and left < self.batch_size * self.world:
            epoch, row = epoch + 1, 0  # no batch of this size is left
        self._epoch, self._row, self._iterator = epoch, row, None
