"""One shard into a bucket: its files once and for all, then the record that names what is there.

A checked shard in, its record out. Array files are created where there is nothing and never replaced, by
nobody: where another writer's file is already, of values that its machine rounded otherwise, those values
take the place of ours. So the record, created last, is true whoever else is at work, for as long as the
store exists; see FORMAT.md, "Object stores".
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from .checks import checked_contents
from .chunk_index import IndexCache
from .codecs import fill_of, held_type
from .errors import CorruptStoreError, NonFiniteError, StoreMismatchError
from .files import stored_xxh3, xxh3
from .manifest import Manifest
from .objects import Objects
from .presence import size_fault
from .records import ArrayFile, ArrayKey, FileRecord, ShardRecord, parse_record, record_path
from .shard_encoding import CheckedShard, EncodedShard, encode_shard
from .shard_files import ShardFile
from .statistics import read_statistics
from .storage import Folder

__all__ = ["mend_shard", "put_shard"]

Item = TypeVar("Item")
Result = TypeVar("Result")
_UPLOADS: Final = 8
"""Files that are uploaded at once; each is mapped, not read."""


def put_shard(
    objects: Objects, manifest: Manifest, checked: CheckedShard, keys: Any, folder: Path
) -> ShardRecord:
    """Put a shard that has no record yet.

    Args:
        objects: the store, for requests that may take long.
        manifest: of the store.
        checked: the shard; its buffer may take over values.
        keys: a column with the key of every row, for messages.
        folder: an empty one, for the files until they are uploaded.

    Returns:
        The record that is there in the end: this one, or that of another writer who was quicker.

    Raises:
        StoreMismatchError: a file of other images than these is there.
        CorruptStoreError: a file or record there is damaged.
        StorageError: the place cannot be written, or does not answer.
        OSError: the disk is full.
    """
    shard = checked.buffer.shard
    encoded = encode_shard(folder, manifest, checked)

    def put(array: ArrayKey) -> bool:
        return _put(objects, folder, encoded.files[array])

    placed = _at_once(put, encoded.files)
    others = [array for array, is_ours in zip(encoded.files, placed, strict=True) if not is_ours]
    if others:
        encoded = _taken_over(objects, manifest, checked, keys, folder, encoded, others)
    if not _put(objects, folder, encoded.statistics):
        encoded = _with_their_statistics(objects, manifest, shard, encoded)
    record, text = encoded.record(manifest, shard)
    if objects.create(record_path(shard), text) is not None:
        return record
    return parse_record(objects.read(record_path(shard)), manifest, shard)


def _put(objects: Objects, folder: Path, file: FileRecord) -> bool:
    """Create a file, whose bytes are then no longer needed here; False where another is there."""
    done = objects.create_file(file.path, folder / file.path) is not None
    (folder / file.path).unlink()
    return done


def _at_once(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    with ThreadPoolExecutor(_UPLOADS, "upload") as pool:
        try:
            return [done.result() for done in [pool.submit(work, item) for item in items]]
        finally:
            pool.shutdown(cancel_futures=True)


def _taken_over(
    objects: Objects,
    manifest: Manifest,
    checked: CheckedShard,
    keys: Any,
    folder: Path,
    encoded: EncodedShard,
    others: Iterable[ArrayKey],
) -> EncodedShard:
    """The shard with the values of other writers' files where those are there already."""
    buffer, is_ok = checked.buffer, np.array([outcome.status == "ok" for outcome in checked.outcomes])
    theirs: dict[ArrayKey, ArrayFile] = {}
    for array in others:
        file = _fetched(objects, encoded.files[array], folder)
        held = _held(folder, manifest, array, file, len(buffer.rows))
        if not np.array_equal(_is_fill(held), ~is_ok):
            raise _other_images(objects, file.path)
        buffer.take_over(array, held, is_ok)
        theirs[array] = file
    try:
        contents = checked_contents(manifest, buffer, is_ok, keys, checked.threads)
    except NonFiniteError as exc:
        raise _other_images(objects, next(iter(theirs.values())).path) from exc
    again = encode_shard(folder, manifest, replace(checked, contents=contents))
    files = dict(again.files)
    for array, file in theirs.items():  # its bytes may be another library's
        files[array] = file.model_copy(update={"values": again.files[array].values})
    for file in again.files.values():
        (folder / file.path).unlink()
    return EncodedShard(again.outcomes, files, again.statistics)


