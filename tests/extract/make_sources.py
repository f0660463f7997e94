"""Real tars, Parquet files and tables, as other programs write them, for tests of the sources."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import webdataset
from PIL import Image

from activault.extract.listing import ImageSource

from .conftest import colour


def picture(number: int, kind: str = "PNG", size: tuple[int, int] = (32, 32)) -> bytes:
    """An image file of one colour, another for each number."""
    buffer = BytesIO()
    Image.new("RGB", size, colour(number)).save(buffer, kind)
    return buffer.getvalue()


def write_samples(path: Path, samples: Sequence[tuple[str, Mapping[str, Any]]]) -> Path:
    """A tar by webdataset's own writer: key, then members by extension."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file, webdataset.TarWriter(file, encoder=False) as writer:
        for key, members in samples:
            texts = {
                extension: each if isinstance(each, bytes) else str(each).encode()
                for extension, each in members.items()
            }
            writer.write({"__key__": key, **texts})
    return path


def write_members(path: Path, members: Sequence[tuple[str, bytes]], kind: int = tarfile.PAX_FORMAT) -> Path:
    """A tar by Python's own writer, one file a member."""
    with tarfile.open(path, "w", format=kind) as tar:
        for name, data in members:
            header = tarfile.TarInfo(name)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
    return path


def write_parquet(
    path: Path,
    rows: Sequence[tuple[str | None, bytes | None, int | str | None]],
    *,
    names: Sequence[str] | None = None,
    row_group_size: int = 4,
    **columns: Sequence[Any],
) -> Path:
    """As Hugging Face's `datasets` writes it: `image` of bytes and path, `label` with names in the schema."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = pa.array(
        [{"bytes": data, "path": name} for name, data, _ in rows],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    table = pa.table({"image": image, "label": [label for *_, label in rows], **columns})
    if names is not None:
        features = {"image": {"_type": "Image"}, "label": {"names": list(names), "_type": "ClassLabel"}}
        note = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": note})
    pq.write_table(table, path, row_group_size=row_group_size)
    return path


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]], delimiter: str = ",") -> Path:
    """A table with quotes where they are needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return path


def as_tar(source: ImageSource, path: Path) -> Path:
    """The same images in the same order as a tar."""
    samples = []
    for row, (key, label) in enumerate(zip(source.keys, source.labels, strict=True)):
        stem, _, extension = key.rpartition(".")
        data = source.read(row)
        assert isinstance(data, bytes)
        samples.append((stem, {extension: data} | ({} if label is None else {"cls": label})))
    return write_samples(path, samples)


def as_parquet(source: ImageSource, path: Path) -> Path:
    """The same images in the same order as Parquet."""
    names = sorted({label for label in source.labels if label is not None})
    rows: list[tuple[str | None, bytes | None, int | str | None]] = []
    for row, (key, label) in enumerate(zip(source.keys, source.labels, strict=True)):
        data = source.read(row)
        assert isinstance(data, bytes)
        rows.append((key, data, None if label is None else names.index(label)))
    return write_parquet(path, rows, names=names)


def as_csv(source: ImageSource, path: Path) -> Path:
    """A table of the paths of an image folder."""
    return write_csv(path, ("path", "label"), list(zip(source.keys, source.labels, strict=True)))
