"""One string a row from a file that somebody made beside an array: labels or keys.

`.txt` (a line a row), `.csv` (with a header) or `.parquet` in; a list of strings or None out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from .errors import ConfigError

__all__ = ["read_row_list"]


def read_row_list(path: Path, column: str, num_rows: int) -> list[str | None]:
    """The strings of a file, in row order; an empty one is None.

    Args:
        path: a `.txt`, `.csv` or `.parquet` file.
        column: which column of a table; another name will do if it is the only one.
        num_rows: how many there must be.

    Raises:
        ConfigError: the file is none of these, cannot be read, or holds another number of rows.
    """
    try:
        values = _read(path, column)
    except (OSError, UnicodeDecodeError, pa.ArrowInvalid) as exc:
        raise ConfigError(f"{path} cannot be read as {column}s, one a row ({exc})") from exc
    if len(values) != num_rows:
        raise ConfigError(f"{path} must hold {num_rows} {column}s, one a row; it holds {len(values)}")
    return values


def _read(path: Path, column: str) -> list[str | None]:
    suffix = path.suffix.lower()
    if suffix == ".txt":
        return [line or None for line in path.read_text(encoding="utf-8").splitlines()]
    if suffix == ".csv":
        from pyarrow import csv

        as_text = csv.ConvertOptions(
            column_types={column: pa.string()}, null_values=[""], strings_can_be_null=True
        )
        table = csv.read_csv(path, convert_options=as_text)
    elif suffix == ".parquet":
        from pyarrow import parquet

        table = parquet.read_table(path)
    else:
        raise ConfigError(f"{column}s come from a .txt, .csv or .parquet file; got {path}")
    return [None if value in (None, "") else str(value) for value in _column(path, table, column).to_pylist()]


def _column(path: Path, table: Any, column: str) -> Any:
    names = table.column_names
    if column in names:
        return table[column]
    if len(names) == 1:
        return table[names[0]]
    raise ConfigError(f"{path} must have a column {column!r}, or one column alone; it has {', '.join(names)}")
