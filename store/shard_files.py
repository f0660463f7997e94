"""One array's shard read back, inner chunk by inner chunk; `shard_writing.py` writes it.

A shard's record in; stored values (chunk_rows, tokens, dim) out, one chunk at a time, each checked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from .cached import open_recorded
from .chunk_index import MAX_GAP_BYTES, IndexCache, join_spans, read_chunk_index
from .codecs import most_chunk_bytes
from .decoding import decode_chunk
from .errors import CorruptStoreError
from .layout import TokenKind
from .manifest import Manifest
from .records import ArrayFile
from .storage import Storage

__all__ = ["ShardFile"]

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]


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
        self._compression = manifest.compression
        self._what = record.path
        self._most = most_chunk_bytes(self._shape)
        # Here nothing that is not wanted is read: asking twice costs microseconds.
        self._max_gap = 0 if storage.folder is not None else MAX_GAP_BYTES
        with self._missing_is_corrupt():
            self._file = open_recorded(storage, record)
        try:
            with self._missing_is_corrupt():  # a file that is far away is missing only when it is read
                self._index = indices.get(
                    record, lambda: read_chunk_index(self._file, record, manifest.chunks_per_shard)
                )
        except BaseException:
            self._file.__exit__(None, None, None)
            raise

    @contextlib.contextmanager
    def _missing_is_corrupt(self) -> Iterator[None]:
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

    def encoded(
        self, chunks: Iterable[int], space: Callable[[int, int], Bytes]
    ) -> Iterator[tuple[int, Bytes]]:
        """`(chunk, its bytes)` of inner chunks in the order of the file; close ones come by one request.

        `space` gives memory for so many bytes from a place of the file on; it may be the same each time.

        Raises:
            CorruptStoreError: a chunk is missing or does not lie in the file.
            StorageError: the file cannot be read.
        """
        for span in join_spans(self._index, chunks, self._max_gap):
            longest = max(length for *_, length in span.chunks)
            if longest > self._most:
                raise CorruptStoreError(
                    f"{self._what}: a chunk has at most {self._most} bytes; the index says {longest}"
                )
            data = space(span.stop - span.start, span.start)
            with self._missing_is_corrupt():
                self._file.fill(data.data, span.start)
            for chunk, offset, length in span.chunks:
                start = offset - span.start
                yield chunk, data[start : start + length]

    def decode(self, chunk: int, data: Bytes, scratch: Array, rows: Int64) -> Array:
        """Stored values (chunk_rows, tokens, dim) of inner chunk `chunk`; `rows` of them are right.

        `data` may be written over, and `scratch` is room for them; see `decode_chunk`.

        Raises:
            CorruptStoreError: it is altered.
        """
        assert scratch.shape == self._shape
        assert scratch.flags.c_contiguous
        return decode_chunk(data, scratch, f"{self._what}: chunk {chunk}", self._compression, rows)
