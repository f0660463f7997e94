"""`import`: a store in the reference's layout becomes one of format 1, without torch.

In: flags of the command line. Out: the summary on standard output, progress on standard error.
"""

from __future__ import annotations

import dataclasses
import json as jsonlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from activault.store import ConfigError, Preprocessing

from . import console

if TYPE_CHECKING:
    from activault.store.importing import ImportSummary

__all__ = ["import_"]


def import_(
    reference: Path,
    store: Path,
    /,
    *,
    layers: str | None = None,
    registers: int | None = None,
    cls: int | None = None,
    grid: str | None = None,
    teacher: str = "unknown",
    heads: int | None = None,
    preprocessing: str | None = None,
    labels: Path | None = None,
    keys: Path | None = None,
    dtype: Literal["bfloat16", "float16", "float32", "int8"] = "bfloat16",
    shard_rows: int | None = None,
    license: str = "unknown",
    citation: str = "",
    json: bool = False,
) -> int:
    """Make a store of a reference-layout array: Zarr v2, float32, rows x layers x tokens x width.

    The array lies in a folder on this machine. Every row is read back and held against it bit by bit, and the
    store is verified deeply at the end. Rows that were never written, or hold NaN, become bad rows. Run it
    again and it goes on where it stopped.

    ```
    activault import activations.zarr in1k.zarr --teacher dinov2_vitb14_reg --heads 12
    activault import activations.zarr in1k.zarr --preprocessing reference --labels labels.csv
    activault import other.zarr other-f32.zarr --layers 1-12 --registers 0 --grid 14x14 --dtype float32
    ```

    Parameters
    ----------
    reference
        Folder of the array; it holds a .zarray.
    store
        The store to write, or to go on with.
    layers
        Layers along the array's second axis, such as 0-12; 0 is the embedded input.
    registers
        Register tokens between CLS and patches.
    cls
        Class tokens, 0 or 1.
    grid
        Patch rows x columns, such as 16x16.
    teacher
        Name of the model.
    heads
        Its attention heads.
    preprocessing
        `reference` for what the reference does, or a JSON file with the fields of a manifest's preprocessing.
    labels
        Labels, one a row: a .txt file, or a .csv or .parquet with a column `label`.
    keys
        The same of keys, with a column `key`; without it they are made up of the row numbers.
    dtype
        Precision of the stored values.
    shard_rows
        Rows a shard; by default whole chunks of the source within the byte targets.
    license
        Licence of the activations, for those they are shared with.
    citation
        What to cite for them.
    json
        Print the summary as JSON.
    """
    from activault.store.import_plan import ImportOptions
    from activault.store.importing import import_reference

    from . import inspect

    options = ImportOptions(
        layers=layers,
        num_cls=cls,
        registers=registers,
        grid=_grid(grid),
        teacher=teacher,
        heads=heads,
        preprocessing=_preprocessing(preprocessing),
        dtype=dtype,
        shard_rows=shard_rows,
        labels=labels,
        keys=keys,
        license=license,
        citation=citation,
    )
    with console.progress_bar("import", "rows", quiet=json) as advance:
        summary = import_reference(reference, store, options, advance)
    inspect.require_sound(store, quiet=json)
    if json:
        console.print_json(dataclasses.asdict(summary))
    else:
        _show(store, summary)
    return 0


def _grid(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"\s*([0-9]{1,9})x([0-9]{1,9})\s*", text)
    if match is None:
        raise ConfigError(f"a grid is rows x columns such as 16x16; got {text[:100]!r}")
    return int(match[1]), int(match[2])


def _preprocessing(said: str | None) -> Preprocessing | None:
    from activault.store.import_plan import REFERENCE_PREPROCESSING

    if said is None:
        return None
    if said == "reference":
        return REFERENCE_PREPROCESSING
    try:
        value: Any = jsonlib.loads(Path(said).read_text(encoding="utf-8"))
        return Preprocessing.model_validate(value)
    except (OSError, ValueError, RecursionError) as exc:
        told = exc.errors()[0] if isinstance(exc, ValidationError) else exc
        raise ConfigError(
            f"preprocessing is `reference` or a JSON file with {', '.join(Preprocessing.model_fields)}; "
            f"got {said} ({told})"
        ) from exc


def _show(store: Path, summary: ImportSummary) -> None:
    rows = f"{summary.num_rows:,} ({summary.num_new:,} new)"
    if summary.bad:
        bad = ", ".join(f"{count:,} {status}" for status, count in summary.bad.items())
        rows += f", without activations: {bad}"
    size, plain = console.human_bytes(summary.num_bytes), console.human_bytes(summary.float32_bytes)
    lines = {
        "store": str(store),
        "rows": rows,
        "size": f"{size}, {plain} as float32",
        "unknown": ", ".join(summary.unknown) or "nothing",
        "time": console.human_seconds(summary.seconds),
        "digest": summary.digest,
    }
    for name, value in lines.items():
        console.say(f"{name:<8}{value}")
