"""What the columns of a Parquet file are: images, labels by their names, single values as text. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from activault.store.errors import ConfigError, ImageSourceError

from .options import SourceOptions

__all__ = ["ImageColumn", "as_texts", "class_names", "image_column", "is_single", "label_column"]

_LABELS: Final = ("label", "labels", "class")


@dataclass(frozen=True)
class ImageColumn:
    """Where the images' bytes are."""

    name: str
    is_struct: bool
    """Bytes are the field `bytes`."""
    has_path: bool
    """There is a field `path`."""

    @property
    def leaf(self) -> str:
        """The column of bytes as Parquet names it."""
        return f"{self.name}.bytes" if self.is_struct else self.name


def image_column(schema: pa.Schema, options: SourceOptions) -> ImageColumn | None:
    """The column of images; None where there is none.

    Raises:
        ConfigError: the one that is asked for is not there, or there are several.
    """
    found = [column for field in schema if (column := _as_images(field)) is not None]
    names = [column.name for column in found]
    if options.image_column is not None:
        if options.image_column not in names:
            raise ConfigError(
                f"there is no column of images {options.image_column!r}; there are "
                f"{', '.join(names) or 'none'}"
            )
        return found[names.index(options.image_column)]
    if len(found) > 1:
        raise ConfigError(f"a row is one image; choose one of {', '.join(names)} with --image-column")
    return found[0] if found else None


def _as_images(field: Any) -> ImageColumn | None:
    if _is_bytes(field.type):
        return ImageColumn(field.name, False, False)
    if pa.types.is_struct(field.type):
        parts = {part.name: part.type for part in field.type}
        if "bytes" in parts and _is_bytes(parts["bytes"]):
            return ImageColumn(field.name, True, "path" in parts)
    return None


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def is_single(kind: pa.DataType) -> bool:
    """Whether values are numbers, texts or the like: neither nested nor bytes."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return not (pa.types.is_nested(kind) or _is_bytes(kind))


def _features(schema: pa.Schema) -> dict[str, Any]:
    """What `datasets` notes of its columns; nothing where the note is absent or is none of its."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Names of classes by column."""
    return {
        name: [str(each) for each in feature["names"]]
        for name, feature in _features(schema).items()
        if isinstance(feature, dict) and isinstance(feature.get("names"), list)
    }


def label_column(schema: pa.Schema, options: SourceOptions) -> str | None:
    """The column of labels, if any: the one that is asked for, `label`, or the only one with classes.

    Raises:
        ConfigError: several have classes.
    """
    if options.label_column is not None:
        return options.label_column
    found = [name for name in _LABELS if name in schema.names and is_single(schema.field(name).type)]
    classes = [name for name in class_names(schema) if name in schema.names]
    if found:
        return found[0]
    if len(classes) > 1:
        raise ConfigError(f"a row has one label; choose one of {', '.join(classes)} with --label-column")
    return classes[0] if classes else None


def as_texts(column: pa.ChunkedArray[Any], names: Sequence[str] | None = None) -> list[str | None]:
    """Single values as text, one string for all rows that have it; numbers of classes by their names.

    Raises:
        ImageSourceError: a class has no name.
    """
    texts: list[str | None] = []
    same: dict[str, str] = {}
    for chunk in column.chunks:  # each by itself: together, every chunk would come with the values of all
        encoded: Any = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        values = [None if value is None else _named(value, names) for value in encoded.dictionary.to_pylist()]
        values = [value if value is None else same.setdefault(value, value) for value in values]
        texts += [None if at is None else values[at] for at in encoded.indices.to_pylist()]
    return texts


def _named(value: Any, names: Sequence[str] | None) -> str | None:
    if names is None or not isinstance(value, int):
        return str(value)
    if value == -1:  # what `datasets` writes for rows of a test split without labels
        return None
    if not 0 <= value < len(names):
        raise ImageSourceError(f"a class is one of {len(names)} by the file's own list; got {value}")
    return names[value]
