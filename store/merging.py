"""`merge`: parts of one store become one: different shards, or different layers and kinds of the same rows.

Paths or URLs in, one store in a folder out, every byte of it held against its hash. Merging all parts of a
store gives that store again, with its digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .copy_plan import CopyPlan, Piece
from .copying import Progress, copy_store
from .destinations import checked_destination
from .differences import first_difference, spoken
from .errors import ConfigError, StoreMismatchError
from .fetching import Retries
from .joins import RecordPiece, picked, refuse_contradictions
from .layout import KINDS
from .manifest import Manifest, Quantisation
from .parts import part_samples
from .records import ArrayFile, ArrayKey, ShardRecord, array_folder, arrays_of
from .root import make_root
from .sources import CopySource, open_source
from .storage import Storage

__all__ = ["Merge", "merge", "plan_merge"]

_REMEDY = "merge parts of one store"


@dataclass(frozen=True)
class Merge:
    """A merger that is planned."""

    sources: tuple[CopySource, ...]
    plan: CopyPlan

    def run(
        self,
        out: Path | str,
        *,
        num_threads: int = 8,
        retries: Retries | None = None,
        progress: Progress | None = None,
    ) -> Path:
        """Copy; see `copying.copy_store` for what is raised. Returns the path of what was made."""
        path = checked_destination(out, self.sources)
        copy_store(self.plan, path, num_threads=num_threads, retries=retries, progress=progress)
        return path


def merge(
    sources: Sequence[Path | str | Storage],
    out: Path | str,
    *,
    num_threads: int = 8,
    retries: Retries | None = None,
    progress: Progress | None = None,
) -> Path:
    """Join stores with the same manifest and different shards, or with the same rows and different layers.

    The sources are left as they are. Run it again and it goes on where it stopped. The result has every
    layer, kind and shard of the sources; it is complete if every shard that they are of is finished in one.

    Args:
        sources: two or more paths or URLs.
        out: a folder of this machine: nothing, empty, or what an earlier merger of the same left.
        num_threads: files under way at once.
        retries: patience with the sources.
        progress: told `(bytes done, bytes in all)`.

    Returns:
        The path of the result.

    Raises:
        ConfigError: fewer than two sources.
        StoreMismatchError: they are not parts of one store, contradict one another, or leave gaps; what and
            where is named. Or another store is at `out`.
        CorruptStoreError, StorageError, StoreError: as of `pull`.
    """
    return plan_merge(sources).run(out, num_threads=num_threads, retries=retries, progress=progress)


def plan_merge(sources: Sequence[Path | str | Storage]) -> Merge:
    """What `merge` would make; reads the sources' metadata alone, and raises as it does of the sources."""
    if len(sources) < 2:
        raise ConfigError(f"a merger is of two or more stores; got {len(sources)}")
    opened = tuple(open_source(source) for source in sources)
    for other in opened[1:]:
        _refuse_strangers(opened[0], other)
    manifest = _union(opened)
    finished = sorted(frozenset().union(*(source.finished_set for source in opened)))
    shards = {shard: _pieces(opened, manifest, shard) for shard in finished}
    teacher = opened[0].root.teacher
    files = [file for shard, pieces in shards.items() for file in _files_and_bytes(pieces, shard)]
    plan = CopyPlan(
        root=make_root(manifest, opened[0].root.samples, teacher),
        samples=lambda: part_samples(opened[0].samples, manifest),
        teacher=opened[0],
        shards=shards,
        num_files=sum(num for num, _ in files) + len(teacher),
        num_bytes=sum(size for _, size in files) + sum(file.bytes for file in teacher.values()),
    )
    return Merge(opened, plan)


def _files_and_bytes(pieces: Iterable[Piece], shard: int) -> list[tuple[int, int]]:
    """Files and bytes of a shard, a piece at a time, with the statistics."""
    found = [(1, 0)]
    for piece in pieces:
        given = piece.of(shard)
        files = picked(given)
        found.append((len(files), sum(file.bytes for file in files) + given.record.statistics.bytes))
    return found


