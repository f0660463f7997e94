"""What is to be done about a store that has faults, as a plan that can be kept, read and carried out.

A `VerifyReport` in, a `RepairPlan` out (pure, no disk); a plan and the store's path in, the store mended but
for the shards whose images have to go through the teacher again. Those are named by `forget_shards`, and
`activault.extract` does them.

A plan is bound to its store by the manifest's hash and is not trusted: it names shards and tables, and paths
are built from the manifest. Every step can be done again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

from pydantic import ConfigDict, Field, ValidationError

from .arrow import pa
from .completion import SAMPLES
from .errors import ConfigError, CorruptStoreError, StoreError, StoreMismatchError
from .fetching import FileToFetch
from .files import at_work, disk_error, parse_json, pretty_json
from .findings import Fault, VerifyReport
from .index import INDEX
from .manifest import Manifest
from .marks import begin_again
from .metadata import restore_metadata
from .models import Model
from .presence import has_record
from .records import SHARD_DIGITS, read_record
from .restoring import restore_records
from .root import Root, read_root
from .sealed import write_sealed
from .storage import Folder, Storage

__all__ = [
    "RepairPlan",
    "ShardRepair",
    "checked_root",
    "forget_shards",
    "plan_repair",
    "read_plan",
    "rebuild",
    "rebuild_samples",
    "write_plan",
]

Table = Literal["samples.parquet", "index.parquet"]
_TABLES: Final[tuple[Table, ...]] = ("samples.parquet", "index.parquet")
_VERIFY_AGAIN: Final = "make a new plan by `activault verify STORE --deep --repair-plan FILE`"


class _Part(Model):
    model_config = ConfigDict(strict=True)


class ShardRepair(_Part):
    """A shard whose images go through the teacher again."""

    shard: int = Field(ge=0)
    rows: tuple[int, int]
    """First row, and the row after the last."""
    why: tuple[str, ...]
    """What was found, one line a fault."""


class Reason(_Part):
    """A file that this plan does not mend, and why."""

    where: str
    why: str


class RepairPlan(_Part):
    """What is to be done; all of it is empty for a sound store."""

    format: Literal[1] = 1
    manifest: str
    """Manifest hash of the store; empty if the manifest itself cannot be read."""
    deep: bool
    """Whether every byte was looked at; if not, there may be more to do than this."""
    shards: tuple[ShardRepair, ...]
    """To be extracted again, ascending."""
    metadata: tuple[str, ...]
    """Made again from the manifest: `zarr.json` of layers and arrays, the folder `shards`."""
    records: tuple[int, ...]
    """Shards whose record is written again from index.parquet."""
    tables: tuple[Table, ...]
    """Made again from the records and the list of images."""
    delete: tuple[str, ...]
    """Records of shards that this store does not have."""
    from_copy: tuple[Reason, ...]
    """What only a copy of the store can restore."""
    out_of_reach: tuple[Reason, ...]
    """What could not be read: mend rights, disk or connection, and verify again."""

    @property
    def num_rows(self) -> int:
        """Rows to be extracted again."""
        return sum(stop - first for first, stop in (shard.rows for shard in self.shards))

    @property
    def needs_images(self) -> bool:
        """Whether the teacher is needed."""
        return bool(self.shards)


def plan_repair(report: VerifyReport) -> RepairPlan:
    """What is to be done about a report's faults. Pure."""
    manifest = report.manifest
    again = {fault.shard for fault in report.faults if fault.remedy == "extract" and fault.shard is not None}
    anew = [fault for fault in report.faults if fault.remedy == "rebuild"]
    tables = {SAMPLES, INDEX} & {fault.where for fault in anew}
    records = {fault.shard for fault in anew if fault.shard is not None} - again
    return RepairPlan(
        manifest="" if manifest is None else manifest.sha256(),
        deep=report.deep,
        shards=tuple(_shard(manifest, shard, report.faults) for shard in sorted(again) if manifest),
        metadata=tuple(f.where for f in anew if f.shard is None and f.where not in tables),
        records=tuple(sorted(records)),
        tables=tuple(table for table in _TABLES if table in tables),
        delete=tuple(fault.where for fault in report.faults if fault.remedy == "delete"),
        from_copy=_reasons(report.faults, "copy"),
        out_of_reach=_reasons(report.faults, "reach"),
    )


def _shard(manifest: Manifest, shard: int, faults: Iterable[Fault]) -> ShardRepair:
    rows = manifest.shard_range(shard)
    return ShardRepair(
        shard=shard,
        rows=(rows.start, rows.stop),
        why=tuple(str(fault) for fault in faults if fault.shard == shard and fault.remedy == "extract"),
    )


def _reasons(faults: Iterable[Fault], remedy: str) -> tuple[Reason, ...]:
    return tuple(
        Reason(where=fault.where, why=f"{fault.rule}; {fault.detail}")
        for fault in faults
        if fault.remedy == remedy
    )


