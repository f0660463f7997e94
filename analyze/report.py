"""One self-contained HTML report of a store, and of a run where there is one, with its numbers beside it.

In: `ReportInputs`. Out, in a folder: `report.html` (figures inline, nothing is fetched, no script),
`numbers.json` (everything) and `layers.parquet` (one row a layer and token kind).
"""

from __future__ import annotations

from pathlib import Path

from . import prose
from .findings import written
from .inputs import ReportInputs
from .numbers import write_numbers
from .page import Section, Table, Tile, render_page
from .panels import percent
from .sections import run_sections, store_sections

__all__ = ["write_report"]

JOINED = "\N{NON-BREAKING HYPHEN}"


def write_report(out: Path, inputs: ReportInputs) -> Path:
    """Write the report and its numbers into a folder, which is made if it is not there.

    Returns:
        Path of the HTML file.

    Raises:
        OSError: the folder cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    write_numbers(out, inputs)
    path = out / "report.html"
    path.write_text(_page(inputs), encoding="utf-8")
    return path


def _page(inputs: ReportInputs) -> str:
    store = inputs.store
    notes = [prose.DEMO] if store.teacher == "demo" else []
    absent = _absent(inputs)
    if absent:
        notes.append(f"Left out, because no results were given: {'; '.join(absent)}.")
    return render_page(
        title=f"{'The demo teacher' if store.teacher == 'demo' else store.teacher}, layer by layer",
        lead=(
            f"{store.architecture} on {inputs.analysis.num_rows:,} images of {store.source} at "
            f"{_pixels(store.image_size)}"
            + (", with its block-recurrent surrogate beside it." if inputs.analysis.surrogate else ".")
        ),
        tiles=_tiles(inputs),
        notes=notes,
        sections=[*run_sections(inputs), *store_sections(inputs), _facts(inputs)],
        footer=(
            "Made by activault. The same numbers are in numbers.json and layers.parquet beside this page. "
            "Published findings: Block-Recurrent Dynamics in Vision Transformers, arXiv 2512.19941."
        ),
    )


def _absent(inputs: ReportInputs) -> list[str]:
    parts = {
        "training losses": inputs.losses,
        "R2 of the roll-out": inputs.r2,
        "probes": inputs.probes,
        "the surrogate's curves": inputs.analysis.surrogate,
        "phases (too few layers)": inputs.analysis.phases,
    }
    return [name for name, given in parts.items() if not given]


def _tiles(inputs: ReportInputs) -> list[Tile]:
    store = inputs.store
    ratio = store.float32_bytes / store.num_bytes if store.num_bytes else 1.0
    bad = f", {store.num_bad:,} of them bad images" if store.num_bad else ""
    tiles = [
        Tile(value=f"{store.num_rows:,}", text=f"rows{bad}"),
        Tile(
            value=_size(store.num_bytes),
            text=f"stored, 1 / {ratio:.2f} of float32 ({_size(store.float32_bytes)})",
        ),
        Tile(
            value=f"{len(inputs.spans)} phases" if inputs.cuts else "1 phase",
            text="layers " + ", ".join(f"{a}{JOINED}{e}" if e > a else str(a) for a, e in inputs.spans),
        ),
    ]
    tiles += [
        Tile(value=percent(row.retention), text=f"of the teacher's accuracy kept, {row.head} head")
        for row in inputs.probes
        if row.name == "surrogate"
    ]
    whole = [row.value for row in inputs.r2 if row.kind == "all" and row.value is not None]
    if whole:
        tiles.append(
            Tile(value=written(min(whole)), text="lowest R\N{SUPERSCRIPT TWO} of a layer, all tokens")
        )
    return tiles


def _pixels(image_size: tuple[int, int] | None) -> str:
    if image_size is None:
        return "an unknown number of pixels"
    return f"{image_size[0]} \N{MULTIPLICATION SIGN} {image_size[1]} pixels"


def _facts(inputs: ReportInputs) -> Section:
    store = inputs.store
    facts = {
        "teacher": f"{store.teacher} ({store.architecture})",
        "images": store.source,
        "input": _pixels(store.image_size),
        "rows": f"{store.num_rows:,} in the store, {inputs.analysis.num_rows:,} analysed",
        "a row": f"{store.num_layers} layers of {store.tokens_per_layer} tokens of {store.dim} values",
        "precision": store.dtype,
        "stored": f"{store.num_bytes:,} bytes",
        "as float32": f"{store.float32_bytes:,} bytes",
        "digest": store.digest,
        **inputs.notes,
    }
    return Section(
        slug="facts",
        title="What this was made from",
        asks="Enough to make it again.",
        table=Table(heads=["", ""], rows=list(facts.items())),
        folded=False,
    )


def _size(num_bytes: int) -> str:
    """Bytes as people write them."""
    size, unit = float(num_bytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.1f} {unit}"
