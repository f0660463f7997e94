"""What writes a store's shards, wherever the store lies: the one contract that extraction keeps to.

`StoreWriter` writes into a folder, `ObjectWriter` into a bucket; `writers.create_writer` makes either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, Self, runtime_checkable

from .arrow import pa
from .buffer import ShardBuffer
from .manifest import Manifest
from .records import ShardRecord
from .samples import Outcome

__all__ = ["ShardWriter"]


@runtime_checkable  # for the tests, which check annotations
class ShardWriter(Protocol):
    """Writes the shards of a planned store; a context manager, safe to call from several threads.

    Any number of writers may work on one store, on any machines: each computes the shards that it claims.
    """

    @property
    def manifest(self) -> Manifest:
        """What is to be stored."""

    @property
    def samples(self) -> pa.Table:
        """The table as planned."""

    @property
    def unfinished(self) -> list[int]:
        """Shards without a valid record, or whose files are not all there with their recorded sizes."""

    def is_finished(self, shard: int) -> bool:
        """Whether a shard has a valid record, and all its files are there with their recorded sizes."""

    def rounds(self, shards: Sequence[int]) -> Iterator[Sequence[int]]:
        """Those of `shards` that are to be written, again and again until all are finished."""

    def claim(self, shard: int) -> bool:
        """Become an unfinished shard's owner before it is computed; False if it is another's, or finished."""

    def buffer(self, shard: int) -> ShardBuffer:
        """An empty buffer for one shard."""

    def publish(
        self, buffer: ShardBuffer, outcomes: Sequence[Outcome], threads: int | None = None
    ) -> ShardRecord:
        """Check a shard, write it and make it valid; see `StoreWriter.publish`."""

    def complete(self) -> None:
        """Merge all outcomes into samples.parquet and write index.parquet; every shard must be finished."""

    def close(self) -> None:
        """Give up claimed shards."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...
