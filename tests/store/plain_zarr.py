"""The lines of FORMAT.md that read a store with zarr and NumPy alone, run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = (Path(__file__).parents[2] / "store" / "FORMAT.md").read_text()
_BLOCKS = re.findall(r"```python\n(.*?)```", FORMAT, re.DOTALL)


def plain_floats(path: Path, layer: int, kind: str) -> np.ndarray:
    """All rows of one array, float32 (rows, tokens, dim), with nothing of ours."""
    assert len(_BLOCKS) == 1
    code = _BLOCKS[0]
    for line, changed in (
        ('"NAME.zarr"', repr(str(path))),
        ('layer, kind = 7, "patches"', f"layer, kind = {layer}, {kind!r}"),
        ("[0:64]", "[:]"),
    ):
        assert code.count(line) == 1
        code = code.replace(line, changed)
    names: dict[str, Any] = {}
    exec(code, names)
    values = names["x"]
    assert values.dtype == np.float32
    return np.ascontiguousarray(values)
