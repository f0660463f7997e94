"""What a store that is to grow settles of the request: its teacher, preprocessing, dtype and all the rest.

An opened store and what was said (names and values of `ExtractOptions`) in; `ExtractOptions` and the teacher
out. Nothing need be said again; what is said must be what the store says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch

from activault.store import (
    ConfigError,
    IncompleteStoreError,
    Manifest,
    Store,
    StoreMismatchError,
    TokenKind,
    WeightsError,
    open_store,
    parse_kinds,
    parse_layers,
)
from activault.store.manifest import Detail
from activault.store.places import as_place
from activault.store.provenance import Preprocessing

from .architectures import teacher_rules
from .backbone import Backbone, load_backbone, load_teacher
from .decode import MAX_PIXELS
from .options import OF_RUN, ExtractOptions
from .preprocess import plan_preprocessing
from .teacher_files import CONFIG, WEIGHTS
from .tokens import parse_patches, spoken_patches
from .weights import DEMO_ARCHITECTURE

__all__ = [
    "asked_kinds",
    "asked_layers",
    "finished_store",
    "local_folder",
    "refuse_other_weights",
    "settled",
    "teacher_of",
    "versions",
]

Asked = Mapping[str, Any]
_FREE: Final = ("source", "weights", "where", "split", *OF_RUN)
"""Options that are not part of a store, or only of the rows that come."""
_SWITCHES: Final = ("compile", "batch_invariant")
"""Options that are on where a store notes anything of them."""
_RULES: Final = ("resize", "interpolation", "crop_mode")
_COLOURS: Final = ("mean", "std")
_NOT_NOW: Final = {
    "limit": "choose rows with --where, or by a table of paths: said again it would add as many once more",
    "teacher_weights": "the teacher's files stay as they are",
}


def local_folder(store: Path | str) -> Path:
    """The folder of a store that is to grow.

    Raises:
        ConfigError: it is a URL.
    """
    place = as_place(store)
    if isinstance(place, str):
        raise ConfigError(
            f"stores grow in a folder of this machine, by renaming files; {store} is a URL; `activault pull` "
            "it, let the copy grow, and publish that"
        )
    return place


def finished_store(path: Path) -> Store:
    """The store, opened.

    Raises:
        NotAStoreError: there is none.
        IncompleteStoreError: it is not complete, or files of it are missing.
    """
    store = open_store(path)
    if not store.complete:
        raise IncompleteStoreError(
            f"finished stores grow; {path} has {len(store.finished_rows)} of {store.num_rows} rows; run "
            "again what made it, then this"
        )
    if not store.is_whole:
        raise IncompleteStoreError(
            f"whole stores grow; files of {path} are missing or cut short; `activault verify {path}` tells "
            "which, and what mends them"
        )
    return store


def settled(there: Store, asked: Asked, free: Collection[str] = ()) -> ExtractOptions:
    """The options by which the store was made, with those that were asked for and are not the store's.

    Args:
        there: the store.
        asked: options that were said, by their names in `ExtractOptions`; None says nothing.
        free: further names that may differ.

    Raises:
        StoreMismatchError: one of them is not as in the store; names the field and both values.
        ConfigError: one of them has no meaning where a store grows.
    """
    asked = {name: value for name, value in asked.items() if value is not None}
    for name, reason in _NOT_NOW.items():
        if name in asked:
            raise ConfigError(f"{name} is not for a store that grows; leave it out: {reason}")
    decided = _decided(there)
    known = {field.name for field in fields(ExtractOptions)}
    chosen = {*_FREE, *free}
    kept = {name: value for name, value in asked.items() if name in chosen or name not in decided}
    options = ExtractOptions(**{name: value for name, value in (decided | kept).items() if name in known})
    # Without what would contradict a crop mode that was said: a resize has no meaning beside `squash`.
    said = {name: value for name, value in decided.items() if name not in _RULES} | asked
    _refuse_others(there, ExtractOptions(**said), set(asked) - chosen)
    return options


def _decided(there: Store) -> dict[str, Any]:
    manifest = there.manifest
    rules = _preprocessing(there)
    details: dict[str, Detail] = dict(manifest.details)
    max_pixels = details.get("max_pixels")
    decided: dict[str, Any] = {
        "teacher": manifest.teacher.name,
        "image_size": rules.image_size,
        "preprocessing": "reference",
        "resize": rules.resize,
        "interpolation": rules.interpolation,
        "crop_mode": rules.crop_mode,
        "mean": rules.mean,
        "std": rules.std,
        "orientation": rules.orientation,
        "layers": ",".join(map(str, manifest.layers)),
        "tokens": ",".join(manifest.kinds),
        "dtype": manifest.dtype,
        "compression": manifest.compression,
        "license": manifest.license,
        "citation": manifest.citation,
        "shard_rows": manifest.shard_rows,
        "order": "kept" if manifest.row_seed is None else "shuffled",
        "max_pixels": max_pixels if isinstance(max_pixels, int) else MAX_PIXELS,
    }
    if manifest.row_seed is not None:
        decided["seed"] = manifest.row_seed
    noted = {field.name for field in fields(ExtractOptions)} - {*_FREE, *decided}
    return decided | {
        name: True if name in _SWITCHES else value for name, value in details.items() if name in noted
    }


def _preprocessing(there: Store) -> Preprocessing:
    found = there.manifest.preprocessing
    if found is None:
        raise ConfigError(
            f"{there.path} does not say how its images were prepared, so that others cannot be prepared the "
            "same way; only stores that `activault extract` made grow"
        )
    return found


def _refuse_others(there: Store, options: ExtractOptions, asked: set[str]) -> None:
    """Hold what was said against what the store says."""
    manifest, rules = there.manifest, _preprocessing(there)
    pairs: dict[str, tuple[object, object]] = {
        "teacher": (manifest.teacher.name, options.teacher),
        "image_size": (rules.image_size, options.input_size),
        **{
            name: (getattr(rules, name), getattr(options, name))
            for name in (*_RULES, *_COLOURS, "orientation")
        },
        **{
            name: (getattr(manifest, name), getattr(options, name))
            for name in ("dtype", "compression", "license", "citation", "shard_rows")
        },
        "order": ("kept" if manifest.row_seed is None else "shuffled", options.order),
    }
    if manifest.row_seed is not None:
        pairs["seed"] = (manifest.row_seed, options.seed)
    if "layers" in asked:
        pairs["layers"] = (manifest.layers, asked_layers(there, options.layers))
    if "tokens" in asked:
        pairs["tokens"] = (manifest.kinds, asked_kinds(there, options.tokens))
    if "patches" in asked:
        kept = parse_patches(options.patches, manifest.layout.grid, options.seed)
        pairs["patches"] = (spoken_patches(manifest.layout.kept_patches), spoken_patches(kept))
    pairs |= {name: _detail_pair(there, name, getattr(options, name)) for name in asked - pairs.keys()}
    for name in sorted(asked - {"preprocessing"}):
        _refuse(there, name, *pairs[name])
    if "preprocessing" in asked:
        _refuse_other_rules(there, rules, options)


def _detail_pair(there: Store, name: str, value: object) -> tuple[object, object]:
    """What the store notes of an option that the manifest has no field for."""
    return _decided(there).get(name, ExtractOptions.__dataclass_fields__[name].default), value


def _refuse_other_rules(there: Store, rules: Preprocessing, options: ExtractOptions) -> None:
    """Whose rules were asked for is not noted; what follows from them is."""
    name = there.manifest.teacher.name
    wanted = plan_preprocessing(
        rules.image_size,
        teacher_rules(DEMO_ARCHITECTURE if name == "demo" else name),
        options.request,
    )
    for field, value in wanted:
        _refuse(there, field, getattr(rules, field), value)


def _refuse(there: Store, name: str, has: object, asked: object) -> None:
    if has != asked:
        raise StoreMismatchError(
            f"what comes to a store is made as the store was: {name} is {has!r} in {there.path} and "
            f"{asked!r} here; leave --{name.replace('_', '-')} out, or extract to another path"
        )


def asked_layers(there: Store, layers: str) -> tuple[int, ...]:
    """Layers of the teacher, `all` or some."""
    return parse_layers(layers, range(there.manifest.teacher.num_blocks + 1))


def asked_kinds(there: Store, tokens: str) -> tuple[TokenKind, ...]:
    """Kinds of the teacher, `all` or some."""
    return parse_kinds(tokens, there.layout)


def teacher_of(there: Store, options: ExtractOptions) -> Backbone:
    """The store's own teacher: from its files, else from `weights`, else as `extract` finds it by its name.

    Raises:
        WeightsError: there are none, or others than the store was made with.
        StoreMismatchError: it would see images otherwise, or has other tokens.
    """
    manifest, folder = there.manifest, there.teacher_dir
    if options.weights is None and (folder / WEIGHTS).exists():
        backbone = load_teacher(folder)
    elif options.weights is None and not (folder / CONFIG).exists():
        raise WeightsError(f"{there.path} carries no teacher; only stores that `activault extract` made grow")
    else:
        backbone = load_backbone(
            options.teacher, weights=options.weights, image_size=options.image_size, request=options.request
        )
    found = backbone.info.weights_sha256
    if found != manifest.teacher.weights_sha256:
        where = options.weights or f"the teacher {options.teacher}"
        raise WeightsError(
            f"{where} holds other weights (hash {found}) than {there.path} was made with (hash "
            f"{manifest.teacher.weights_sha256}, {manifest.teacher.weights}); give those with --weights"
        )
    for name, has, ours in (
        ("architecture", manifest.teacher.architecture, backbone.info.architecture),
        ("preprocessing", manifest.preprocessing, backbone.preprocessing),
        ("tokens", manifest.layout.model_copy(update={"kept_patches": None}), backbone.layout),
    ):
        if has != ours:
            raise StoreMismatchError(
                f"what comes to a store is made as the store was: the teacher's {name} is {has!r} in "
                f"{there.path} and {ours!r} here; extract to another path"
            )
    return backbone


def refuse_other_weights(there: Store, options: ExtractOptions) -> None:
    """Hold weights that were said against the store's, where nothing is computed with them.

    Raises:
        WeightsError: they are others than the store was made with.
    """
    if options.weights is not None:
        teacher_of(there, options)


def versions(manifest: Manifest) -> dict[str, Detail]:
    """What to note of timm and torch where they are other versions than the store was made with."""
    pairs = {
        "timm": (manifest.teacher.timm_version, version("timm")),
        "torch": (manifest.teacher.torch_version, str(torch.__version__)),
    }
    return {f"grown_by_{name}": now for name, (was, now) in pairs.items() if was != now}
