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

from .arrow import pa
from .cached import with_cache
from .completion import is_completed
from .conversion import ReadDtype, numpy_dtype
from .dask_arrays import dask_array
from .errors import ConfigError, CorruptStoreError, StorageError
from .facts import facts_of, float32_bytes
from .index import Index, read_index
from .layout import TokenKind, TokenLayout, parse_kept_kinds
from .manifest import Manifest
from .object_presence import are_finished
from .places import open_storage
from .presence import is_finished
from .reading import ChunkSource, read_rows
from .records import ArrayKey, arrays_of
from .root import Root, check_array, read_root
from .sample_tables import SampleTable
from .selection import RowSelection, check_layers, check_rows
from .shards import CompleteShards, ShardIndex, UnfinishedShards
from .statistics import ChannelStats
from .storage import Storage, gather

if TYPE_CHECKING:
    import dask.array

__all__ = ["Store", "open_store"]

Int64 = npt.NDArray[np.int64]


def open_store(
    path: Path | str, *, cache_dir: Path | str | None = None, cache_bytes: int | None = None
) -> Store:
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
    return _open(with_cache(open_storage(path), cache_dir, cache_bytes))


def _open(storage: Storage) -> Store:
    root = read_root(storage)
    looks: list[Callable[[], Any]] = [
        partial(check_array, storage, root.manifest, array) for array in arrays_of(root.manifest)
    ]
    looks.append(partial(read_index, storage, root))
    try:
        *_, index = gather(storage, operator.call, looks)
    except CorruptStoreError:
        # What was read is of two stores if one became the other meanwhile: rows or layers were added to it.
        if read_root(storage) == root:
            raise
        return _open(storage)
    return Store(storage, root, index)


class Store:
    """A store opened for reading; made by `open_store`. May be shared between threads and pickled."""

    def __init__(self, storage: Storage, root: Root, index: Index | None) -> None:
        self.storage = storage
        """Where it lies."""
        self.complete = index is not None
        """Whether every shard is finished and the store was completed."""
        self._root = root
        self._shards: ShardIndex = CompleteShards(index) if index else UnfinishedShards(storage, root)
        self._samples = SampleTable(storage, root, index, self._shards)

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
        if not is_completed(self.storage, self._root):
            return False
        listed = are_finished(self.storage, self.manifest)
        if listed is not None:
            return listed
        look, shards = partial(is_finished, self.storage, self.manifest), self.manifest.held_shards
        # On this machine the first that is not is enough; elsewhere many are looked at at once.
        return all(map(look, shards) if self.storage.folder else gather(self.storage, look, shards))

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
        return float32_bytes(self.manifest, len(self.finished_rows))

    @property
    def digest(self) -> str:
        """Names the content: manifest, samples, teacher and all hashes; no times, hosts or paths."""
        return self._shards.digest

    @property
    def arrays_digest(self) -> str:
        """Names the decoded values alone, in row order; the same for every shard size and compression."""
        return self._shards.arrays_digest

    @property
    def samples(self) -> pa.Table:
        """The sample table, with the outcomes of all finished shards.

        Raises:
            CorruptStoreError: samples.parquet is missing, altered or of another store.
        """
        return self._samples.table

    @property
    def bad_counts(self) -> dict[str, int]:
        """Bad rows of finished shards by their status; raises as `samples`."""
        return self._samples.bad_counts

    @property
    def finished_rows(self) -> Int64:
        """(n,) rows of finished shards, ascending."""
        return self._samples.finished_rows

    @cached_property
    def valid_rows(self) -> Int64:
        """(n,) finished rows whose image was ok, ascending."""
        return np.flatnonzero(self._samples.is_ok)

    @property
    def classes(self) -> tuple[str, ...]:
        """Labels that are there, sorted."""
        return self._samples.labels[0]

    @property
    def label_ids(self) -> Int64:
        """(num_rows,) place of each row's label in `classes`; -1 where it is unknown."""
        return self._samples.labels[1]

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
        return parse_kept_kinds(tokens, self.layout, self.kinds)

    @cached_property
    def chunks(self) -> ChunkSource:
        """The chunks of this store, for whoever plans its own reads."""
        return ChunkSource(self.storage, self.manifest, self._shards.files, self._samples.is_ok)

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
        return facts_of(self._root, self._shards, self._samples)
