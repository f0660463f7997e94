"""One array's shard on disk: written whole through zarr-python, read back chunk by chunk without it.

Float32 (rows, tokens, dim) in, the hashes of the file and of the values out; chunks (chunk_rows, tokens, dim)
come back one at a time, each checked.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .chunk_index import IndexCache, join_spans, read_chunk_index
from .codecs import decode_chunk
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

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        record: ArrayFile,
        kind: TokenKind,
        indices: IndexCache,
    ) -> None:
        self._shape = manifest.chunk_shape(kind)
        self._what = record.path
        with self._missing_told():
            self._file = storage.open(record.path, record.bytes)
        try:
            with self._missing_told():  # a file that is far away is missing only when it is read
                self._index = indices.get(
                    record, lambda: read_chunk_index(self._file, record, manifest.chunks_per_shard)
                )
        except BaseException:
            self._file.__exit__(None, None, None)
            raise

    @contextlib.contextmanager
    def _missing_told(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as exc:
            raise CorruptStoreError(
                f"{self._what} is missing; its shard's record says that it is there"
            ) from exc

    def __enter__(self) -> ShardFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, value, trace)

    def encoded(self, chunks: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """`(chunk, its bytes)` of inner chunks in the order of the file; close ones come by one request.

        Raises:
            CorruptStoreError: a chunk is missing or does not lie in the file.
            StorageError: the file cannot be read.
        """
        for span in join_spans(self._index, chunks):
            with self._missing_told():
                data = self._file.read(span.start, span.stop - span.start)
            for chunk, offset, length in span.chunks:
                start = offset - span.start
                yield chunk, data[start : start + length]

    def decode(self, chunk: int, data: bytes, out: Float32) -> None:
        """Decode inner chunk `chunk` of the shard into `out` (chunk_rows, tokens, dim).

        Raises:
            CorruptStoreError: it is altered.
        """
        assert out.shape == self._shape
        assert out.flags.c_contiguous
        decode_chunk(data, out, f"{self._what}: chunk {chunk}")
