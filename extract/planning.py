"""What a request means as a store: its manifest, the order of its rows, and whether a store is of it.

A source of images, a teacher and `ExtractOptions` in, the manifest out; what a store that is there has
decided (its grid, the steps of int8, licence and citation) is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from activault.store import (
    ConfigError,
    Manifest,
    Store,
    StoreMismatchError,
    TokenKind,
    TokenLayout,
    choose_grid,
    parse_kinds,
    parse_layers,
    plan_samples,
)
from activault.store.grid import SHARD_BUFFER_BYTES
from activault.store.manifest import Detail, Quantisation
from activault.store.places import open_storage
from activault.store.provenance import Preprocessing
from activault.store.root import read_root
from activault.store.writers import is_free

from .architectures import activation_of, outline, teacher_rules
from .backbone import Backbone
from .listing import ImageSource
from .machine import memory_bytes
from .options import ExtractOptions
from .order import Rows, chosen_rows, selection_details
from .preprocess import plan_preprocessing
from .tokens import KeptPatches, parse_patches
from .weights import DEMO_ARCHITECTURE, DEMO_SHA256, DEMO_SOURCE, hub_source

__all__ = [
    "Planned",
    "plan_manifest",
    "plan_table",
    "planned_at",
    "planned_layout",
    "refuse_other_request",
    "row_order",
]

_GROWTH: Final = {
    "rows": "; more images come to a finished store by --append",
    "source": "; more images come to a finished store by --append",
    "layers": "; more layers come to a finished store by --extend",
    "tokens": "; more tokens come to a finished store by --extend",
}
"""What to do where the difference may be that a store is to grow."""
_CHOSEN: Final = ("where", "split", "autocast", "compile", "batch_invariant")
"""Details of a store that are absent where nothing was chosen."""
Calibrate = Callable[[tuple[int, ...]], tuple[Quantisation, ...]]


@dataclass(frozen=True)
class Planned:
    """A store that is there, as far as a request is held against it."""

    path: str
    """For messages."""
    manifest: Manifest


def planned_at(where: Path | str) -> Planned | None:
    """What is planned at a path or URL; None where a store may be planned anew.

    Its own `zarr.json` alone is read: what else is damaged does not matter here.

    Raises:
        NotAStoreError: something else is there.
        CorruptStoreError: its `zarr.json` was altered.
    """
    return None if is_free(where) else Planned(str(where), read_root(open_storage(where)).manifest)


def refuse_other_request(
    there: Planned | Store,
    source: ImageSource,
    order: Rows,
    options: ExtractOptions,
    *,
    repairing: bool = False,
) -> None:
    """Compare a finished store with the request, without the teacher.

    Versions of timm and torch are left out: they say how it was made, and it is made. A store that is to be
    repaired may be a part of what is asked for.
    """
    has = there.manifest
    if has.teacher.name != options.teacher:
        raise _mismatch(there, "teacher", has.teacher.name, options.teacher)
    layers, kinds = _asked(options, has.teacher.num_blocks, has.layout, has if repairing else None)
    demo = options.teacher == "demo"
    patches = parse_patches(options.patches, has.layout.grid, options.seed)
    wanted: dict[str, tuple[object, object]] = {
        "weights": (has.teacher.weights, DEMO_SOURCE if demo else hub_source(options.teacher)),
        "weights_sha256": (has.teacher.weights_sha256, DEMO_SHA256 if demo else has.teacher.weights_sha256),
        **_preprocessing_pairs(has.preprocessing, options),
        "layers": (has.layers, layers),
        "tokens": (has.kinds, kinds),
        "patches": (_spoken_patches(has.layout.kept_patches), _spoken_patches(patches)),
        "dtype": (has.dtype, options.dtype),
        "compression": (has.compression, options.compression),
        "license": (has.license, has.license if options.license is None else options.license),
        "citation": (has.citation, has.citation if options.citation is None else options.citation),
        "shard_rows": (has.shard_rows, options.shard_rows or has.shard_rows),
        "seed": (has.row_seed, _row_seed(options)),
        "source": (has.source, source.info),
    }
    wanted["rows"] = (has.num_rows, len(order))
    _refuse_other_choice(there, options)
    for field, (old, new) in wanted.items():
        if old != new:
            raise _mismatch(there, field, old, new)


def _preprocessing_pairs(
    has: Preprocessing | None, options: ExtractOptions
) -> dict[str, tuple[object, object]]:
    """Each field of the preprocessing, there and as it would be planned now."""
    rules = teacher_rules(DEMO_ARCHITECTURE if options.teacher == "demo" else options.teacher)
    wanted = plan_preprocessing(options.input_size, rules, options.request)
    return {name: (getattr(has, name, None), value) for name, value in wanted}


def _spoken_patches(kept: KeptPatches) -> str:
    """`all`, `mean`, or how many places, and which by a short hash."""
    if not isinstance(kept, tuple):
        return kept or "all"
    return f"{len(kept)} places ({hashlib.sha256(repr(kept).encode()).hexdigest()[:8]})"


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


def _refuse_other_choice(there: Planned | Store, options: ExtractOptions) -> None:
    """First what was asked for, since other numbers of rows follow from it."""
    has = dict(there.manifest.details)
    if has.get("appended") is not None:
        raise StoreMismatchError(
            f"{there.path} has rows that came to it later ({has['appended']}), so that no request of its own "
            "has them in this order; add images to it by --append, bring back what was damaged from a copy, "
            "or choose another path"
        )
    for name, value in (dict.fromkeys(_CHOSEN) | _details(options)).items():
        if has.get(name) != value:
            raise _mismatch(there, name, has.get(name), value)


def _asked(
    options: ExtractOptions, num_blocks: int, layout: TokenLayout, repaired: Manifest | None
) -> tuple[tuple[int, ...], tuple[TokenKind, ...]]:
    """Layers and kinds of a request, or those of a store that is repaired, if it holds some of them alone."""
    layers = parse_layers(options.layers, range(num_blocks + 1))
    kinds = parse_kinds(options.tokens, layout)
    if repaired is not None:
        layers = repaired.layers if set(repaired.layers) <= set(layers) else layers
        kinds = repaired.kinds if set(repaired.kinds) <= set(kinds) else kinds
    return layers, kinds


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
    selection = selection_details(options.where, options.split)
    return {"max_pixels": options.max_pixels, **selection, **options.arithmetic.details}


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
        StoreMismatchError: another store is there (found out here where it saves the calibration).
    """
    there = existing()
    part = there.manifest if there is not None and repairing else None
    if there is not None:
        _refuse_other_choice(there, options)
    layout = planned_layout(backbone, options)
    layers, kinds = _asked(options, backbone.num_blocks, layout, part)
    grid = _grid(num_rows, len(layers), kinds, layout, backbone.dim, options, there)
    if part is not None and part.dtype == options.dtype and part.layers == layers:
        quantisation = part.quantisation  # also where patches are left out
    else:
        quantisation = _quantisation(layers, kinds, options, existing, calibrate)
    told = {"license": "unknown", "citation": ""}
    if there is not None:
        told = {"license": there.manifest.license, "citation": there.manifest.citation}
    return Manifest(
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
        row_seed=_row_seed(options),
        shards=None if part is None else part.shards,
        license=told["license"] if options.license is None else options.license,
        citation=told["citation"] if options.citation is None else options.citation,
        details=tuple(sorted((_details(options) | _teacher_details(backbone)).items())),
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
    return choose_grid(
        num_rows=num_rows,
        layout=layout,
        kinds=kinds,
        num_layers=num_layers,
        dim=dim,
        dtype=options.dtype,
        shard_rows=options.shard_rows,
        # Two buffers are alive at once, beside what the writer and the teacher need: a quarter of the memory
        # at most, or half of it for whoever asks for more rows a shard, to have fewer files.
        buffer_bytes=memory_bytes() // 4
        if options.shard_rows is not None
        else min(SHARD_BUFFER_BYTES, memory_bytes() // 8),
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
        f"choose another path, or ask for what is there{_GROWTH.get(field, '')}"
    )
