"""CARD.md: what a store is, how it was made, how to read and check it, for the people it is shared with.

A manifest and what the index says of the whole store in, Markdown out, with the front matter of a Hugging
Face data set card. The text depends on nothing else: no time, path or host is in it. Its last line is a hash
of the rest, which tells a card that somebody has edited, and that is left alone, from one that may be written
anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .card_examples import how_to_read
from .files import atomic_write, xxh3
from .index import IndexSummary
from .manifest import Manifest, StoredDtype
from .markup import as_block, as_code, one_line, yaml_string
from .provenance import UNKNOWN

__all__ = ["CARD", "license_lines", "make_card", "write_card"]

CARD: Final = "CARD.md"
_MOST_BYTES: Final = 1 << 20
"""A longer card is not ours."""
_MARK: Final = re.compile(rb"\n<!-- activault: ([0-9a-f]{32}) -->\n\Z")
_HUB_LICENSES: Final = frozenset(
    re.findall(
        r"\S+",
        """afl-3.0 agpl-3.0 apache-2.0 artistic-2.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0
        c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0
        cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0
        cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0 cdla-permissive-2.0 ecl-2.0 epl-1.0 epl-2.0
        etalab-2.0 eupl-1.1 eupl-1.2 fair-noncommercial-research-license gfdl gpl gpl-2.0 gpl-3.0 isc lgpl
        lgpl-2.1 lgpl-3.0 mit mpl-2.0 odbl odc-by openrail osl-3.0 pddl unlicense wtfpl zlib unknown""",
    )
)
"""What the hub takes as a licence (hf.co/docs/hub/repositories-licenses); any other is named as `other`."""
_SIZES: Final = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
_DTYPES: Final[Mapping[StoredDtype, str]] = {
    "bfloat16": "float32 rounded to bfloat16 (relative error at most 0.4 %); any Zarr reader gets floats",
    "float16": "float16 (relative error at most 0.05 % above 6.1e-5)",
    "float32": "float32, as the teacher gave them",
    "int8": (
        "patches as int8 codes, with a scale and an offset for every layer and channel in the manifest; "
        "other tokens as float32 rounded to bfloat16"
    ),
}


def write_card(path: Path, manifest: Manifest, summary: IndexSummary, r2: Mapping[int, float]) -> None:
    """Write the card of the store at `path`, unless somebody edited the one that is there.

    Raises:
        OSError: the disk is full, read-only or gone.
    """
    card = path / CARD
    if not card.is_symlink() and (not card.exists() or _is_ours(card)):
        atomic_write(card, make_card(manifest, summary, r2))


def _is_ours(card: Path) -> bool:
    """Whether the card is as it was generated, by this version or by another one."""
    if not card.is_file() or card.stat().st_size > _MOST_BYTES:
        return False
    data = card.read_bytes()
    mark = _MARK.search(data)
    return mark is not None and xxh3(data[: mark.start()]).encode() == mark[1]


def make_card(manifest: Manifest, summary: IndexSummary, r2: Mapping[int, float]) -> bytes:
    """The card of a complete store.

    Args:
        manifest: of the store.
        summary: what its index says of the whole.
        r2: for int8, the R2 of every layer's patches; empty for any other dtype.
    """
    parts = (
        _front_matter(manifest),
        f"# Activations of {as_code(manifest.teacher.name)} over {as_code(manifest.source.name)}",
        _what(manifest, summary),
        _how_made(manifest, r2),
        how_to_read(manifest),
        _how_to_check(summary),
        _terms(manifest),
    )
    text = "\n\n".join(parts).encode() + b"\n"
    return text + f"\n<!-- activault: {xxh3(text)} -->\n".encode()


def license_lines(license: str) -> list[str]:
    """A licence in front matter: as the hub knows it, else as `other` with its name."""
    named = license.strip().lower() or UNKNOWN
    if named in _HUB_LICENSES:
        return [f"license: {named}"]
    slug = re.sub(r"[^a-z0-9.]+", "-", named)[:60].strip("-.") or "other"
    return ["license: other", f"license_name: {yaml_string(slug)}"]


def _front_matter(manifest: Manifest) -> str:
    lines = ["---", *license_lines(manifest.license)]
    title = f"Activations of {one_line(manifest.teacher.name)} over {one_line(manifest.source.name)}"
    lines += [f"pretty_name: {yaml_string(title)}", "tags:"]
    lines += [f"- {tag}" for tag in ("activault", "activations", "vision-transformer", "zarr")]
    return "\n".join([*lines, "size_categories:", f"- {yaml_string(_size(_num_held(manifest)))}", "---"])


def _size(rows: int) -> str:
    place = next((place for place in range(len(_SIZES)) if rows < 1000 * 10**place), None)
    if place is None:
        return f"n>{_SIZES[-1]}"
    return f"{_SIZES[place - 1]}<n<{_SIZES[place]}" if place else f"n<{_SIZES[0]}"


def _num_held(manifest: Manifest) -> int:
    """Rows of the shards that the store is of."""
    spans = ((0, manifest.num_shards),) if manifest.shards is None else manifest.shards
    rows, each = manifest.num_rows, manifest.shard_rows
    return sum(min(stop * each, rows) - first * each for first, stop in spans)


def _what(manifest: Manifest, summary: IndexSummary) -> str:
    tokens = ", ".join(f"{manifest.layout.count(kind)} {kind}" for kind in manifest.kinds)
    return f"""\
