"""What a grown store is to be, and the part of it that has to be written: manifests and sample tables. Pure.

The old store's manifest and what comes to it in; the manifest of the grown store, of the part that is new (a
partial copy of the grown one), and tables of their rows out.

Of more rows the new part has the shards from the first on that is not as long as it will be. Of more layers
or kinds it has all shards, and the new arrays alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from .arrow import pa
from .differences import first_difference, spoken
from .errors import StoreMismatchError
from .layout import KINDS, TokenKind, TokenLayout
from .manifest import Detail, Manifest, Quantisation
from .provenance import SourceInfo
from .records import ArrayKey, array_folder, arrays_of
from .root import Root
from .samples import PENDING, content_hash, plan_samples, samples_schema

__all__ = [
    "appended_manifest",
    "appended_samples",
    "extended_manifest",
    "first_new_shard",
    "grown_manifest",
    "new_arrays",
    "new_part",
    "refuse_other_store",
]

_OF_ROWS: Final = ("num_rows", "source", "details", "shards")
_OF_ARRAYS: Final = ("layers", "kinds", "layout", "quantisation", "details")
"""Fields that growth may change."""
_PLANNED: Final = ("key", "label", "source")


def first_new_shard(old: Manifest) -> int:
    """The first shard that more rows change: the last one where it is not full, else the next."""
    return old.num_rows // old.shard_rows


def appended_manifest(
    old: Manifest, num_rows: int, source: SourceInfo, details: Mapping[str, Detail]
) -> Manifest:
    """The manifest of a store with more rows.

    Args:
        old: of the store as it is.
        num_rows: in all, afterwards.
        source: where all rows are from, then.
        details: in addition to what stands there.
    """
    fields = {
        "num_rows": num_rows,
        "source": source.model_dump(),
        "details": dict(old.details) | dict(details),
    }
    return Manifest.model_validate(old.model_dump() | fields)


def extended_manifest(
    old: Manifest,
    layers: Sequence[int],
    kinds: Sequence[TokenKind],
    layout: TokenLayout,
    steps: Mapping[int, Quantisation],
    details: Mapping[str, Detail],
) -> Manifest:
    """The manifest of a store with more layers or kinds.

    Args:
        old: of the store as it is.
        layers: in all, afterwards, ascending.
        kinds: in all, in the layout's order.
        layout: of the tokens; another one than before only if patches come to a store without them.
        steps: int8's of the new layers.
        details: in addition to what stands there.
    """
    known = dict(zip(old.layers, old.quantisation or (), strict=False)) | dict(steps)
    fields = {
        "layers": tuple(layers),
        "kinds": tuple(kinds),
        "layout": layout.model_dump(),
        "quantisation": [known[layer].model_dump() for layer in layers] if known else None,
        "details": dict(old.details) | dict(details),
    }
    return Manifest.model_validate(old.model_dump() | fields)


def new_part(old: Manifest, grown: Manifest) -> Manifest:
    """The manifest of what the grown store has and the old one has not."""
    if grown.num_rows > old.num_rows:
        shards = ((first_new_shard(old), grown.num_shards),)
        return grown.with_parts(grown.layers, grown.kinds, shards)
    layers = [layer for layer in grown.layers if layer not in old.layers] or grown.layers
    kinds = [kind for kind in grown.kinds if kind not in old.kinds] or grown.kinds
    return grown.with_parts(layers, kinds, grown.shards or ((0, grown.num_shards),))


def grown_manifest(old: Manifest, part: Manifest) -> Manifest:
    """The manifest of the grown store, from the old one's and that of the part that is new."""
    if part.num_rows > old.num_rows:
        return part.with_parts(part.layers, part.kinds, ((0, part.num_shards),))
    layers = sorted({*old.layers, *part.layers})
    kinds = [kind for kind in KINDS if kind in {*old.kinds, *part.kinds}]
    both = (old, part)
    steps = {n: step for m in both for n, step in zip(m.layers, m.quantisation or (), strict=False)}
    return part.with_parts(layers, kinds, part.shards or ((0, part.num_shards),), steps)


def new_arrays(old: Manifest, grown: Manifest) -> list[ArrayKey]:
    """Arrays of the grown store that the old one has not."""
    there = set(arrays_of(old))
    return [array for array in arrays_of(grown) if array not in there]


def appended_samples(
    old: pa.Table, keys: Sequence[str], labels: Sequence[str | None], source: str
) -> pa.Table:
    """The planned table of a store with more rows: the old ones', then one for each of `keys`.

    Raises:
        ConfigError: there are no keys, or one is there twice.
    """
    new = plan_samples(keys, labels, source)
    count = len(old) + len(new)
    columns: dict[str, Any] = {
        "row": pa.array(range(count), pa.int64()),
        "status": pa.repeat(pa.scalar(PENDING, pa.string()), count),
        **{name: pa.chunked_array([*old[name].chunks, *new[name].chunks], pa.string()) for name in _PLANNED},
    }
    for field in samples_schema():
        columns.setdefault(field.name, pa.nulls(count, field.type))
    return pa.table(columns, schema=samples_schema())


def refuse_other_store(old: Root, part: Root, samples: pa.Table, where: str) -> None:
    """Refuse a new part that was planned for another store than the one it lies in.

    Args:
        old: the store's.
        part: the new part's.
        samples: the new part's table.
        where: the store, for messages.

    Raises:
        StoreMismatchError: it was; the first difference is named.
    """
    grown = grown_manifest(old.manifest, part.manifest)
    may_change = _OF_ROWS if grown.num_rows > old.manifest.num_rows else _OF_ARRAYS
    ours = grown.model_copy(update={name: getattr(old.manifest, name) for name in may_change})
    found = first_difference(old.manifest, ours)
    if found is None and grown.num_rows == old.manifest.num_rows:
        both = set(arrays_of(old.manifest)) & set(arrays_of(part.manifest))
        places = sorted(array_folder(array.layer, array.kind) for array in both)
        found = ("what it has", places[0], "the same") if places else None
    if found is None and content_hash(samples.slice(0, old.manifest.num_rows)) != old.samples:
        found = ("the sample table", old.samples, part.samples)
    if found is not None:
        field, there, asked = found
        raise StoreMismatchError(
            f"{where} became another store since something was to be added to it: {field} is {spoken(there)} "
            f"there and {spoken(asked)} in what is being added; remove {where}/.growing, and add it again"
        )
