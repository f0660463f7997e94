"""An array as the reference's own script leaves it, small: 50 rows, 5 layers, 9 tokens of width 8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from numcodecs import Blosc

from activault.store.importing import ImportOptions

Float32 = npt.NDArray[np.float32]
SHAPE = (50, 5, 9, 8)
LAYOUT = ImportOptions(registers=4)


def write_reference(
    path: Path, values: Float32, chunks: tuple[int, ...] = (16, 1, 9, 8), **changes: Any
) -> Path:
    """As the reference's own script writes it."""
    options: dict[str, Any] = {"compressor": Blosc(cname="zstd", clevel=3, shuffle=Blosc.SHUFFLE)} | changes
    array: Any = zarr.open(
        store=str(path),
        mode="w",
        shape=values.shape,
        chunks=chunks,
        dtype="float32",
        zarr_format=2,
        **options,
    )
    array[:] = values
    return path


def random_values() -> Float32:
    return np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)
