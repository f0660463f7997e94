"""What FORMAT.md lists is what the code writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from activault.store.codecs import array_metadata

from .conftest import make_manifest

TEXT = (Path(__file__).parents[2] / "store" / "FORMAT.md").read_text()


def leaves(value: Any, prefix: str = "") -> set[str]:
    if not isinstance(value, dict):
        return {prefix.rstrip(".")}
    return {leaf for key, part in value.items() for leaf in leaves(part, f"{prefix}{key}.")}


def test_every_field_of_the_manifest_is_listed_and_no_other() -> None:
    section = TEXT.split("`attributes.activault` is the manifest")[1].split("`attributes.activault_plan`")[0]
    first_cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    listed = {name for cell in first_cells for name in re.findall(r"`([^`]+)`", cell)}
    assert listed - {"preprocessing"} == leaves(make_manifest().model_dump(mode="json"))


def test_the_array_metadata_shown_are_those_written() -> None:
    shown = json.loads(TEXT.split("```json\n")[1].split("```")[0])
    assert shown == array_metadata(make_manifest(), "patches")


def test_the_bound_of_tables_is_the_stated_one() -> None:
    manifest = make_manifest()
    assert "4 GiB or of more than 64 MiB + 4 KiB a row + 1 KiB an array and shard + 64 bytes an array" in TEXT
    assert manifest.max_table_bytes == 64 * 2**20 + 4096 * 50 + 9 * (1024 * 4 + 64 * 8)
    assert make_manifest(num_rows=2**40).max_table_bytes == 4 * 2**30
