"""What a request means as a store: its manifest, its tokens and the order of its rows.

A source of images, a teacher and `ExtractOptions` in, the manifest out; what a store that is there has
decided (its grid, the steps of int8, licence and citation) is kept.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from activault.store import (
    ConfigError,
    Manifest,
    TokenKind,
    TokenLayout,
    choose_grid,
    parse_kinds,
    plan_samples,
)
from activault.store.cores import memory_bytes
from activault.store.grid import SHARD_BUFFER_BYTES
from activault.store.manifest import Detail, Quantisation
from activault.store.provenance import UNKNOWN

from .architectures import activation_of, outline
from .backbone import Backbone
from .calibration import Calibrate
from .listing import ImageSource
from .matching import (
    Planned,
    asked,
    choice_details,
    mismatch,
    refuse_other_choice,
    refuse_other_manifest,
    row_seed,
)
from .options import ExtractOptions
from .order import Rows, chosen_rows
from .tokens import parse_patches

__all__ = ["plan_manifest", "plan_table", "planned_layout", "row_order"]


def planned_layout(backbone: Backbone, options: ExtractOptions) -> TokenLayout:
    """The tokens of a layer that the store will have.

    Raises:
        ConfigError: patches are chosen that there are not, or although none are kept.
    """
    layout = backbone.layout
    kept = parse_patches(options.patches, layout.grid, options.seed)
    if kept is not None and "patches" not in parse_kinds(options.tokens, layout):
        raise ConfigError(
            f"patches are {options.patches}, but tokens are {options.tokens}, without patches; keep them too"
        )
    return TokenLayout.model_validate(layout.model_dump() | {"kept_patches": kept})


def row_order(source: ImageSource, options: ExtractOptions) -> Rows:
    """Places in the source by row."""
    return chosen_rows(
        source, seed=row_seed(options), limit=options.limit, where=options.where, split=options.split
    )


def plan_table(source: ImageSource, order: Rows) -> pa.Table:
    """The sample table of a store of these rows."""
    keys, labels = ([column[place] for place in order.tolist()] for column in (source.keys, source.labels))
    return plan_samples(keys, labels, source.info.name)


def _teacher_details(backbone: Backbone) -> dict[str, Detail]:
    """What timm's name of the architecture does not say."""
    own = activation_of(outline(backbone.info.architecture))
    activation = activation_of(backbone.vit)
    return {} if activation == own else {"activation": activation}


def plan_manifest(
    source: ImageSource,
    num_rows: int,
    backbone: Backbone,
    options: ExtractOptions,
    existing: Callable[[], Planned | None],
    calibrate: Calibrate,
    *,
    repairing: bool = False,
) -> Manifest:
    """The manifest of a request.

    Args:
        source: the images.
        num_rows: how many of them.
        backbone: the teacher.
        options: the request.
        existing: the store that is there now, if any.
        calibrate: steps for an int8 store's layers; called only if there is no store that has them.
        repairing: whether the store that is there is to be repaired: of a partial copy its layers, kinds and
            shards are kept.

    Raises:
        ConfigError: options do not fit the teacher or each other.
        StoreMismatchError: another store is there.
    """
    there = existing()
    part = there.manifest if there is not None and repairing else None
    if there is not None:
        refuse_other_choice(there, options)
    layout = planned_layout(backbone, options)
    layers, kinds = asked(options, backbone.num_blocks, layout, part)
    grid = _grid(num_rows, len(layers), kinds, layout, backbone.dim, options, there)
    if part is not None and part.dtype == options.dtype and part.layers == layers:
        quantisation = part.quantisation  # also where patches are left out
    else:
        quantisation = _quantisation(layers, kinds, layout, options, existing, calibrate)
    license_, citation = _told(options, there)
    manifest = Manifest(
        num_rows=num_rows,
        layers=layers,
        kinds=kinds,
        layout=layout,
        dtype=options.dtype,
        compression=options.compression,
        quantisation=quantisation,
        shard_rows=grid[0],
        chunk_rows=grid[1],
        teacher=backbone.info,
        preprocessing=backbone.preprocessing,
        source=source.info,
        row_seed=row_seed(options),
        shards=None if part is None else part.shards,
        license=license_,
        citation=citation,
        details=tuple(sorted((choice_details(options) | _teacher_details(backbone)).items())),
    )
    if there is not None:
        refuse_other_manifest(there, manifest)
    return manifest


def _told(options: ExtractOptions, there: Planned | None) -> tuple[str, str]:
    """Licence and citation: as they are asked for, else as the store there has them."""
    license_, citation = (UNKNOWN, "") if there is None else (there.manifest.license, there.manifest.citation)
    return (
        license_ if options.license is None else options.license,
        citation if options.citation is None else options.citation,
    )


def _grid(
    num_rows: int,
    num_layers: int,
    kinds: tuple[TokenKind, ...],
    layout: TokenLayout,
    dim: int,
    options: ExtractOptions,
    there: Planned | None,
) -> tuple[int, int]:
    if there is not None and options.shard_rows in (None, there.manifest.shard_rows):
        # A store that was begun elsewhere keeps its grid, whatever this machine's memory would suggest.
        return there.manifest.shard_rows, there.manifest.chunk_rows
    memory = memory_bytes() // options.local_world
    return choose_grid(
        num_rows=num_rows,
        layout=layout,
        kinds=kinds,
        num_layers=num_layers,
        dim=dim,
        dtype=options.dtype,
        shard_rows=options.shard_rows,
        # Two buffers are alive at once, beside what the writer and the teacher need: a quarter of a worker's
        # memory at most, or half of it for whoever asks for more rows a shard, to have fewer files.
        buffer_bytes=memory // 4 if options.shard_rows is not None else min(SHARD_BUFFER_BYTES, memory // 8),
    )


def _quantisation(
    layers: tuple[int, ...],
    kinds: tuple[TokenKind, ...],
    layout: TokenLayout,
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
        calibrated = calibrate(layers, layout)
        found = _steps_there(existing(), layers) or calibrated
    return found


def _steps_there(there: Planned | None, layers: tuple[int, ...]) -> tuple[Quantisation, ...] | None:
    if there is None:
        return None
    has = there.manifest
    for field, old, new in (("dtype", has.dtype, "int8"), ("layers", has.layers, layers)):
        if old != new:
            raise mismatch(there, field, old, new)
    return has.quantisation
