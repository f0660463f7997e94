"""How bfloat16 should lie on disk: as 16 bits, or as float32 rounded to it.

    python benchmarks/codecs.py demo-out/store.zarr [--rows 640] [--layers 0-7] [--rounds 5]

Takes real activations from a store (`make demo` leaves one), writes them in both forms through the same
sharded Zarr arrays, and reads them back as float32 in turn, through zarr-python's codec pipeline and zarrs',
with and without a checksum a chunk. Prints bytes against float32 and rows a second: median, and smallest and
largest of the rounds.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec

from activault.store import open_store, parse_layers

PIPELINES = {
    "zarr-python": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "zarrs": "zarrs.ZarrsCodecPipeline",
}
CHUNK_ROWS, SHARD_ROWS = 32, 128


@dataclass(frozen=True, kw_only=True)
class Form:
    """One way to store the values."""

    name: str
    typesize: int
    checksum: bool

    def encode(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.generic]:
        """float32 that is already rounded to bfloat16, as it is stored."""
        return values if self.typesize == 4 else (values.view(np.uint32) >> 16).astype(np.uint16)

    def decode(self, stored: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
        """What a reader wants: float32."""
        if self.typesize == 4:
            return stored.astype(np.float32, copy=False)
        return (stored.astype(np.uint32) << 16).view(np.float32)


FORMS = [
    Form(name=name, typesize=typesize, checksum=checksum)
    for checksum in (False, True)
    for name, typesize in (("float32 rounded", 4), ("uint16 bits", 2))
]


def write(folder: Path, form: Form, values: npt.NDArray[np.float32]) -> None:
    """One array a layer: (rows, tokens, dim) in shards."""
    for layer in range(values.shape[1]):
        data = form.encode(np.ascontiguousarray(values[:, layer]))
        array = zarr.create_array(
            str(folder / str(layer)),
            shape=data.shape,
            chunks=(CHUNK_ROWS, *data.shape[1:]),
            shards=(SHARD_ROWS, *data.shape[1:]),
            dtype=data.dtype,
            compressors=[
                BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle", typesize=form.typesize),
                *([Crc32cCodec()] if form.checksum else []),
            ],
            fill_value=0,
        )
        array[:] = data


def read(folder: Path, form: Form, num_layers: int) -> npt.NDArray[np.float32]:
    """Every layer in turn; the last one is returned so that it can be compared."""
    for layer in range(num_layers):
        values = form.decode(np.asarray(zarr.open_array(str(folder / str(layer)), mode="r")[:]))
    return values


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path)
    parser.add_argument("--rows", type=int, default=640)
    parser.add_argument("--layers", default="0-7")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    store = open_store(options.store)
    layers = parse_layers(options.layers, store.layers)
    values = store.read(store.valid_rows[: options.rows], layers, "patches")
    values = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    num_rows = len(values)
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("zarr", "zarrs", "numcodecs")
    )
    shape = " x ".join(map(str, values.shape))
    print(f"rows x layers x patches x dim: {shape}; {versions}; {platform.machine()}")
    with tempfile.TemporaryDirectory() as temporary:
        speeds: dict[tuple[str, bool, str], list[float]] = {}
        sizes: dict[tuple[str, bool], int] = {}
        for form in FORMS:
            folder = Path(temporary) / f"{form.typesize}-{form.checksum}"
            write(folder, form, values)
            sizes[form.name, form.checksum] = sum(
                file.stat().st_size for file in folder.rglob("*") if file.is_file()
            )
        for _ in range(options.rounds):
            for pipeline, path in PIPELINES.items():
                with zarr.config.set({"codec_pipeline.path": path}):
                    for form in FORMS:
                        start = time.perf_counter()
                        last = read(Path(temporary) / f"{form.typesize}-{form.checksum}", form, len(layers))
                        speed = num_rows / (time.perf_counter() - start)
                        speeds.setdefault((form.name, form.checksum, pipeline), []).append(speed)
                        assert np.array_equal(last, values[:, -1]), (
                            f"{form} through {pipeline} changed values"
                        )
    print("| form | crc32c | pipeline | bytes against float32 | rows a second (median, min-max) |")
    print("| --- | --- | --- | --- | --- |")
    for (name, checksum, pipeline), found in speeds.items():
        ratio = values.nbytes / sizes[name, checksum]
        spread = f"{statistics.median(found):,.0f} ({min(found):,.0f}-{max(found):,.0f})"
        print(f"| {name} | {'yes' if checksum else 'no'} | {pipeline} | 1 / {ratio:.2f} | {spread} |")


if __name__ == "__main__":
    main()
