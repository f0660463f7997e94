"""Three readers of the same stores: activault's own, zarr-python, and zarr-python with zarrs' codec pipeline.

    python benchmarks/readers.py STORE [--rows 96] [--rounds 5] [--work DIR]

STORE is a float32 store of all layers (`activault extract IMAGES STORE --teacher demo --dtype float32`). Its
values are written in every dtype; then layers 0 to 7 of the first 64 rows, and of 16 rows anywhere, are read
into one float32 array (rows, layers, tokens, dim) by each reader in turn. What is open stays open, the page
cache is warm, and everybody's result is compared. Prints milliseconds a row, best (median), and how many
times as long as ours, median (smallest-largest) of the ratios within the rounds.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import zarr
from activations import SPAN, Precision, take
from ours import Activault, variants

from activault.store import Store, layer_name, open_store

Floats = npt.NDArray[np.float32]
Reader = Callable[[npt.NDArray[np.int64]], Floats]
VARIANTS: Final[list[tuple[str, Precision, str | None]]] = [
    *variants(),
    ("activault float32, uncompressed", "float32", "none"),
]
PIPELINES: Final = {
    "zarrs": "zarrs.ZarrsCodecPipeline",
    "zarr-python": "zarr.core.codec_pipeline.BatchedCodecPipeline",
}
IN_ORDER, RANDOM = 64, 16


def zarr_reader(store: Store, pipeline: str) -> Reader:
    """A reader through zarr-python; its arrays are opened once."""
    manifest, layout = store.manifest, store.layout
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        arrays = {
            (layer, kind): zarr.open_array(f"{store.path}/{layer_name(layer)}/{kind}", mode="r")
            for layer in SPAN
            for kind in store.kinds
        }

    def read(rows: npt.NDArray[np.int64]) -> Floats:
        result = np.empty((len(rows), len(SPAN), layout.num_tokens, store.dim), np.float32)
        on_end = len(rows) == rows[-1] - rows[0] + 1
        for place, layer in enumerate(SPAN):
            for kind in store.kinds:
                array: Any = arrays[layer, kind]
                values = array[rows[0] : rows[-1] + 1] if on_end else array.oindex[rows]
                into = result[:, place, layout.span(kind)]
                if values.dtype == np.int8:
                    assert manifest.quantisation is not None
                    steps = manifest.quantisation[place]
                    np.multiply(values, np.asarray(steps.scale, np.float32), out=into)
                    into += np.asarray(steps.offset, np.float32)
                else:
                    into[...] = values
        return result

    return read


def readers(path: Path) -> dict[str, Reader]:
    """All three for one store."""
    store = open_store(path)
    found: dict[str, Reader] = {"ours": lambda rows: store.read(rows, SPAN)}
    for name, pipeline in PIPELINES.items():
        found[name] = zarr_reader(store, pipeline)
    return found


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path)
    parser.add_argument("--rows", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, metavar="DIR", help="kept afterwards, and used again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        source = take(options.store, work, options.rows)
        opened = {}
        for name, dtype, compression in VARIANTS:
            form = Activault(work / name.replace(" ", "-").replace(",", ""), source, dtype, compression)
            if not (form.path / "index.parquet").exists():
                form.folder.mkdir(parents=True, exist_ok=True)
                form.write()
            opened[name] = readers(form.path)
        random = np.sort(np.random.default_rng(0).permutation(source.num_rows)[:RANDOM])
        _print_environment(source.values.shape)
        for title, rows in ((f"{IN_ORDER} rows in order", np.arange(IN_ORDER)), (f"{RANDOM} rows", random)):
            print(f"\n{title}, layers 0-7, ms a row\n")
            _print_table(_measure(opened, rows, options.rounds))


def _measure(
    opened: dict[str, dict[str, Reader]], rows: npt.NDArray[np.int64], rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Milliseconds a row by store and reader; in each round the readers begin with another one."""
    found: dict[str, dict[str, list[float]]] = {
        name: {reader: [] for reader in ways} for name, ways in opened.items()
    }
    for name, ways in opened.items():
        want = ways["ours"](rows).copy()
        for reader, read in ways.items():
            np.testing.assert_allclose(read(rows), want, rtol=1e-6, atol=1e-6, err_msg=f"{reader} of {name}")
    for number in range(rounds):
        for name, ways in opened.items():
            order = list(ways)
            for reader in order[number % len(order) :] + order[: number % len(order)]:
                start = time.perf_counter()
                ways[reader](rows)
                found[name][reader].append((time.perf_counter() - start) / len(rows) * 1e3)
    return found


def _print_environment(shape: tuple[int, ...]) -> None:
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("zarr", "zarrs", "numcodecs", "numpy")
    )
    load = f"{os.getloadavg()[0]:.1f}"
    print(f"rows x layers x tokens x dim: {' x '.join(map(str, shape))}; {versions}; Python", end=" ")
    print(f"{platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, load {load}")


def _print_table(found: dict[str, dict[str, list[float]]]) -> None:
    others = list(PIPELINES)
    print(f"| store | ours | {' | '.join(others)} | {' | '.join(f'{name} over ours' for name in others)} |")
    print(f"|{' --- |' * (2 + 2 * len(others))}")
    for name, times in found.items():
        cells = [f"{min(taken):.2f} ({median(taken):.2f})" for taken in times.values()]
        for other in others:
            ratios = [one / mine for one, mine in zip(times[other], times["ours"], strict=True)]
            cells.append(f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
        print(f"| {name.removeprefix('activault ')} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
