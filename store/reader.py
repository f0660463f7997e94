"""Reading a store: open it, see what it holds, and read tokens as float32 (rows, layers, tokens, dim).

store = open_store("imagenet.zarr")
x = store.read(rows=slice(0, 64), layers=range(0, 8), tokens="cls,patches")
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .completion import SAMPLES, is_completed
from .conversion import ReadDtype, numpy_dtype
from .dask_arrays import dask_array
from .deferred import Deferred
from .errors import ConfigError, CorruptStoreError, StorageError
from .facts import facts_of
from .index import Index, read_index
from .layout import TokenKind, TokenLayout, parse_kinds
from .manifest import Manifest
from .reading import ChunkSource, read_rows
from .records import ArrayKey, arrays_of, is_finished
from .remedies import AGAIN
from .root import Root, check_array, read_root
from .samples import OK, SAMPLES_SCHEMA, content_hash, label_ids, with_records
from .sealed import read_sealed
from .selection import RowSelection, check_layers, check_rows
from .shards import CompleteShards, ShardIndex, UnfinishedShards
from .statistics import ChannelStats
from .storage import Storage, gather, open_storage

if TYPE_CHECKING:
    import dask.array
    import pyarrow.compute as pc
else:
    pc = Deferred("pyarrow.compute")

__all__ = ["Store", "open_store"]

Int64 = npt.NDArray[np.int64]


def open_store(path: Path | str) -> Store:
    """Open the store at a path or URL for reading; what later writers add is seen when it is opened again.

    Args:
        path: a path, `file://`, `http://`, `https://` or `s3://bucket/prefix`. S3 takes its credentials and
            endpoint from the usual AWS_* variables or the profile in ~/.aws, and is read anonymously where
            there are none.

    Raises:
        ConfigError: the URL is of another scheme or names no place.
        NotAStoreError: what is there is not an activation store of format 1.
        CorruptStoreError: the store's metadata were altered, or an array's disagree with the manifest.
        AccessDeniedError: it may not be read.
        UnreachableError: the place does not answer.
    """
    return _open(open_storage(path))


def _open(storage: Storage) -> Store:
    root = read_root(storage)
    looks: list[Callable[[], Any]] = [
        partial(check_array, storage, root.manifest, array) for array in arrays_of(root.manifest)
    ]
    looks.append(partial(read_index, storage, root))
    *_, index = gather(storage, operator.call, looks)
    return Store(storage, root, index)


class Store:
    """A store opened for reading; made by `open_store`. May be shared between threads and pickled."""

    def __init__(self, storage: Storage, root: Root, index: Index | None) -> None:
        self.storage = storage
        """Where it lies."""
        self.complete = index is not None
        """Whether every shard is finished and the store was completed."""
        self._root = root
        self._index = index
        self._shards: ShardIndex = CompleteShards(index) if index else UnfinishedShards(storage, root)

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, (self.storage,)

    @property
    def path(self) -> str:
        """The path or URL that it was opened by."""
        return self.storage.where

    @property
    def manifest(self) -> Manifest:
        """All that was planned."""
        return self._root.manifest

    @property
    def num_rows(self) -> int:
        """Rows of every array, bad and unwritten ones included."""
        return self.manifest.num_rows

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers that are kept, ascending."""
        return self.manifest.layers

    @property
    def kinds(self) -> tuple[TokenKind, ...]:
        """Token kinds that are kept, in the layout's order."""
        return self.manifest.kinds

    @property
    def layout(self) -> TokenLayout:
        """Tokens of one layer of the teacher, kept or not."""
        return self.manifest.layout

    @property
    def dim(self) -> int:
        """Width of a token."""
        return self.manifest.dim

    @property
    def teacher_dir(self) -> Path:
        """Folder of the teacher's files.

        Raises:
            StorageError: the store is not on this machine.
        """
        if self.storage.folder is None:
            raise StorageError(
                f"{self.storage.where} is not on this machine and its teacher is needed as files; "
                "`activault pull` makes a copy"
            )
        return self.storage.folder / "teacher"

    @property
    def is_whole(self) -> bool:
        """Whether the store is complete and its tables, records and shards' files are all there now.

        Presence and sizes alone are looked at, not the bytes of arrays; what is not whole, a writer of the
        same plan repairs. The teacher's files no writer writes again.
        """
        shards = self.manifest.held_shards
        return is_completed(self.storage, self._root) and all(
            is_finished(self.storage, self.manifest, shard) for shard in shards
        )

    @property
    def num_finished_shards(self) -> int:
        """Shards whose rows can be read."""
        return len(self._shards.finished)

    @property
    def num_bad(self) -> int:
        """Rows of finished shards whose image was bad."""
        return self._shards.num_bad

    @property
    def num_bytes(self) -> int:
        """Bytes of all array files."""
        return self._shards.num_bytes

    @property
    def float32_bytes(self) -> int:
        """Bytes that the finished rows would take as plain float32."""
        manifest = self.manifest
        row_bytes = len(manifest.layers) * manifest.tokens_per_layer * manifest.dim * 4
        return len(self.finished_rows) * row_bytes

    @property
    def digest(self) -> str:
        """Names the content: manifest, samples, teacher and all hashes; no times, hosts or paths."""
        return self._shards.digest

    @property
    def arrays_digest(self) -> str:
        """Names the decoded values alone, in row order, shard by shard; it depends on the shard size."""
        return self._shards.arrays_digest

    @cached_property
    def samples(self) -> pa.Table:
        """The sample table, with the outcomes of all finished shards.

        Raises:
            CorruptStoreError: samples.parquet is missing, altered or of another store.
        """
        table = self._stored_samples()
        if self._index is not None:
            return table
        records = (self._shards.record(shard) for shard in self._shards.finished)
        return with_records(table, records, self.manifest.absent_rows)

    def _column(self, name: str) -> pa.Table:
        """One column of the sample table alone, which is read in a hundredth of the time of all."""
        if self._index is None or "samples" in self.__dict__:
            return self.samples.select([name])
        return self._stored_samples([name])

    def _stored_samples(self, columns: Sequence[str] | None = None) -> pa.Table:
        try:
            table, _, found = read_sealed(
                self.storage,
                SAMPLES,
                SAMPLES_SCHEMA,
                self.num_rows,
                self.manifest.max_table_bytes,
                columns=columns,
                keep_dictionaries=columns is not None,
            )
        except FileNotFoundError as exc:
            raise CorruptStoreError(f"{SAMPLES} is missing; {AGAIN}") from exc
        if self._index is not None:
            agrees = found == self._index.summary.samples_hash
        else:
            agrees = content_hash(table) == self._root.samples
        if not agrees:
            raise CorruptStoreError(f"{SAMPLES} is of another store; {AGAIN}")
        return table

    @cached_property
    def finished_rows(self) -> Int64:
        """(n,) rows of finished shards, ascending."""
        if self.complete and self.manifest.shards is None:
            return np.arange(self.num_rows)
        ranges = [np.array(self.manifest.shard_range(shard)) for shard in self._shards.finished]
        return np.concatenate(ranges) if ranges else np.empty(0, np.int64)

    @cached_property
    def valid_rows(self) -> Int64:
        """(n,) finished rows whose image was ok, ascending."""
        return np.flatnonzero(self._is_ok)

    @cached_property
    def _is_ok(self) -> npt.NDArray[np.bool_]:
        if self.complete and not self.num_bad and self.manifest.shards is None:
            return np.broadcast_to(np.True_, self.num_rows)  # takes no memory, whatever the number
        is_ok: Any = pc.equal(self._column("status")["status"], pa.scalar(OK))
        return np.asarray(is_ok.to_numpy(), dtype=np.bool_)

    @property
    def classes(self) -> tuple[str, ...]:
        """Labels that are there, sorted."""
        return self._labels[0]

    @property
    def label_ids(self) -> Int64:
        """(num_rows,) place of each row's label in `classes`; -1 where it is unknown."""
        return self._labels[1]

    @cached_property
    def _labels(self) -> tuple[tuple[str, ...], Int64]:
        return label_ids(self._column("label"))

    def statistics(self, layer: int, kind: TokenKind) -> ChannelStats:
        """Per channel, over the rows that are ok and all tokens of the kind.

        Raises:
            ConfigError: the layer or the kind is not in the store.
            CorruptStoreError: a statistics file is missing or altered.
        """
        check_layers([layer], self.layers)
        if kind not in self.kinds:
            raise ConfigError(f"token kinds here are {', '.join(self.kinds)}; got {kind!r}")
        return self._shards.statistics[ArrayKey(layer, kind)]

    def parse_tokens(self, tokens: str | Sequence[str]) -> tuple[TokenKind, ...]:
        """Kinds that `tokens` asks for, out of those that are kept.

        Raises:
            ConfigError: a kind is unknown or not kept.
        """
        if isinstance(tokens, str) and tokens.strip() == "all":
            return self.kinds
        kinds = parse_kinds(tokens, self.layout)
        missing = [kind for kind in kinds if kind not in self.kinds]
        if missing:
            raise ConfigError(f"token kinds here are {', '.join(self.kinds)}; got {', '.join(missing)}")
        return kinds

    @cached_property
    def chunks(self) -> ChunkSource:
        """The chunks of this store, for whoever plans its own reads."""
        return ChunkSource(self.storage, self.manifest, self._shards.record, self._is_ok)

    def read(
        self,
        rows: RowSelection,
        layers: Iterable[int],
        tokens: str | Sequence[str] = "all",
        dtype: ReadDtype = "float32",
    ) -> npt.NDArray[Any]:
        """Values (rows, layers, tokens, dim), each inner chunk read once; bad rows read as NaN.

        Args:
            rows: a slice, or row numbers in any order and as often as wanted; for a mask, `np.flatnonzero` of
                it.
            layers: layer numbers, in the order wanted.
            tokens: `"all"`, `"cls,patches"`, or a sequence of kinds; they stand in the layout's order.
            dtype: of the result. `bfloat16` comes as bit patterns in uint16, as NumPy has no such type:
                `torch.from_numpy(x).view(torch.bfloat16)`. Rounded to nearest where the store has more bits.

        Raises:
            ConfigError: rows, layers or kinds are not in the store.
            IncompleteStoreError: a row's shard is not finished.
            CorruptStoreError: bytes are missing or are not what was written.
            PrecisionError: a value is beyond float16.
        """
        numbers = check_rows(rows, self.num_rows)
        asked, kinds = check_layers(layers, self.layers), self.parse_tokens(tokens)
        return read_rows(self.chunks, numbers, asked, kinds, numpy_dtype(dtype))

    def dask(self, kind: TokenKind, layer: int) -> dask.array.Array:
        """One array as dask array (num_rows, tokens, dim) float32 in blocks of a shard, read when computed.

        For threads and processes alike. Computing a block whose shard is not finished or not part of a copy
        is an `IncompleteStoreError`.

        Raises:
            ConfigError: the layer or the kind is not in the store.
            MissingExtraError: dask is not installed.
        """
        return dask_array(self, kind, layer)

    def info(self) -> dict[str, Any]:
        """What is in the store, as values that JSON can hold."""
        return facts_of(self)
