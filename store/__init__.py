"""The activation store: planned, written shard by shard, verified, read and loaded.

    from activault.store import open_store, ActivationLoader

Importing this room imports neither torch nor zarr; `ActivationLoader` and `Batch` come with the first use.

A map of the room; FORMAT.md says what the files of a store mean:

    what a store is     layout, manifest, held, grid; errors, remedies
    bytes               codecs, blosc, decoding, conversion, quantise, chunk_index, row_sums, statistics,
                        shard_files, shard_writing
    tables and records  files, sealed, samples, sample_tables, records, index, root, completion; card, markup
    places              storage, places, remote, answers, aws, fetching
    writing             creation, buffer, checks, marks, writer
    reading             selection, shards, reading, recycling, reader, facts, dask_arrays; plan,
                        prefetch, loader
    verify and mend     verify, findings, check_structure, check_records, check_samples, check_precision,
                        check_bytes; repair, restoring
    sharing             parts, sources, joins, copy_plan, copy_shard, copying, destinations, transfer,
                        merging; publishing, publish_files, occupied, targets, bucket, hub
    import              reference, row_lists, import_plan, import_blocks, importing
    helpers             cores (how many there are), deferred (modules that are imported at their first use)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .buffer import ShardBuffer
from .creation import create_store
from .errors import (
    AccessDeniedError,
    ActivaultError,
    ConfigError,
    CorruptStoreError,
    ImageSourceError,
    IncompleteStoreError,
    MissingExtraError,
    NonFiniteError,
    NotAStoreError,
    PrecisionError,
    RunError,
    ShardBusyError,
    StorageError,
    StoreError,
    StoreMismatchError,
    UnreachableError,
    WeightsError,
)
from .grid import choose_grid
from .layout import KINDS, TokenKind, TokenLayout, layer_name, parse_kinds, parse_layers
from .manifest import FORMAT_VERSION, Manifest, Preprocessing, SourceInfo, StoredDtype, TeacherInfo
from .merging import merge
from .publishing import publish
from .reader import Store, open_store
from .records import ShardRecord
from .samples import Outcome, plan_samples, split_of, split_rows
from .statistics import ChannelStats
from .transfer import pull
from .verify import Fault, VerifyReport, verify_store
from .writer import StoreWriter

if TYPE_CHECKING:
    from .loader import ActivationLoader, Batch

__all__ = [
    "open_store",
    "create_store",
    "verify_store",
    "pull",
    "merge",
    "publish",
    "ActivationLoader",
    "Batch",
    "Store",
    "StoreWriter",
    "ShardBuffer",
    "ShardRecord",
    "ChannelStats",
    "VerifyReport",
    "Fault",
    "Manifest",
    "TeacherInfo",
    "Preprocessing",
    "SourceInfo",
    "StoredDtype",
    "FORMAT_VERSION",
    "choose_grid",
    "Outcome",
    "plan_samples",
    "split_of",
    "split_rows",
    "KINDS",
    "TokenKind",
    "TokenLayout",
    "layer_name",
    "parse_kinds",
    "parse_layers",
    "ActivaultError",
    "ConfigError",
    "MissingExtraError",
    "WeightsError",
    "ImageSourceError",
    "RunError",
    "StoreError",
    "NotAStoreError",
    "StoreMismatchError",
    "ShardBusyError",
    "IncompleteStoreError",
    "StorageError",
    "AccessDeniedError",
    "UnreachableError",
    "CorruptStoreError",
    "PrecisionError",
    "NonFiniteError",
]

_NEEDS_TORCH = ("ActivationLoader", "Batch")


def __getattr__(name: str) -> Any:
    if name in _NEEDS_TORCH:
        try:
            from . import loader
        except ModuleNotFoundError as exc:
            if exc.name != "torch":
                raise
            raise MissingExtraError(
                f"{name} needs torch, which is not installed; python -m pip install 'activault[all]'"
            ) from exc
        return getattr(loader, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
