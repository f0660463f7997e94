"""Whether a store is of a request: each field of it there and as it is asked for.

A store's manifest, `ExtractOptions` and the source's row order in; nothing, or `StoreMismatchError` with the
first field that differs, out. The teacher is not loaded for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from activault.store import (
    Manifest,
    Store,
    StoreMismatchError,
    TokenKind,
    TokenLayout,
    parse_kinds,
    parse_layers,
)
from activault.store.differences import first_difference, spoken
from activault.store.manifest import Detail
from activault.store.places import open_storage
from activault.store.presence import nothing_finished
from activault.store.provenance import Preprocessing
from activault.store.root import read_root
from activault.store.writers import is_free

from .architectures import teacher_rules
from .flags import as_option, asked_with
from .listing import ImageSource
from .options import ExtractOptions
from .order import Rows, selection_details
from .preprocess import plan_preprocessing
from .tokens import parse_patches, spoken_patches
from .weights import DEMO_ARCHITECTURE, DEMO_SHA256, DEMO_SOURCE, hub_source

__all__ = [
    "Planned",
    "asked",
    "choice_details",
    "mismatch",
    "planned_at",
    "refuse_other_choice",
    "refuse_other_manifest",
    "refuse_other_request",
    "row_seed",
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
        raise mismatch(there, "teacher", has.teacher.name, options.teacher)
    layers, kinds = asked(options, has.teacher.num_blocks, has.layout, has if repairing else None)
    demo = options.teacher == "demo"
    patches = parse_patches(options.patches, has.layout.grid, options.seed)
    wanted: dict[str, tuple[object, object]] = {
        "weights": (has.teacher.weights, DEMO_SOURCE if demo else hub_source(options.teacher)),
        "weights_sha256": (has.teacher.weights_sha256, DEMO_SHA256 if demo else has.teacher.weights_sha256),
        **_preprocessing_pairs(has.preprocessing, options),
        "layers": (has.layers, layers),
        "tokens": (has.kinds, kinds),
        "patches": (spoken_patches(has.layout.kept_patches), spoken_patches(patches)),
        "dtype": (has.dtype, options.dtype),
        "compression": (has.compression, options.compression),
        "license": (has.license, has.license if options.license is None else options.license),
        "citation": (has.citation, has.citation if options.citation is None else options.citation),
        "shard_rows": (has.shard_rows, options.shard_rows or has.shard_rows),
        "seed": (has.row_seed, row_seed(options)),
        "source": (has.source, source.info),
    }
    wanted["rows"] = (has.num_rows, len(order))
    refuse_other_choice(there, options)
    for field, (old, new) in wanted.items():
        if old != new:
            raise mismatch(there, field, old, new)


def _preprocessing_pairs(
    has: Preprocessing | None, options: ExtractOptions
) -> dict[str, tuple[object, object]]:
    """Each field of the preprocessing, there and as it would be planned now."""
    rules = teacher_rules(DEMO_ARCHITECTURE if options.teacher == "demo" else options.teacher)
    wanted = plan_preprocessing(options.input_size, rules, options.request)
    return {name: (getattr(has, name, None), value) for name, value in wanted}


def refuse_other_choice(there: Planned | Store, options: ExtractOptions) -> None:
    """First what was asked for, since other numbers of rows follow from it."""
    has = dict(there.manifest.details)
    if has.get("appended") is not None:
        raise StoreMismatchError(
            f"{there.path} has rows that came to it later ({has['appended']}), so that no request of its own "
            "has them in this order; add images to it by --append, bring back what was damaged from a copy, "
            "or choose another path"
        )
    for name, value in (dict.fromkeys(_CHOSEN) | choice_details(options)).items():
        if has.get(name) != value:
            raise mismatch(there, name, has.get(name), value)


def asked(
    options: ExtractOptions, num_blocks: int, layout: TokenLayout, repaired: Manifest | None
) -> tuple[tuple[int, ...], tuple[TokenKind, ...]]:
    """Layers and kinds of a request, or those of a store that is repaired, if it holds some of them alone."""
    layers = parse_layers(options.layers, range(num_blocks + 1))
    kinds = parse_kinds(options.tokens, layout)
    if repaired is not None:
        layers = repaired.layers if set(repaired.layers) <= set(layers) else layers
        kinds = repaired.kinds if set(repaired.kinds) <= set(kinds) else kinds
    return layers, kinds


def row_seed(options: ExtractOptions) -> int | None:
    """The seed of the rows' order; None where it is the source's."""
    return options.seed if options.order == "shuffled" else None


def choice_details(options: ExtractOptions) -> dict[str, Detail]:
    """What the manifest has no field for."""
    selection = selection_details(options.where, options.split)
    return {"max_pixels": options.max_pixels, **selection, **options.arithmetic.details}


def refuse_other_manifest(there: Planned, manifest: Manifest) -> None:
    """Hold a store's whole plan against the one of a request.

    Raises:
        StoreMismatchError: a field differs.
    """
    difference = first_difference(there.manifest, manifest)
    if difference is not None:
        raise mismatch(there, *difference)


def mismatch(there: Planned | Store, field: str, old: object, new: object) -> StoreMismatchError:
    """The error of a field that differs, with what to do."""
    name, *values = as_option(field, old, new)
    has, wanted = ("not given" if value is None else spoken(value) for value in values)
    more = nothing_finished(open_storage(there.path), there.manifest) or _GROWTH.get(name, "")
    return StoreMismatchError(
        f"{there.path} was planned differently: {name} is {has} there and {wanted} here; choose another "
        f"path, or ask for what is there{asked_with(name, values[0])}{more}"
    )
