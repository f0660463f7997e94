"""Names from files that somebody else wrote: as they are written, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from activault.store import ConfigError
from activault.store.row_lists import read_row_list


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("l.csv", "class\n007\n1.50\nNA\n"),
        ("l.csv", "\ufeffrow,label\n1,007\n2,1.50\n3,NA\n"),
        ("l.csv", '"class"\n"007"\n"1.50"\n"NA"\n'),
        ("l.txt", "\ufeff007\r\n1.50\r\nNA\r\n"),
        ("l.txt", "007\n1.50\nNA"),
    ],
    ids=["one column of another name", "a BOM", "quoted", "text with a BOM", "no last newline"],
)
def test_a_name_is_as_it_is_written(tmp_path: Path, name: str, data: str) -> None:
    (tmp_path / name).write_bytes(data.encode())
    assert read_row_list(tmp_path / name, "label", 3) == ["007", "1.50", "NA"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([b"a0", "ü".encode(), None], ["a0", "ü", None]),
        ([7, 10**12, None], ["7", "1000000000000", None]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    ],
    ids=["bytes", "whole numbers", "dictionary"],
)
def test_columns_of_parquet(tmp_path: Path, values: Any, expected: list[str | None]) -> None:
    pq.write_table(pa.table({"label": values}), tmp_path / "l.parquet")
    assert read_row_list(tmp_path / "l.parquet", "label", 3) == expected


@pytest.mark.parametrize(
    ("value", "told"),
    [(b"\xff", "cannot be read as keys"), (1.5, "holds floats such as 1.5"), (["a"], "holds lists such as")],
    ids=["not UTF-8", "float", "list"],
)
def test_what_is_no_name_is_refused(tmp_path: Path, value: Any, told: str) -> None:
    pq.write_table(pa.table({"key": [value]}), tmp_path / "k.parquet")
    with pytest.raises(ConfigError, match=told):
        read_row_list(tmp_path / "k.parquet", "key", 1)


def test_a_line_is_a_row_whatever_it_holds(tmp_path: Path) -> None:
    (tmp_path / "k.txt").write_bytes("a\x0bb\u2028c\n\nd\n".encode())
    assert read_row_list(tmp_path / "k.txt", "key", 3) == ["a\x0bb\u2028c", None, "d"]