def _refuse_strangers(one: CopySource, other: CopySource) -> None:
    """Refuse stores that are not parts of one plan."""
    parts = {"layers", "kinds", "quantisation", "shards"}
    theirs = other.manifest.model_copy(update={name: getattr(one.manifest, name) for name in parts})
    difference = first_difference(one.manifest, theirs)
    if difference is None and one.root.samples != other.root.samples:
        difference = ("the sample table", one.root.samples, other.root.samples)
    if difference is None:
        names = sorted(one.root.teacher.keys() | other.root.teacher.keys())
        files = ((name, one.root.teacher.get(name), other.root.teacher.get(name)) for name in names)
        difference = next((file for file in files if file[1] != file[2]), None)
    if difference is not None:
        field, first, second = difference
        raise StoreMismatchError(
            f"{one.where} and {other.where} are not parts of one store: {field} is {spoken(first)} in the "
            f"first and {spoken(second)} in the second; {_REMEDY}"
        )


def _union(sources: Sequence[CopySource]) -> Manifest:
    """The manifest with all layers, kinds and shards of the sources."""
    manifests = [source.manifest for source in sources]
    layers = sorted({layer for manifest in manifests for layer in manifest.layers})
    kinds = {kind for manifest in manifests for kind in manifest.kinds}
    whole = ((0, manifests[0].num_shards),)
    ranges = _joined(span for manifest in manifests for span in manifest.shards or whole)
    ordered = [kind for kind in KINDS if kind in kinds]
    return manifests[0].with_parts(layers, ordered, ranges, _steps(sources))


def _joined(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranges `(first, stop)` that together hold the same numbers, ascend and do not touch."""
    joined: list[tuple[int, int]] = []
    for first, stop in sorted(ranges):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((first, stop))
    return tuple(joined)


def _steps(sources: Sequence[CopySource]) -> dict[int, Quantisation]:
    """Every layer's scales; refused where two sources have different ones."""
    steps: dict[int, tuple[str, Quantisation]] = {}
    for source in sources:
        for layer, step in zip(source.manifest.layers, source.manifest.quantisation or (), strict=False):
            where, known = steps.setdefault(layer, (source.where, step))
            if known != step:
                raise StoreMismatchError(
                    f"{where} and {source.where} are not parts of one store: the quantisation of layer "
                    f"{layer} differs; {_REMEDY}"
                )
    return {layer: step for layer, (_, step) in steps.items()}


def _pieces(sources: Sequence[CopySource], manifest: Manifest, shard: int) -> tuple[Piece, ...]:
    """Who gives which arrays of a shard.

    Raises:
        StoreMismatchError: two sources have different files, disagree about the images, or an array would be
            missing.
    """
    holders = _holders(sources, shard)
    given: dict[ArrayKey, tuple[CopySource, ArrayFile]] = {}
    for source, record in holders:
        for array, file in zip(arrays_of(source.manifest), record.files, strict=True):
            first, known = given.setdefault(array, (source, file))
            if known != file:
                raise StoreMismatchError(
                    f"shard {shard} is not the same in both: {file.path} has the hash {known.hash} in "
                    f"{first.where} and {file.hash} in {source.where}; leave one of the two stores out"
                )
    refuse_contradictions([RecordPiece(source.where, record, ()) for source, record in holders])
    missing = [array for array in arrays_of(manifest) if array not in given]
    if missing:
        places = ", ".join(array_folder(array.layer, array.kind) for array in missing[:3])
        rows = manifest.shard_range(shard)
        raise StoreMismatchError(
            f"a merger has every array for the same rows; no source has finished {places}"
            f"{' ...' if len(missing) > 3 else ''} of rows {rows.start}:{rows.stop} (shard {shard}), and "
            f"{', '.join(sorted({giver.where for giver, _ in given.values()}))} has the rest of them; add a "
            "store that has them, or pull the parts that fit first"
        )
    return tuple(
        Piece(source, tuple(array for array, (giver, _) in given.items() if giver is source))
        for source, _ in holders
        if any(giver is source for giver, _ in given.values())
    )


def _holders(sources: Sequence[CopySource], shard: int) -> list[tuple[CopySource, ShardRecord]]:
    """Sources that have finished a shard, and their records; first those that know the images' contents.

    So the merged record knows them whichever source is named first.
    """
    holders = [
        (source, source.record(shard))
        for source in sources
        if source.manifest.holds(shard) and shard in source.finished_set
    ]
    return sorted(holders, key=lambda holder: holder[1].images is None)
