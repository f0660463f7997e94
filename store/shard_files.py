"""One array's shard on disk: written whole through zarr-python, read back chunk by chunk without it.

Float32 (rows, tokens, dim) in, the hashes of the file and of the values out; chunks (chunk_rows, tokens, dim)
come back one at a time, each checked.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .codecs import checked, decode_chunk
from .errors import CorruptStoreError
from .files import stored_xxh3, sync_file, xxh3
from .layout import TokenKind
from .manifest import Manifest
from .records import ArrayFile, ArrayKey, array_file, array_folder
from .storage import Folder, Storage

__all__ = ["ShardFile", "write_shard_file"]

Float32 = npt.NDArray[np.float32]
_CHUNKS_AT_ONCE: Final = 2
_opening = threading.Lock()
_ABSENT: Final = 2**64 - 1
"""An index entry of a chunk that was never written."""


def write_shard_file(
    store: Path, manifest: Manifest, array: ArrayKey, shard: int, values: Float32
) -> ArrayFile:
    """Write one array's shard and bring it to disk; returns what the record says of it.

    Raises:
        OSError: the disk is full, read-only or gone.
    """
    # Imported here because reading needs no zarr: it would double the time that opening a store takes.
    import zarr

    path = array_file(array.layer, array.kind, shard)
    file = store / path
    # zarr merges into a file that is there, and a killed writer may have left any.
    file.unlink(missing_ok=True)
    rows = manifest.shard_range(shard)
    folder = store / array_folder(array.layer, array.kind)
    # An array takes this over when it is opened; the setting is the process's, hence the lock.
    with _opening, zarr.config.set({"array.write_empty_chunks": True}):
        target: Any = zarr.open_array(str(folder), mode="r+", zarr_format=3)
    # Chunks are compressed a few at a time: zarr's ten at once would hold ten more copies of a chunk.
    with zarr.config.set({"async.concurrency": _CHUNKS_AT_ONCE}):
        target[rows.start : rows.stop] = values
    sync_file(file)
    # The folders up to the array's own: each may be new, and its name lives in the one above.
    for parent in (file.parent, file.parent.parent, folder / "c", folder):
        sync_file(parent)
    return ArrayFile(
        path=path, bytes=file.stat().st_size, hash=stored_xxh3(Folder(store), path), values=xxh3(values)
    )


class ShardFile:
    """One array's shard file, opened for reading; a context manager.

    Raises:
        CorruptStoreError: the file is missing, of another size than its record says, or its index is altered.
        StorageError: it cannot be read.
    """

    def __init__(self, storage: Storage, manifest: Manifest, record: ArrayFile, kind: TokenKind) -> None:
        self._shape = manifest.chunk_shape(kind)
        self._what = record.path
        self._size = record.bytes
        try:
            self._file = storage.open(record.path)
        except FileNotFoundError as exc:
            raise CorruptStoreError(
                f"{record.path} is missing; its shard's record says that it is there"
            ) from exc
        try:
            self._index = self._read_index(manifest.chunks_per_shard)
        except BaseException:
            self._file.__exit__(None, None, None)
            raise

    def __enter__(self) -> ShardFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, value, trace)

    def _read_index(self, num_chunks: int) -> npt.NDArray[np.uint64]:
        size = self._file.size
        if size != self._size:
            raise CorruptStoreError(f"{self._what} must have {self._size} bytes; it has {size}")
        length = 16 * num_chunks + 4
        if length > size:
            raise CorruptStoreError(
                f"{self._what} must hold an index of {num_chunks} chunks; it is too short"
            )
        data = checked(self._file.read(size - length, length), f"{self._what}: index")
        return np.frombuffer(data, "<u8").reshape(num_chunks, 2)

    def read_chunk(self, chunk: int, out: Float32) -> None:
        """Decode inner chunk `chunk` of the shard into `out` (chunk_rows, tokens, dim).

        Raises:
            CorruptStoreError: the chunk is missing, altered or does not lie in the file.
        """
        assert out.shape == self._shape
        assert out.flags.c_contiguous
        offset, length = (int(value) for value in self._index[chunk])
        what = f"{self._what}: chunk {chunk}"
        if offset == length == _ABSENT:
            raise CorruptStoreError(f"{what} is missing")
        if offset + length > self._size:
            raise CorruptStoreError(
                f"{what} must lie within {self._size} bytes; the index says {offset}+{length}"
            )
        decode_chunk(self._file.read(offset, length), out, what)
