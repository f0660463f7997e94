"""The sample table: one line a row, planned before the first shard and completed with every row's outcome.

Keys and labels in, a `pyarrow.Table` with the columns of `samples_schema` out. Row r of the table is row r of
every array. Columns are worked on as columns: of 10 million rows only keys to be hashed for a split become
Python objects, one block of rows at a time. Times are of one core.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from .arrow import pa, pc
from .errors import ConfigError
from .outcomes import ABSENT, NO_CONTENT, OK, PENDING, Outcome, Recorded

__all__ = [
    "ABSENT",
    "NO_CONTENT",
    "OK",
    "PENDING",
    "Outcome",
    "Recorded",
    "coded",
    "content_hash",
    "drawn",
    "label_ids",
    "outcome_columns",
    "plan_samples",
    "samples_schema",
    "split_of",
    "split_rows",
    "with_records",
]

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_PLANNED = ("key", "label", "source")
_HASH_ROWS: Final = 65_536
"""Rows that the content hash takes at a time; part of the format."""
_BLOCK_ROWS: Final = 65_536
"""Rows that are expanded at a time."""
_UNKNOWN: Final = int(np.iinfo(np.int32).min)
_FOLDERS = {"train": "train"} | dict.fromkeys(("test", "val", "valid", "validation"), "test")


@cache
def samples_schema() -> pa.Schema:
    """Names and types of the columns."""
    columns: list[tuple[str, pa.DataType]] = [
        ("row", pa.int64()),
        ("key", pa.string()),
        ("label", pa.string()),
        ("source", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("status", pa.string()),
        ("reason", pa.string()),
    ]
    return pa.schema(columns)


def plan_samples(keys: Sequence[str], labels: Sequence[str | None], source: str) -> pa.Table:
    """The table of a store that is planned: row r is `keys[r]`, its status `pending`.

    10 million rows: 5 s, nearly all to copy Python's strings into Arrow's; 80 MB beside the table.

    Raises:
        ConfigError: there are no keys, a key is there twice, or keys and labels differ in number.
    """
    count = len(keys)
    if not count or count != len(labels):
        raise ConfigError(f"samples need a key and a label (or None) each; got {count} and {len(labels)}")
    _refuse_repeats(keys)
    columns: list[Any] = [
        pa.array(np.arange(count), pa.int64()),
        pa.array(keys, pa.string()),
        pa.array(labels, pa.string()),
        _constant(source, pa.string(), count),
        _constant(None, pa.int32(), count),
        _constant(None, pa.int32(), count),
        _constant(PENDING, pa.string(), count),
        _constant(None, pa.string(), count),
    ]
    return pa.Table.from_arrays(columns, schema=samples_schema())


def _refuse_repeats(keys: Sequence[str]) -> None:
    # Distinct hashes show that keys are distinct; a set of 10 million keys would take 512 MiB to say so.
    hashes = np.fromiter(map(hash, keys), np.int64, len(keys))
    hashes.sort()
    if (hashes[1:] != hashes[:-1]).all():
        return
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise ConfigError(f"keys name one row each; {key!r} is there twice")
        seen.add(key)


def _constant(value: str | None, kind: Any, count: int) -> Any:
    """`value` for every row: one block in memory, which all chunks share."""
    block = pa.repeat(pa.scalar(value, kind), min(count, _BLOCK_ROWS))
    whole, rest = divmod(count, len(block))
    return pa.chunked_array([block] * whole + [block.slice(0, rest)], kind)


def content_hash(samples: pa.Table) -> str:
    """Hash of what was planned (key, label, source), whatever the outcomes and the Parquet writer.

    10 million rows: 0.6 s, at the speed of sha256; strings are hashed where they stand.
    """
    state = hashlib.sha256()
    for name in _PLANNED:
        state.update(name.encode())
        column = samples[name]
        for start in range(0, len(column), _HASH_ROWS):
            block = column.slice(start, _HASH_ROWS)
            lengths = _numbers(pc.binary_length(block), -1).astype("<i8").tobytes()
            state.update(lengths)
            for chunk in block.chunks:
                state.update(_text(chunk))
    return state.hexdigest()


def _text(strings: Any) -> memoryview:
    """UTF-8 of all strings one after the other, nulls left out; in place where there are none."""
    if strings.null_count:
        strings = strings.drop_null()  # Arrow allows any bytes under a null
    _, offsets, data = strings.buffers()
    if not len(strings) or offsets is None or data is None:
        return memoryview(b"")
    bounds = np.frombuffer(memoryview(offsets), np.int32)[strings.offset :]
    return memoryview(data)[bounds[0] : bounds[len(strings)]]


def outcome_columns(
    num_rows: int, records: Iterable[Recorded], absent: Iterable[range] = ()
) -> dict[str, Any]:
    """Columns `width`, `height`, `status` and `reason` of a whole table, from records alone.

    10 million rows: 3 s where all sizes differ, 0.5 s where few do; 160 MB beside the columns.

    Args:
        num_rows: rows of the table.
        records: of some shards, in any order; each is let go before the next is asked for.
        absent: rows whose shard is not part of a partial copy, in runs. Other rows that no record speaks of
            are `pending`; size and reason of both are null.
    """
    sizes = np.full((num_rows, 2), _UNKNOWN, np.int32)
    status, reason = np.zeros(num_rows, np.int32), np.full(num_rows, -1, np.int32)
    statuses, reasons = {PENDING: 0, OK: 1, ABSENT: 2}, dict[str, int]()
    for rows in absent:
        status[rows.start : rows.stop] = statuses[ABSENT]
    for record in records:
        span = slice(*record.rows)
        runs = [_UNKNOWN if number is None else number for run in record.sizes for number in run]
        *pair, times = np.array(runs, np.int32).reshape(-1, 3).T
        assert times.sum() == span.stop - span.start, "records check this when they are read"
        sizes[span] = np.repeat(np.stack(pair, axis=1), times, axis=0)
        status[span] = statuses[OK]
        for row, code, why in record.bad:
            status[row] = statuses.setdefault(code, len(statuses))
            if why is not None:
                reason[row] = reasons.setdefault(why, len(reasons))
    width, height = sizes.T
    return {
        "width": pa.array(width, pa.int32(), mask=width == _UNKNOWN),
        "height": pa.array(height, pa.int32(), mask=height == _UNKNOWN),
        "status": _decoded(status, list(statuses)),
        "reason": _decoded(reason, list(reasons)),
    }


def _decoded(places: Int32, texts: list[str]) -> Any:
    """`texts[place]` for every place, null where it is negative."""
    values = pa.array(texts, pa.string())
    chunks = []
    for start in range(0, len(places), _BLOCK_ROWS):  # one string array would end at 2 GiB
        block = places[start : start + _BLOCK_ROWS]
        codes = pa.array(block, pa.int32(), mask=block < 0)
        chunks.append(pa.DictionaryArray.from_arrays(codes, values).dictionary_decode())
    return pa.chunked_array(chunks, pa.string())


def with_records(samples: pa.Table, records: Iterable[Recorded], absent: Iterable[range] = ()) -> pa.Table:
    """The same table with its outcomes by `records` alone; see `outcome_columns`."""
    for name, column in outcome_columns(len(samples), records, absent).items():
        place = samples_schema().get_field_index(name)
        samples = samples.set_column(place, samples_schema().field(name), column)
    return samples


def label_ids(samples: pa.Table) -> tuple[tuple[str, ...], Int64]:
    """Classes, sorted, and (num_rows,) the place of each row's label among them; -1 where it has none.

    10 million rows: 0.3 s and 160 MB with 1000 classes.
    """
    found, codes = coded(samples["label"])
    order = sorted(range(len(found)), key=found.__getitem__)
    place_of = np.full(len(found) + 1, -1, np.int64)  # the last entry is what the code -1 of a null finds
    place_of[order] = np.arange(len(found))
    return tuple(found[place] for place in order), place_of[codes]


def coded(column: Any) -> tuple[list[str], Int32]:
    """Texts of a column, and (rows,) the place of each row's text among them; -1 where it has none."""
    chunks: list[Any] = column.dictionary_encode().unify_dictionaries().chunks
    texts = chunks[0].dictionary.to_pylist() if chunks else []
    codes = [_numbers(chunk.indices, -1) for chunk in chunks]
    return texts, np.concatenate(codes) if codes else np.empty(0, np.int32)


