"""ImageNet-1k planned with ViT-B/14 and 4 registers at 224 pixels: files and bytes at every dtype.

    python benchmarks/plan.py IMAGES [--rows 1281167] [--seconds 8] [--only-planning]

IMAGES is a folder of photographs, such as one image each of 250 classes of ImageNet. Files are counted
exactly as FORMAT.md has them, rows a shard chosen as `extract` does on a machine with 32 GB of memory or
more. Bytes are scaled by the ratio to float32 that a trial of `extract --dry-run` gives for the demo teacher
(a real ViT-S/14) on IMAGES. Before that, a listing of so many rows is made up and planned: time and memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from activault.extract import ExtractOptions, open_source
from activault.extract.backbone import Backbone, load_backbone
from activault.extract.calibration import calibration_for
from activault.extract.listing import Listed
from activault.extract.measuring import measure
from activault.extract.memory import host_peak
from activault.extract.planning import plan_manifest, plan_table, row_order
from activault.extract.run import row_decoder
from activault.extract.trial import Workload
from activault.store import Manifest, SourceInfo, StoredDtype, choose_grid
from activault.store.cores import num_cores
from activault.store.extent import num_files
from activault.store.facts import float32_bytes
from activault.store.manifest import PRECISIONS, Compression, Quantisation

TEACHER = "vit_base_patch14_reg4_dinov2.lvd142m"
IMAGENET = 1_281_167
Form = tuple[StoredDtype, Compression]


class Imagenet(Listed):
    """A listing like ImageNet's, with a few real images behind it."""

    def __init__(self, num_rows: int, images: Sequence[Path]) -> None:
        self._images = images
        self.labels = [f"n{row * 1000 // num_rows:08d}" for row in range(num_rows)]
        self.keys = [f"{label}/{label}_{row}.JPEG" for row, label in enumerate(self.labels)]
        self._splits = ["train"] * num_rows

    @property
    def info(self) -> SourceInfo:
        """Made up."""
        return SourceInfo(kind="folder", name="imagenet", fingerprint="0" * 16)

    def read(self, row: int) -> bytes:
        """One of the real images."""
        return self._images[row % len(self._images)].read_bytes()


def bytes_of_float32(backbone: Backbone, folder: Path, form: Form, seconds: float) -> float:
    """How many times fewer bytes than float32 the chunks of a dtype take, on the demo teacher."""
    source = open_source(folder)
    options = ExtractOptions(teacher="demo", dtype=form[0], compression=form[1])
    order = row_order(source, options)
    decode = row_decoder(source, order, backbone, options)
    steps = calibration_for(backbone, decode, len(order), options)
    manifest = plan_manifest(source, len(order), backbone, options, lambda: None, steps)
    work = Workload(
        manifest=manifest,
        backbone=backbone,
        decode=decode,
        rows=range(len(order)),
        arithmetic=options.arithmetic,
        workers=num_cores(),
    )
    found = measure(work, batch_size=8, seconds=seconds)
    return float32_bytes(manifest, 1) / found.bytes_a_row


def planned(teacher: Backbone, num_rows: int, form: Form) -> Manifest:
    """ViT-B over so many images."""
    layout, num_layers = teacher.layout, teacher.num_blocks + 1
    step = Quantisation(scale=(1.0,) * teacher.dim, offset=(0.0,) * teacher.dim, variance=1.0)
    grid = choose_grid(
        num_rows=num_rows,
        layout=layout,
        kinds=layout.kinds,
        num_layers=num_layers,
        dim=teacher.dim,
        dtype=form[0],
    )
    return Manifest(
        num_rows=num_rows,
        layers=tuple(range(num_layers)),
        kinds=layout.kinds,
        layout=layout,
        dtype=form[0],
        compression=form[1],
        quantisation=(step,) * num_layers if form[0] == "int8" else None,
        shard_rows=grid[0],
        chunk_rows=grid[1],
        teacher=teacher.info,
        preprocessing=teacher.preprocessing,
        source=SourceInfo(kind="folder", name="imagenet", fingerprint="0" * 16),
        row_seed=0,
    )


def sizes(folder: Path, num_rows: int, seconds: float) -> Iterator[str]:
    """The table of files and bytes."""
    architecture = TEACHER.partition(".")[0]
    teacher = load_backbone(architecture, random_seed=0)
    demo = load_backbone("demo")
    yield "| dtype | compression | rows a shard, a chunk | files | TB | against float32 |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for form in PRECISIONS:
        manifest, ratio = planned(teacher, num_rows, form), bytes_of_float32(demo, folder, form, seconds)
        terabytes = float32_bytes(manifest, num_rows) / ratio / 1e12
        grid = f"{manifest.shard_rows}, {manifest.chunk_rows}"
        files = num_files(manifest, num_teacher_files=2)
        yield f"| {form[0]} | {form[1]} | {grid} | {files:,} | {terabytes:.2f} | 1 / {ratio:.2f} |"


def planning(folder: Path, num_rows: int) -> Iterator[str]:
    """Time and memory of everything that is done before the first image, but for listing files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    start = time.perf_counter()
    source = Imagenet(num_rows, files)
    made = time.perf_counter()
    order = row_order(source, ExtractOptions(teacher=TEACHER))
    ordered = time.perf_counter()
    table = plan_table(source, order)
    done = time.perf_counter()
    most = (host_peak() or 0) / 1e9
    yield (
        f"{num_rows:,} rows: {made - start:.1f} s to make the listing up, {ordered - made:.1f} s for the "
        f"order, {done - ordered:.1f} s for the sample table ({table.nbytes / 1e6:.0f} MB); at most "
        f"{most:.2f} GB in all"
    )


def main() -> None:
    """Plan, measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--rows", type=int, default=IMAGENET)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--only-planning", action="store_true")
    given = parser.parse_args()
    for line in planning(given.images, given.rows):
        print(line, flush=True)
    if not given.only_planning:
        for line in sizes(given.images, given.rows, given.seconds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