Tokens of the layers of a frozen Vision Transformer, in an activault store: Zarr v3 arrays, one for each layer
and token kind, each (rows, tokens, channels).

- **Rows**: {_rows(manifest, summary)}.
  `samples.parquet` has their keys, labels and outcomes, as far as they are known.
- **Layers**: {_runs(manifest.layers)}, of 0 to {manifest.teacher.num_blocks}. 0 is the embedded input (after
  position embedding, registers and any pre-norm), l the output of block l. The final norm is not applied.
- **Tokens of a layer**: {tokens}; {_patches(manifest)}.
- **Channels**: {manifest.dim:,}.
- **Size**: {summary.num_bytes:,} bytes of arrays."""


def _patches(manifest: Manifest) -> str:
    """Which patches of the grid there are, and in which order."""
    height, width = manifest.layout.grid
    kept = manifest.layout.kept_patches
    if kept is None:
        return f"patches stand row by row of a {height} x {width} grid"
    if kept == "mean":
        return f"the one patch token is the mean over a {height} x {width} grid"
    return f"patches are {len(kept)} places of a {height} x {width} grid, row by row from 0: {_runs(kept)}"


def _rows(manifest: Manifest, summary: IndexSummary) -> str:
    held = _num_held(manifest)
    said = f"{held:,}, one an image"
    if manifest.shards is not None:
        shards = ", ".join(f"{first} to {stop - 1}" for first, stop in manifest.shards[:8])
        more = f" and {len(manifest.shards) - 8:,} ranges more" if len(manifest.shards) > 8 else ""
        said = (
            f"{held:,} of {manifest.num_rows:,}, one an image: this is a partial copy, of the shards {shards}"
            f"{more} of {manifest.shard_rows:,} rows; row numbers are those of the whole"
        )
    if summary.num_bad:
        said += f". {summary.num_bad:,} have no activations and read as NaN"
    return said


def _runs(layers: tuple[int, ...]) -> str:
    """`0-3, 6`."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)


def _how_made(manifest: Manifest, r2: Mapping[int, float]) -> str:
    teacher, source = manifest.teacher, manifest.source
    text = f"""\
## How it was made

- **Teacher**: {_known(teacher.name)}, architecture {_known(teacher.architecture)}.
  {teacher.num_blocks} blocks, {teacher.num_heads or "an unknown number of"} heads.
- **Weights**: {_known(teacher.weights)}; hash {_known(teacher.weights_sha256)}.
- **Licence of the weights**: {_known(teacher.license)}.
- **Source**: {as_code(source.kind)} {as_code(source.name)}, fingerprint {as_code(source.fingerprint)}.
- **Preprocessing**: {_preprocessing(manifest)}.
- **Software**: timm {_known(teacher.timm_version)}, torch {_known(teacher.torch_version)}.
- **Precision**: `{manifest.dtype}`: {_DTYPES[manifest.dtype]}."""
    if manifest.details:
        details = ", ".join(f"{name} {as_code(str(value))}" for name, value in manifest.details)
        text += f"\n- **Further**: {details}."
    if not r2:
        return text
    worst = min(r2, key=r2.__getitem__)
    each = ", ".join(f"{layer}: {value:.5f}" for layer, value in sorted(r2.items()))
    return text + (
        f"\n- **Error of int8**: R2 of the stored patches against the teacher's is {r2[worst]:.5f} or more, "
        f"least in layer {worst};\n  the format asks for 0.999. By layer: {each}."
    )


def _preprocessing(manifest: Manifest) -> str:
    steps = manifest.preprocessing
    if steps is None:
        return UNKNOWN
    height, width = steps.image_size
    if steps.crop_mode == "center":
        scaled = f"shorter side to {steps.resize} pixels ({steps.interpolation})"
        scaled += f", centre crop of {height} x {width}"
    elif steps.crop_mode == "squash":
        scaled = f"scaled to {height} x {width}, proportions not kept ({steps.interpolation})"
    else:
        scaled = f"scaled ({steps.interpolation}) and cut ({steps.crop_mode}) to {height} x {width}"
    turned = "" if steps.orientation == "stored" else f"turned by its orientation ({steps.orientation}); "
    return (
        f"{turned}{scaled}, values in 0 to 1; then for each channel minus {list(steps.mean)}, divided by "
        f"{list(steps.std)}"
    )


def _how_to_check(summary: IndexSummary) -> str:
    return f"""\
## How to check it

`activault verify STORE.zarr --deep` reads every byte. `activault info STORE.zarr` must tell these two:

```
digest         {summary.digest}
arrays_digest  {summary.arrays_digest}
```

The first names the store with all that is said of it, the second the values alone."""


def _terms(manifest: Manifest) -> str:
    if manifest.license.strip().lower() in ("", UNKNOWN):
        license_ = "Unknown: nobody has said under which terms these activations may be used."
    else:
        license_ = f"{as_code(manifest.license)}."
    citation = as_block(manifest.citation) if manifest.citation.strip() else "None was given."
    return f"""\
## Licence

{license_} The terms of the images and of the weights may bind as well.

## Citation

{citation}"""


def _known(text: str) -> str:
    return UNKNOWN if text.strip() in ("", UNKNOWN) else as_code(text)
