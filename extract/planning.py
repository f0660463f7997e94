"""What a request means as a store: its manifest, the order of its rows, and whether a store is of it.

A source of images, a teacher and `ExtractOptions` in, the manifest out; what a store that is there has
decided (its grid, the steps of int8, licence and citation) is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from activault.store import (
    ConfigError,
    Manifest,
    Store,
    StoreMismatchError,
    TokenKind,
    choose_grid,
    parse_kinds,
    parse_layers,
    plan_samples,
)
from activault.store.creation import is_free
from activault.store.grid import SHARD_BUFFER_BYTES
from activault.store.manifest import Detail, Quantisation
from activault.store.root import read_root
from activault.store.storage import Folder

from .backbone import Backbone
from .listing import ImageSource
from .machine import memory_bytes
from .options import ExtractOptions
from .order import Rows, chosen_rows, selection_details
from .preprocess import default_resize
from .weights import DEMO_SHA256, DEMO_SOURCE, hub_source

__all__ = ["Planned", "plan_manifest", "plan_table", "planned_at", "refuse_other_request", "row_order"]

Calibrate = Callable[[tuple[int, ...]], tuple[Quantisation, ...]]


@dataclass(frozen=True)
class Planned:
    """A store that is there, as far as a request is held against it."""

    path: str
    """For messages."""
    manifest: Manifest


def planned_at(path: Path) -> Planned | None:
    """What is planned at `path`; None where a store may be planned anew.

    Its own `zarr.json` alone is read: what else is damaged does not matter here.

    Raises:
        NotAStoreError: something else is there.
        CorruptStoreError: its `zarr.json` was altered.
    """
    return None if is_free(path) else Planned(str(path), read_root(Folder(path)).manifest)


def refuse_other_request(
    there: Planned | Store, source: ImageSource, order: Rows, options: ExtractOptions
) -> None:
    """Compare a finished store with the request, without the teacher.

    Versions of timm and torch are left out: they say how it was made, and it is made.
    """
    has = there.manifest
    resize = options.resize or default_resize(options.input_size)
    demo = options.teacher == "demo"
    wanted: dict[str, tuple[object, object]] = {
        "teacher": (has.teacher.name, options.teacher),
        "weights": (has.teacher.weights, DEMO_SOURCE if demo else hub_source(options.teacher)),
        "weights_sha256": (has.teacher.weights_sha256, DEMO_SHA256 if demo else has.teacher.weights_sha256),
        "image_size": (has.preprocessing and has.preprocessing.image_size, options.input_size),
        "resize": (has.preprocessing and has.preprocessing.resize, resize),
        "layers": (has.layers, parse_layers(options.layers, range(has.teacher.num_blocks + 1))),
        "tokens": (has.kinds, parse_kinds(options.tokens, has.layout)),
        "dtype": (has.dtype, options.dtype),
        "compression": (has.compression, options.compression),
        "license": (has.license, has.license if options.license is None else options.license),
        "citation": (has.citation, has.citation if options.citation is None else options.citation),
        "shard_rows": (has.shard_rows, options.shard_rows or has.shard_rows),
        "orientation": (has.preprocessing and has.preprocessing.orientation, options.orientation),
        "seed": (has.row_seed, _row_seed(options)),
        "source": (has.source, source.info),
    }
    for name, value in ({"where": None, "split": None} | _details(options)).items():
        wanted[name] = (dict(has.details).get(name), value)
    wanted["rows"] = (has.num_rows, len(order))
    for field, (old, new) in wanted.items():
        if old != new:
            raise _mismatch(there, field, old, new)


def row_order(source: ImageSource, options: ExtractOptions) -> Rows:
    """Places in the source by row."""
    return chosen_rows(
        source, seed=_row_seed(options), limit=options.limit, where=options.where, split=options.split
    )


def plan_table(source: ImageSource, order: Rows) -> pa.Table:
    """The sample table of a store of these rows."""
    keys, labels = ([column[place] for place in order.tolist()] for column in (source.keys, source.labels))
    return plan_samples(keys, labels, source.info.name)


def _row_seed(options: ExtractOptions) -> int | None:
    return options.seed if options.order == "shuffled" else None


def _details(options: ExtractOptions) -> dict[str, Detail]:
    """What the manifest has no field for."""
    return {"max_pixels": options.max_pixels, **selection_details(options.where, options.split)}


def plan_manifest(
    source: ImageSource,
    num_rows: int,
    backbone: Backbone,
    options: ExtractOptions,
    existing: Callable[[], Planned | None],
    calibrate: Calibrate,
) -> Manifest:
    """The manifest of a request.

    Args:
        source: the images.
        num_rows: how many of them.
        backbone: the teacher.
        options: the request.
        existing: the store that is there now, if any.
        calibrate: steps for an int8 store's layers; called only if there is no store that has them.

    Raises:
        ConfigError: options do not fit the teacher or each other.
        StoreMismatchError: another store is there (found out here where it saves the calibration).
    """
    there = existing()
    layers = parse_layers(options.layers, range(backbone.num_blocks + 1))
    kinds = parse_kinds(options.tokens, backbone.layout)
    grid = _grid(num_rows, len(layers), kinds, backbone, options, there)
    quantisation = _quantisation(layers, kinds, options, existing, calibrate)
    told = {"license": "unknown", "citation": ""}
    if there is not None:
        told = {"license": there.manifest.license, "citation": there.manifest.citation}
    return Manifest(
        num_rows=num_rows,
        layers=layers,
        kinds=kinds,
        layout=backbone.layout,
        dtype=options.dtype,
        compression=options.compression,
        quantisation=quantisation,
        shard_rows=grid[0],
        chunk_rows=grid[1],
        teacher=backbone.info,
        preprocessing=backbone.preprocessing.model_copy(update={"orientation": options.orientation}),
        source=source.info,
        row_seed=_row_seed(options),
        license=told["license"] if options.license is None else options.license,
        citation=told["citation"] if options.citation is None else options.citation,
        details=tuple(sorted(_details(options).items())),
    )


def _grid(
    num_rows: int,
    num_layers: int,
    kinds: tuple[TokenKind, ...],
    backbone: Backbone,
    options: ExtractOptions,
    there: Planned | None,
) -> tuple[int, int]:
    if there is not None and options.shard_rows in (None, there.manifest.shard_rows):
        # A store that was begun elsewhere keeps its grid, whatever this machine's memory would suggest.
        return there.manifest.shard_rows, there.manifest.chunk_rows
    return choose_grid(
        num_rows=num_rows,
        layout=backbone.layout,
        kinds=kinds,
        num_layers=num_layers,
        dim=backbone.dim,
        dtype=options.dtype,
        shard_rows=options.shard_rows,
        # Two buffers are alive at once, beside what the writer and the teacher need.
        buffer_bytes=min(SHARD_BUFFER_BYTES, memory_bytes() // 8),
    )


def _quantisation(
    layers: tuple[int, ...],
    kinds: tuple[TokenKind, ...],
    options: ExtractOptions,
    existing: Callable[[], Planned | None],
    calibrate: Calibrate,
) -> tuple[Quantisation, ...] | None:
    if options.dtype != "int8":
        return None
    if "patches" not in kinds:
        raise ConfigError(f"int8 is for patches, and tokens are {', '.join(kinds)}; choose bfloat16")
    found = _steps_there(existing(), layers)
    if found is None:
        # Calibrating takes a while: whoever has planned the store meanwhile has also chosen its steps.
        calibrated = calibrate(layers)
        found = _steps_there(existing(), layers) or calibrated
    return found


def _steps_there(there: Planned | None, layers: tuple[int, ...]) -> tuple[Quantisation, ...] | None:
    if there is None:
        return None
    has = there.manifest
    for field, old, new in (("dtype", has.dtype, "int8"), ("layers", has.layers, layers)):
        if old != new:
            raise _mismatch(there, field, old, new)
    return has.quantisation


def _mismatch(there: Planned | Store, field: str, old: object, new: object) -> StoreMismatchError:
    return StoreMismatchError(
        f"{there.path} was planned differently: {field} is {old!r} there and {new!r} here; "
        "choose another path, or ask for what is there"
    )
