"""One string a row from a file that somebody made beside an array: labels or keys.

`.txt` (a line a row), `.csv` (with a header) or `.parquet` in; a list of strings or None out. Names are
taken as they are written: `007` stays `007`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .arrow import pa
from .errors import ConfigError

__all__ = ["read_row_list"]


def read_row_list(path: Path, column: str, num_rows: int) -> list[str | None]:
    """The strings of a file, in row order; an empty one is None.

    Args:
        path: a `.txt`, `.csv` or `.parquet` file, in UTF-8 with or without its mark of byte order.
        column: which column of a table; another name will do if it is the only one.
        num_rows: how many there must be.

    Raises:
        ConfigError: the file is none of these, cannot be read, holds something else than strings and whole
            numbers, or another number of rows.
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
        lines = path.read_text(encoding="utf-8-sig").split(
            "\n"
        )  # a name may hold what `splitlines` splits at
        return [line or None for line in (lines if lines[-1] else lines[:-1])]
    if suffix == ".csv":
        table = _csv(path)
    elif suffix == ".parquet":
        from pyarrow import parquet

        table = parquet.read_table(path)
    else:
        raise ConfigError(f"{column}s come from a .txt, .csv or .parquet file; got {path}")
    return [_text(path, column, value) for value in _column(path, table, column).to_pylist()]


def _csv(path: Path) -> Any:
    """The table with every column as it is written."""
    from pyarrow import csv

    with csv.open_csv(path) as opened:
        names = opened.schema.names
    as_text = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), null_values=[""], strings_can_be_null=True
    )
    return csv.read_csv(path, convert_options=as_text)


def _text(path: Path, column: str, value: Any) -> str | None:
    if isinstance(value, bytes):
        value = value.decode("utf-8")
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, int):
        return str(value)
    raise ConfigError(
        f"{column}s are strings or whole numbers; {path} holds {type(value).__name__}s such as {value}; "
        "write them as strings"
    )


def _column(path: Path, table: Any, column: str) -> Any:
    names = table.column_names
    if names.count(column) == 1:
        return table[column]
    if len(names) == 1:
        return table[names[0]]
    raise ConfigError(f"{path} must have a column {column!r}, or one column alone; it has {', '.join(names)}")
