"""The sample table: one line a row, planned before the first shard and completed with every row's outcome.

Keys and labels in, a `pyarrow.Table` with the columns of `SAMPLES_SCHEMA` out. Row r of the table is row r of
every array.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from .errors import ConfigError

__all__ = [
    "OK",
    "PENDING",
    "SAMPLES_SCHEMA",
    "Outcome",
    "content_hash",
    "plan_samples",
    "split_of",
    "split_rows",
    "with_outcomes",
]

OK: Final = "ok"
PENDING: Final = "pending"
_COLUMNS: Final[list[tuple[str, pa.DataType]]] = [
    ("row", pa.int64()),
    ("key", pa.string()),
    ("label", pa.string()),
    ("source", pa.string()),
    ("width", pa.int32()),
    ("height", pa.int32()),
    ("status", pa.string()),
    ("reason", pa.string()),
]
SAMPLES_SCHEMA: Final = pa.schema(_COLUMNS)
_PLANNED = ("key", "label", "source")
_HASH_ROWS = 65_536
_TEST_SHARE = 0.2
_FOLDERS = {"train": "train"} | dict.fromkeys(("test", "val", "valid", "validation"), "test")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one row's image."""

    status: str
    """`ok`, or a short reason code such as `truncated`, `empty`, `not-an-image` or `too-large`."""
    reason: str | None = None
    """One line on what was wrong; None if nothing was."""
    width: int | None = None
    """Pixels of the decoded image."""
    height: int | None = None
    """Pixels of the decoded image."""

    def __post_init__(self) -> None:
        if not self.status or self.status == PENDING:
            raise ConfigError(
                f"a status is {OK!r} or a short reason code, not {PENDING!r}; got {self.status!r}"
            )


def plan_samples(keys: Sequence[str], labels: Sequence[str | None], source: str) -> pa.Table:
    """The table of a store that is planned: row r is `keys[r]`, its status `pending`.

    Raises:
        ConfigError: there are no keys, a key is there twice, or keys and labels differ in number.
    """
    if not keys or len(keys) != len(labels):
        raise ConfigError(f"samples need a key and a label (or None) each; got {len(keys)} and {len(labels)}")
    if len(set(keys)) != len(keys):
        seen: set[str] = set()
        twice = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ConfigError(f"keys name one row each; {twice!r} is there twice")
    count = len(keys)
    columns: list[Any] = [
        pa.array(np.arange(count), pa.int64()),
        pa.array(keys, pa.string()),
        pa.array(labels, pa.string()),
        pa.array([source] * count, pa.string()),
        pa.nulls(count, pa.int32()),
        pa.nulls(count, pa.int32()),
        pa.array([PENDING] * count, pa.string()),
        pa.nulls(count, pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=SAMPLES_SCHEMA)


def content_hash(samples: pa.Table) -> str:
    """Hash of what was planned (key, label, source), whatever the outcomes and the Parquet writer."""
    state = hashlib.sha256()
    for name in _PLANNED:
        state.update(name.encode())
        column = samples[name]
        for start in range(0, len(column), _HASH_ROWS):
            block = column.slice(start, _HASH_ROWS)
            lengths = pc.fill_null(pc.binary_length(block), -1).to_numpy().astype("<i8")
            state.update(lengths.tobytes())
            state.update("".join(text for text in block.to_pylist() if text is not None).encode())
    return state.hexdigest()


def with_outcomes(samples: pa.Table, outcomes: Iterable[tuple[range, Sequence[Outcome]]]) -> pa.Table:
    """The same table with the outcomes of some ranges of rows; the other rows stay as they are."""
    columns: dict[str, list[Any]] = {name: [None] * len(samples) for name in ("width", "height", "reason")}
    columns["status"] = [PENDING] * len(samples)
    for rows, results in outcomes:
        assert len(rows) == len(results), "records check this when they are read"
        span = slice(rows.start, rows.stop)
        for name, values in columns.items():
            values[span] = [getattr(outcome, name) for outcome in results]
    for name, values in columns.items():
        field = SAMPLES_SCHEMA.field(name)
        samples = samples.set_column(
            SAMPLES_SCHEMA.get_field_index(name), field, pa.array(values, field.type)
        )
    return samples


def split_of(key: str) -> str | None:
    """`train` or `test` if the key's first folder names a split, else None."""
    folder, slash, _ = key.partition("/")
    return _FOLDERS.get(folder.lower()) if slash else None


def split_rows(samples: pa.Table, rows: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
    """`rows` parted into `train` and `test`, each in the given order.

    If any key of the whole table begins with a split folder (`train`; `test`, `val`, `valid`, `validation`),
    by that folder, and rows without one go to `train`: a stray file never moves a test image into training.
    Otherwise by a hash of the key, one fifth for testing. Which of the two holds depends on the whole table,
    not on `rows`.
    """
    keys = [str(key) for key in samples["key"].to_pylist()]
    if any(split_of(key) for key in keys):
        in_test = np.array([split_of(keys[row]) == "test" for row in rows.tolist()], dtype=bool)
    else:
        bound = int(_TEST_SHARE * 2**64)
        hashes = (xxhash.xxh3_64_intdigest(keys[row].encode()) for row in rows.tolist())
        in_test = np.array([value < bound for value in hashes], dtype=bool)
    return {"train": rows[~in_test], "test": rows[in_test]}
