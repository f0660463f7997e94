"""Shuffled batches of stored tokens, read ahead on threads and resumable at every batch.

    loader = ActivationLoader(store, layers=range(0, 8), batch_size=64, seed=0)
    for batch in loader:                      # one epoch
        batch.tokens                          # (64, 8, tokens, dim) float32
        saved = loader.state_dict()           # goes on after this batch

On several devices every rank makes the same loader but for `rank`; they need not talk to one another:

    ActivationLoader(store, ..., rank=rank, world=world, drop_last=True)

The order of the rows comes from `plan.py` and `mixing.py`, a rank's part of it from `turns.py`; reading is in
`prefetch.py` and `pools.py`. Memory is used again once every tensor that looks into it is gone; keeping
batches is safe and only takes more of it: where `dtype` is what the store holds, they keep their whole pools.
"""

from __future__ import annotations

import hashlib
import warnings
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
from .mixing import Mixing, choose_mixing, shortcomings
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


class ActivationLoader:
    """Iterates over batches of a store, one epoch at a time, every row exactly once an epoch.

    Args:
        store: the store, complete or not.
        layers: layers of a batch, in the order wanted.
        tokens: `"all"`, `"cls,patches"` or a sequence of kinds.
        batch_size: rows a batch of this rank; `world` times as many are taken at a step.
        seed: of the order, which depends on it, the epoch, the rows (or their weights) and how they are mixed
            alone: neither on the batch size, nor on the number of ranks, nor on a machine's memory.
        rows: which rows; every valid row by default.
        shuffle: False gives the rows in ascending order.
        drop_last: leave out a last batch, of all ranks together, that is smaller. Otherwise it is shared out
            as evenly as can be, and where it has fewer rows than there are ranks some get a batch of none;
            every rank has as many steps, and no row comes twice.
        num_threads: threads that read ahead; 0 reads in the caller's thread. By default two more than cores,
            at most 10, since some wait for the disk, and as many as pay where a store is far away.
        pool_bytes: memory for rows that wait for their batch, of all ranks together, kept from epoch to
            epoch: half is drawn from while half is filled. Up to three batches come on top of it, for each
            rank. By default 1 GiB, or where `mixed_rows` needs more, up to a quarter of the memory that is
            available to this process. In stores that were shuffled when they were planned rows mix within
            half of it: there the order depends on it.
        mixed_rows: rows of a step of all ranks that are to be mixed as by a full shuffle. In stores whose
            rows are in their source's order as many chunks are drawn from at a time, and the order depends
            on it. Where they do not fit into half of `pool_bytes` every chunk is read several times an epoch,
            and otherwise once; of several ranks, neighbours share a chunk and both read it.
        dtype: of the tokens: float32, or bfloat16 or float16, which halve what is copied to a device and
            come without a copy where the store holds them so.
        rank: which of the ranks this is, from 0.
        world: how many ranks there are.
        reads_per_chunk: parts that the rows of a chunk are spread over through the epoch, 1 by default. Bytes
            are read so many times as often, and rows mix so many times as widely.
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
        pool_bytes: int | None = None,
        mixed_rows: int = 64,
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
        self._weights = self._checked_weights(weights, balanced)
        self._pin_memory = pin_memory
        if len(self) == 0:
            raise ConfigError(
                f"{len(self.rows)} rows make no batch of {self.batch_size * self.world}; lower batch_size"
            )
        self.mixing = choose_mixing(
            self.rows,
            self._weights,
            chunk_rows=store.manifest.chunk_rows,
            row_bytes=self._row_bytes,
            in_source_order=shuffle and store.manifest.row_seed is None,
            pool_bytes=None if pool_bytes is None else whole("pool_bytes", pool_bytes, 1),
            mixed_rows=whole("mixed_rows", mixed_rows, 1),
            reads_per_chunk=None if reads_per_chunk is None else whole("reads_per_chunk", reads_per_chunk, 1),
        )
        """How rows are mixed; of a loaded state, as far as it was not asked for."""
        self._epoch = 0
        self._row = 0
        """Rows of the epoch that all ranks together have taken."""
        self._iterator: object = None
        """The iterator whose turn it is; it counts the rows that are taken."""
        self._has_told = self.rank > 0

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
            window_rows=self.mixing.window_rows,
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
            reads_per_chunk=self.mixing.reads_per_chunk,
            pool_rows=self.mixing.pool_rows,
        )

    def _turn(self, epoch: int, start: int) -> Turn:
        return Turn(self.plan(epoch), self.batch_size, start, self.rank, self.world, self.drop_last)

    def _tell_shortcomings(self) -> None:
        if not self._has_told and self.shuffle and self.store.manifest.row_seed is None:
            self._has_told = True
            step_rows = self.batch_size * self.world
            for told in shortcomings(self.mixing, self.plan(self._epoch), self.store.label_ids, step_rows):
                warnings.warn(told, RuntimeWarning, stacklevel=4)

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
        self._tell_shortcomings()
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
        state = LoaderState(epoch=self._epoch, row=self._row, identity=self._identity(self.mixing))
        return state.to_dict()

    def _identity(self, mixing: Mixing) -> dict[str, Any]:
        weights = None
        if self._weights is not None:
            weights = hashlib.sha256(self._weights.astype("<f8").tobytes()).hexdigest()
        return {
            "store": self.store.digest,
            "rows": hashlib.sha256(self.rows.astype("<i8").tobytes()).hexdigest(),
            "seed": self.seed,
            **mixing.identity(),
            "weights": weights,
            "shuffle": self.shuffle,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a saved state, whatever its number of ranks, batch size and threads were.

        Every row that was not taken yet comes once in what is left of the epoch. How rows are mixed is the
        state's, unless it was asked for: by `reads_per_chunk`, or where the order depends on it `pool_bytes`.

        Raises:
            ConfigError: the state is of another version, store, set of rows, weights, seed or pool: its
                position would mean other rows here.
        """
        mixing = self.mixing.as_in(state)
        epoch, row = position_of(state, self._identity(mixing), len(self.rows))
        left = len(self.rows) - row
        if self.drop_last and left < self.batch_size * self.world:
            epoch, row = epoch + 1, 0  # no batch of this size is left
        self._epoch, self._row, self._iterator, self.mixing = epoch, row, None, mixing
