"""`pull`: a store, or some of its layers, token kinds and rows, from anywhere into a folder of this machine.

A path or URL in, a complete store of its own out, every byte of it held against its hash.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .copy_plan import CopyPlan, Piece, kept_shards
from .copying import Progress, copy_store
from .creation import is_free
from .destinations import checked_destination
from .fetching import Retries
from .parts import Part, choose_part, part_samples
from .records import ArrayKey, array_file, arrays_of
from .root import make_root
from .sources import CopySource, open_source
from .storage import Storage

__all__ = ["Pull", "plan_pull", "pull"]


@dataclass(frozen=True)
class Pull:
    """A copy that is planned, and told before anything is copied."""

    source: CopySource
    part: Part
    plan: CopyPlan

    @property
    def num_files(self) -> int:
        """Array, statistics and teacher files."""
        return self.plan.num_files

    @property
    def num_bytes(self) -> int:
        """Bytes of them."""
        return self.plan.num_bytes

    @property
    def num_unfinished(self) -> int:
        """Shards of the part that the source has not finished; they are left out."""
        return len(self.part.manifest.held_shards) - len(self.plan.shards)

    def checked(self, destination: Path | str) -> Path:
        """The path of the copy; `ConfigError` if none can be there."""
        return checked_destination(destination, [self.source])

    def bytes_there(self, destination: Path) -> int:
        """Bytes that need not be copied, as an earlier pull has; 0 where nothing is."""
        return 0 if is_free(destination) else sum(kept_shards(self.plan, destination).values())

    def run(
        self,
        destination: Path | str,
        *,
        deep: bool = False,
        num_threads: int = 8,
        retries: Retries | None = None,
        progress: Progress | None = None,
    ) -> Path:
        """Copy; see `copying.copy_store` for what is raised. Returns the copy's path."""
        path = self.checked(destination)
        copy_store(self.plan, path, deep=deep, num_threads=num_threads, retries=retries, progress=progress)
        return path


def plan_pull(
    source: Path | str | Storage,
    layers: str | Iterable[int] | None = None,
    tokens: str | Iterable[str] | None = None,
    rows: str | range | slice | None = None,
) -> Pull:
    """What `pull` would copy, with the same arguments; reads the source's metadata alone.

    Raises: as `pull` does of the source.
    """
    opened = open_source(source)
    part = choose_part(opened.manifest, layers, tokens, rows)
    pieces = (Piece(opened, tuple(arrays_of(part.manifest))),)
    # Those that are finished are as many as there are records; a manifest may claim 2^40.
    shards = [shard for shard in opened.finished if part.manifest.holds(shard)]
    num_bytes = sum(file.bytes for file in opened.root.teacher.values())
    for shard in shards:
        num_bytes += _shard_bytes(opened, pieces[0].arrays, shard)
    per_shard = len(pieces[0].arrays) + 1
    plan = CopyPlan(
        root=make_root(part.manifest, opened.root.samples, opened.root.teacher),
        samples=lambda: part_samples(opened.samples, part.manifest),
        teacher=opened,
        shards=dict.fromkeys(shards, pieces),
        num_files=len(shards) * per_shard + len(opened.root.teacher),
        num_bytes=num_bytes,
    )
    return Pull(opened, part, plan)


def _shard_bytes(source: CopySource, arrays: Iterable[ArrayKey], shard: int) -> int:
    record = source.record(shard)
    sizes = {file.path: file.bytes for file in record.files}
    wanted = sum(sizes[array_file(array.layer, array.kind, shard)] for array in arrays)
    return wanted + record.statistics.bytes


def pull(
    source: Path | str | Storage,
    destination: Path | str,
    layers: str | Iterable[int] | None = None,
    tokens: str | Iterable[str] | None = None,
    rows: str | range | slice | None = None,
    *,
    deep: bool = False,
    num_threads: int = 8,
    retries: Retries | None = None,
    progress: Progress | None = None,
) -> Path:
    """Copy a store or a part of it, verified on arrival; run it again and it goes on where it stopped.

    Where the source is not finished, what is finished is copied and the copy is unfinished too: pull again
    when the source has gone on.

    Args:
        source: a path, `http(s)://` or `s3://`.
        destination: a folder of this machine: nothing, empty, or what an earlier pull of the same left.
        layers: `"7-12"` or numbers; None is all.
        tokens: `"cls,patches"` or kinds; None is all.
        rows: `"0:10000"` or a range, widened to whole shards; None is all.
        deep: read what is there already and hold it against its hashes too; what is not what was written is
            copied again. Without it, names and sizes of array files are looked at.
        num_threads: files under way at once.
        retries: patience with the source.
        progress: told `(bytes done, bytes in all)`.

    Returns:
        The copy's path.

    Raises:
        ConfigError: layers, kinds or rows are not in the source; the destination is the source or within it,
            or names nothing.
        NotAStoreError: the source is no store, or something else is at the destination.
        StoreMismatchError: another store is at the destination; the first difference is named.
        CorruptStoreError: the source is damaged; no damaged file is left in the copy.
        AccessDeniedError, UnreachableError: the source cannot be read.
        StoreError: the disk has no room, is read-only or gone; finished shards are kept.
    """
    planned = plan_pull(source, layers, tokens, rows)
    return planned.run(destination, deep=deep, num_threads=num_threads, retries=retries, progress=progress)