def _numbers(column: Any, missing: int) -> npt.NDArray[Any]:
    """Whole numbers of a column as NumPy has them, `missing` where there is none; not to be written to.

    Neither `to_numpy` nor a scalar: where pandas is installed they import it, half a second of every process.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    known = np.from_dlpack(column.drop_null())
    if len(known) == len(column):
        return known
    found = np.full(len(column), missing, known.dtype)
    found[np.from_dlpack(column.is_valid().cast(pa.uint8())).view(np.bool_)] = known
    return found


def split_of(key: str) -> str | None:
    """`train` or `test` if the key's first folder names a split, else None."""
    folder, slash, _ = key.partition("/")
    return _FOLDERS.get(folder.lower()) if slash else None


def split_rows(samples: pa.Table, rows: Int64, *, fraction: float = 0.2, seed: int = 0) -> dict[str, Int64]:
    """`rows` parted into `train` and `test`, each in the given order.

    If any key of the whole table begins with a split folder (`train`; `test`, `val`, `valid`, `validation`),
    by that folder, and rows without one go to `train`: a stray file never moves a test image into training.
    Otherwise by a hash of the key and `seed`, `fraction` of them for testing: a key's side does not depend on
    the other rows. Which of the two holds depends on the whole table, not on `rows`.

    10 million rows: 1 s by folder, 2 s by hash of every key; 30 MB beside the result.
    """
    keys = samples["key"]
    blocks = (keys.slice(start, _BLOCK_ROWS) for start in range(0, len(keys), _BLOCK_ROWS))
    if any(pc.any(_begins(block, list(_FOLDERS))).as_py() for block in blocks):
        folders = [folder for folder, split in _FOLDERS.items() if split == "test"]
        in_test = _numbers(_begins(keys, folders).cast(pa.uint8()), 0).view(np.bool_)[rows]
    else:
        asked = np.zeros(len(keys), np.bool_)
        asked[rows] = True
        in_test = drawn(keys, asked, fraction, seed)[rows]
    return {"train": rows[~in_test], "test": rows[in_test]}


def _begins(keys: Any, folders: Sequence[str]) -> Any:
    """Whether each key's first folder is one of `folders`, whatever the case of its letters."""
    # Both cases are spelled out: RE2's (?i) also takes the long s, which str.lower leaves alone.
    spelled = ("".join(f"[{letter}{letter.upper()}]" for letter in folder) for folder in folders)
    return pc.match_substring_regex(keys, f"^(?:{'|'.join(spelled)})/")


def drawn(keys: Any, asked: Mask, fraction: float, seed: int) -> Mask:
    """Whether the hash of a key is in the lowest `fraction`, of the rows asked for; False for all others."""
    bound = int(fraction * 2**64)
    found = np.zeros(len(keys), np.bool_)
    for start in range(0, len(keys), _BLOCK_ROWS):
        wanted = asked[start : start + _BLOCK_ROWS]
        texts = keys.slice(start, _BLOCK_ROWS).filter(pa.array(wanted)).cast(pa.binary()).to_numpy()
        hashes = (xxhash.xxh3_64_intdigest(text, seed) < bound for text in texts)
        found[start + np.flatnonzero(wanted)] = np.fromiter(hashes, np.bool_, len(texts))
    return found
