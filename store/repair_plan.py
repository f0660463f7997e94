"""What is to be done about a store that has faults, as a plan that can be kept and read.

A `VerifyReport` in, a `RepairPlan` out (pure); a plan to a file and back. `repair.py` carries it out. A plan
is bound to its store by the manifest's hash and is not trusted: it names shards and tables, never a path that
is followed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

from pydantic import ConfigDict, Field, ValidationError

from .completion import SAMPLES
from .errors import ConfigError, CorruptStoreError, StoreError
from .files import parse_json, pretty_json
from .findings import Fault, VerifyReport
from .index import INDEX
from .manifest import Manifest
from .models import Model
from .places import open_storage

__all__ = [
    "VERIFY_AGAIN",
    "RepairPlan",
    "ShardRepair",
    "plan_repair",
    "read_plan",
    "refuse_plan_file",
    "write_plan",
]

Table = Literal["samples.parquet", "index.parquet"]
_TABLES: Final[tuple[Table, ...]] = ("samples.parquet", "index.parquet")
_MOST_BYTES: Final = 1 << 30
"""Of a plan; a store of 2^17 shards, every array of which is damaged, has one of 200 MB."""
VERIFY_AGAIN: Final = "make a new plan by `activault verify STORE --deep --repair-plan FILE`"


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
    values: bool = False
    """Whether every value was held against the records; a shard is sound then if that finds nothing."""
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
        values=report.values,
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


def refuse_plan_file(path: Path, store: Path | str) -> None:
    """Refuse a file for a plan that lies in the store it is of, or that holds anything but a plan.

    Raises:
        ConfigError: it does.
    """
    folder = open_storage(store).folder
    if folder is not None and path.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"a repair plan is kept outside of its store; got {path}; choose another file")
    _refuse_other_file(path)


def _refuse_other_file(path: Path) -> None:
    if not path.is_file() or not path.stat().st_size:
        return
    try:
        if path.stat().st_size <= _MOST_BYTES:
            read_plan(path)
            return
    except ConfigError:
        pass
    raise ConfigError(
        f"{path} holds something that is no repair plan and stays as it is; choose another file"
    )


def write_plan(path: Path, plan: RepairPlan) -> None:
    """Write a plan as JSON, in the place of another at most.

    Raises:
        ConfigError: the file holds something else.
        StoreError: the file cannot be written.
    """
    try:
        _refuse_other_file(path)
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
        raise ConfigError(f"{path} cannot be read ({exc.strerror}); {VERIFY_AGAIN}") from exc
    except (CorruptStoreError, ValidationError) as exc:
        raise ConfigError(f"{path} is no repair plan; {VERIFY_AGAIN}") from exc