def write_plan(path: Path, plan: RepairPlan) -> None:
    """Write a plan as JSON.

    Raises:
        StoreError: the file cannot be written.
    """
    try:
        path.write_bytes(pretty_json(plan.model_dump(mode="json")))
    except OSError as exc:
        raise StoreError(f"{path} could not be written ({exc.strerror}); choose another file") from exc


def read_plan(path: Path) -> RepairPlan:
    """A plan that `write_plan` wrote.

    Raises:
        ConfigError: there is no such file, or it is no plan.
    """
    try:
        text = path.read_bytes()
        parse_json(text, str(path))
        return RepairPlan.model_validate_json(text)
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read ({exc.strerror}); {_VERIFY_AGAIN}") from exc
    except (CorruptStoreError, ValidationError) as exc:
        raise ConfigError(f"{path} is no repair plan; {_VERIFY_AGAIN}") from exc


def checked_root(path: Path | str, plan: RepairPlan) -> Root:
    """The root of the store at `path`, of which the plan must be; nothing is touched.

    Raises:
        StoreMismatchError: the plan is another store's, or names a shard that this one does not have.
        CorruptStoreError: the store's own `zarr.json` cannot be read.
        NotAStoreError: there is no store.
    """
    root = read_root(Folder(path))
    if root.manifest.sha256() != plan.manifest:
        raise StoreMismatchError(f"the plan is of another store than {path}; {_VERIFY_AGAIN}")
    for shard in (*plan.records, *(part.shard for part in plan.shards)):
        if not root.manifest.holds(shard):
            raise StoreMismatchError(f"the plan names shard {shard}, which the store does not have")
    return root


def rebuild(path: Path | str, plan: RepairPlan) -> None:
    """Make again what the store itself implies: metadata, records out of the index, and no index that lies.

    No image is needed, and nothing that is sound is touched; a table is only removed here, for a writer's
    `complete` to write it again. An index goes only when `shards/` has all that it has.

    Raises:
        StoreMismatchError: the plan is another store's.
        CorruptStoreError: the store's own `zarr.json` or its index cannot be read.
        StoreError: the disk is full, read-only or gone.
    """
    path = Path(path)
    root = checked_root(path, plan)
    try:
        with at_work(path):
            restore_metadata(path, root.manifest, set(plan.metadata))
            _restore_records(path, root.manifest, plan.records)
            _delete(path, root.manifest, plan.delete)
            if INDEX in plan.tables:
                begin_again(path, ())
    except OSError as exc:
        raise disk_error(exc, path, 1 << 20) from exc


def _restore_records(path: Path, manifest: Manifest, shards: Iterable[int]) -> None:
    restore_records(path)
    for shard in shards:
        if not has_record(Folder(path), manifest, shard):
            raise CorruptStoreError(f"{INDEX} has no record of shard {shard} any more; {_VERIFY_AGAIN}")


def _delete(path: Path, manifest: Manifest, names: Iterable[str]) -> None:
    for name in names:
        folder, _, file = name.partition("/")
        number = file.removesuffix(".json")
        if folder == "shards" and number.isdecimal() and not manifest.holds(int(number[:SHARD_DIGITS])):
            (path / folder / file).unlink(missing_ok=True)


def forget_shards(path: Path | str, plan: RepairPlan) -> list[int]:
    """Make the plan's shards unfinished, so that a writer writes them again; returns them, ascending.

    A shard that has become sound since the plan was made is left out, every byte of it looked at: a repair
    that was interrupted goes on where it stopped, and an old plan does no harm.

    Raises:
        StoreMismatchError: the plan is another store's.
        StoreError: the disk is full, read-only or gone.
    """
    path = Path(path)
    manifest, storage = checked_root(path, plan).manifest, Folder(path)
    again = [part.shard for part in plan.shards if not _is_sound(storage, manifest, part.shard)]
    try:
        if again:
            with at_work(path):
                begin_again(path, again)
    except OSError as exc:
        raise disk_error(exc, path, 1 << 20) from exc
    return sorted(again)


def _is_sound(storage: Storage, manifest: Manifest, shard: int) -> bool:
    try:
        found = read_record(storage, manifest, shard)
        return found is not None and all(
            FileToFetch(storage, file.path, file.bytes, file.hash).is_sound()
            for file in (*found[0].files, found[0].statistics)
        )
    except CorruptStoreError:
        return False


def rebuild_samples(path: Path | str, plan: RepairPlan, samples: pa.Table) -> None:
    """Write the planned sample table again if the plan says so; completion brings the outcomes.

    Args:
        path: the store.
        plan: the plan.
        samples: the table as planned, which `create_store` has held against the store.

    Raises:
        StoreError: the disk is full, read-only or gone.
    """
    if SAMPLES not in plan.tables:
        return
    try:
        write_sealed(Path(path) / SAMPLES, samples)
    except OSError as exc:
        raise disk_error(exc, Path(path), samples.nbytes) from exc
