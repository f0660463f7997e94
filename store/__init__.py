"""The activation store: planned, written shard by shard, verified, read and loaded.

    from activault.store import open_store, ActivationLoader

Importing this room imports what a reader needs, and neither torch nor zarr: the loader, and whatever writes,
checks or copies stores, comes with its first use.

A map of the room; FORMAT.md says what the files of a store mean:

    what a store is     layout, provenance, manifest, held, grid, extent; errors, remedies
    bytes               codecs, blosc, decoding, conversion, quantise, chunk_index, row_sums, statistics,
                        tally, shard_files, shard_writing
    tables and records  files, locks, sealed, outcomes, samples, sample_tables, records, presence, index,
                        root, metadata, completion; card, card_examples, markup
    places              storage, places, remote, remote_settings, answers, aws, fetching, cache_folder, cached
    writing             creation, differences, same_plan, buffer, checks, leases, staging,
                        mark_files, marks, collecting, shard_encoding, writer;
                        writing (the contract of writers)
    writing to a bucket objects, object_leases, object_planning, object_presence, object_shards,
                        object_completion, object_writer, scratch; writers (wherever a store lies)
    growing             growing (names), growing_plan, growing_writer, growing_join
    reading             selection, shards, reading, recycling, reader, facts, dask_arrays
    loading             units, sampling, splits, plan, turns, mixing, batches, pools, prefetch, loader_state,
                        loader
    verify and mend     verify, findings, check_structure, check_records, check_samples, check_precision,
                        check_statistics, check_bytes, check_values, reporting; repair_plan, repair,
                        restoring
    sharing             parts, sources, joins, copy_plan, copy_shard, copying, destinations, transfer,
                        merging; publishing, publish_files, occupied, targets, bucket, hub
    import              reference, reference_metadata, reference_files, reference_codec, row_lists,
                        import_plan, import_checks, import_blocks, importing
    helpers             cores (how many there are), models (the base of all pydantic ones), deferred (modules
                        that are imported at their first use), arrow (pyarrow so)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

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
    ShardTakenError,
    StorageError,
    StoreError,
    StoreMismatchError,
    UnreachableError,
    WeightsError,
)
from .grid import choose_grid
from .layout import KINDS, TokenKind, TokenLayout, layer_name, parse_kinds, parse_layers
from .manifest import FORMAT_VERSION, Manifest, StoredDtype
from .provenance import Preprocessing, SourceInfo, TeacherInfo
from .reader import Store, open_store
from .records import ShardRecord
from .samples import Outcome, plan_samples, split_of, split_rows
from .splits import hold_out_rows
from .statistics import ChannelStats

if TYPE_CHECKING:
    from .batches import Batch
    from .buffer import ShardBuffer
    from .creation import create_store
    from .loader import ActivationLoader
    from .merging import merge
    from .publishing import publish
    from .transfer import pull
    from .verify import Fault, VerifyReport, verify_store
    from .writer import StoreWriter

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
    "hold_out_rows",
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
    "ShardTakenError",
    "IncompleteStoreError",
    "StorageError",
    "AccessDeniedError",
    "UnreachableError",
    "CorruptStoreError",
    "PrecisionError",
    "NonFiniteError",
]

_LATER: Final = {
    "ShardBuffer": "buffer",
    "create_store": "creation",
    "ActivationLoader": "loader",
    "Batch": "batches",
    "merge": "merging",
    "publish": "publishing",
    "pull": "transfer",
    "Fault": "verify",
    "VerifyReport": "verify",
    "verify_store": "verify",
    "StoreWriter": "writer",
}
"""Files of the names that are imported at their first use: together they take as long as all the others."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f".{_LATER[name]}", __name__)
    except ModuleNotFoundError as exc:
        if exc.name != "torch":
            raise
        raise MissingExtraError(
            f"{name} needs torch, which is not installed; python -m pip install 'activault[all]'"
        ) from exc
    globals()[name] = getattr(module, name)  # the next time it is found without coming here
    return globals()[name]