def _fetched(objects: Objects, file: ArrayFile, folder: Path) -> ArrayFile:
    """A file that is there, onto this machine; `values` is not known yet."""
    with (folder / file.path).open("wb") as target:
        for block in objects.blocks(file.path):
            target.write(block)
    data = np.memmap(folder / file.path, mode="r")
    return file.model_copy(update={"bytes": data.size, "hash": xxh3(data)})


def _held(
    folder: Path, manifest: Manifest, array: ArrayKey, file: ArrayFile, num_rows: int
) -> npt.NDArray[Any]:
    """(rows, tokens, dim) held values of a shard's file in a folder."""
    shape = manifest.chunk_shape(array.kind)
    numbers = range(-(-num_rows // manifest.chunk_rows))
    held = np.empty((len(numbers), *shape), held_type(manifest, array.kind))
    every_row = np.arange(manifest.chunk_rows)
    with ShardFile(Folder(folder), manifest, file, array.kind, IndexCache()) as opened:
        for number, data in opened.encoded(numbers, lambda size, _: np.empty(size, np.uint8)):
            held[number] = opened.decode(number, data, held[number], every_row)
    return held.reshape(-1, *shape[1:])[:num_rows]


def _is_fill(held: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """(rows,) whether a row is the fill value, bit by bit."""
    bits = f"u{held.itemsize}"
    fill = np.array(fill_of(held.dtype), held.dtype).view(bits)
    return np.asarray((held.view(bits) == fill).all(axis=(1, 2)))


def _other_images(objects: Objects, path: str) -> StoreMismatchError:
    return StoreMismatchError(
        f"writers of one store see the same images; {objects.where}/{path} was written by one that could "
        "read others of its rows than this one; end all of them, remove that shard's files there, and see "
        "that each reads the same images"
    )


def _with_their_statistics(
    objects: Objects, manifest: Manifest, shard: int, encoded: EncodedShard
) -> EncodedShard:
    """With another writer's statistics, which are of the very files that are there: it had seen them all."""
    data = objects.read(encoded.statistics.path)
    there = encoded.statistics.model_copy(update={"bytes": len(data), "hash": xxh3(data)})
    theirs = replace(encoded, statistics=there)
    num_ok = sum(outcome.status == "ok" for outcome in encoded.outcomes)
    for array, stats in read_statistics(objects, manifest, theirs.record(manifest, shard)[0]).items():
        if stats.count != num_ok * manifest.array_shape(array.kind)[1]:
            raise _other_images(objects, there.path)
    return theirs


def mend_shard(
    objects: Objects, manifest: Manifest, checked: CheckedShard, record: ShardRecord, folder: Path
) -> ShardRecord:
    """Put again files that a finished shard has lost, or that are not the bytes that its record names.

    Every byte of the shard is looked at: once it is computed again, that is the smaller part. Nothing but the
    very bytes that the record names is put, in any order, by any number of writers.

    Raises:
        CorruptStoreError: what was computed is not what the record names.
        StorageError: the place cannot be written, or does not answer.
    """
    again = encode_shard(folder, manifest, checked)
    made = {file.path: file for file in (*again.files.values(), again.statistics)}
    for file in (*record.files, record.statistics):
        if _is_recorded(objects, file):
            continue
        if made[file.path].hash != file.hash:
            raise CorruptStoreError(
                f"{objects.where}/{file.path} is missing or damaged, and cannot be made again as it was: "
                "this machine or its libraries round otherwise; restore it from a copy, or end all writers, "
                f"remove index.parquet and {record_path(record.shard)} with that shard's files there, and "
                "extract again"
            )
        if objects.create_file(file.path, folder / file.path) is None:
            found = objects.find(file.path)
            if found is not None:
                objects.replace_file(file.path, folder / file.path, found.tag)
    shutil.rmtree(folder)
    return record


def _is_recorded(objects: Objects, file: FileRecord) -> bool:
    if size_fault(objects, file) is not None:
        return False
    try:
        return stored_xxh3(objects, file.path) == file.hash
    except FileNotFoundError:
        return False
