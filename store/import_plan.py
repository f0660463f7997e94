"""What a reference-layout array means: its tokens, its layers, and the manifest of the store it becomes.

The array says its shape and nothing else. What follows from the shape is inferred where only one answer is
usual, what is not told stays `unknown`. Pure: an array's shape and `ImportOptions` in, a `Manifest` out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import ConfigError
from .grid import SHARD_BUFFER_BYTES, choose_grid
from .layout import TokenLayout, parse_layers
from .manifest import Manifest, Quantisation, StoredDtype
from .provenance import UNKNOWN, Preprocessing, SourceInfo, TeacherInfo
from .reference import Reference

__all__ = [
    "REFERENCE_PREPROCESSING",
    "ImportOptions",
    "aligned_grid",
    "infer_layers",
    "infer_layout",
    "plan_import",
]

REFERENCE_PREPROCESSING: Final = Preprocessing(
    image_size=(224, 224),
    resize=256,
    interpolation="bicubic",
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)
"""What the reference's own script does to an image."""
_USUAL_DEPTHS: Final = (12, 24, 32, 40, 48)
"""Blocks of a usual ViT: so many layers on the axis may as well lack the embedded input."""
_USUAL_REGISTERS: Final = (0, 4)
_MOST_REGISTERS: Final = 16


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What the array does not say of itself, and how it is to be stored."""

    layers: str | None = None
    """Layers along the axis, such as `0-12` or `1-12`; None is 0 and on, where the number allows no doubt."""
    num_cls: int | None = None
    """Class tokens, 0 or 1; None infers."""
    registers: int | None = None
    """Register tokens; None infers."""
    grid: tuple[int, int] | None = None
    """Patch rows and columns; None is a square."""
    teacher: str = UNKNOWN
    """Name of the model."""
    heads: int | None = None
    """Attention heads of a block."""
    preprocessing: Preprocessing | None = None
    """How an image became the teacher's input."""
    dtype: StoredDtype = "bfloat16"
    """Precision of the stored values."""
    shard_rows: int | None = None
    """Rows a shard; None chooses, in whole chunks of the source."""
    labels: Path | None = None
    """A file of labels, one a row: `.txt`, `.csv` or `.parquet`."""
    keys: Path | None = None
    """The same of keys; without it `row-000000000` and so on are made up."""
    license: str = UNKNOWN
    """Of the activations as a data set."""
    citation: str = ""
    """What to cite for them."""

    def __post_init__(self) -> None:
        if self.num_cls not in (None, 0, 1):
            raise ConfigError(f"a layer has 0 or 1 class tokens; got {self.num_cls}")
        for name, count, least in (("registers", self.registers, 0), ("heads", self.heads, 1)):
            if count is not None and count < least:
                raise ConfigError(f"{name} is at least {least}; got {count}")
        for name, text in (("teacher", self.teacher), ("license", self.license), ("citation", self.citation)):
            if not _is_unicode(text):
                raise ConfigError(f"{name} is text in UTF-8; got {text[:100]!r}")
        if self.grid is not None and min(self.grid) < 1:
            raise ConfigError(f"a grid is rows x columns, each at least 1; got {self.grid[0]}x{self.grid[1]}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # an argument of the command line may be any bytes
        return False
    return True


def infer_layout(num_tokens: int, options: ImportOptions) -> TokenLayout:
    """The token layout that a number of tokens stands for.

    All layouts with 0 or 1 class tokens, up to 16 registers and a square grid are held against what the
    options say. Where several are left, it is the one with a class token and 0 or 4 registers, or without
    either.

    Raises:
        ConfigError: none is left, or more than one; they are listed.
    """
    found = list(_layouts(num_tokens, options))
    usual = [layout for layout in found if _is_usual(layout)]
    if len(found) == 1 or len(usual) == 1:
        return found[0] if len(found) == 1 else usual[0]
    said = ", ".join(_spoken(layout) for layout in found)
    if not found:
        raise ConfigError(
            f"{num_tokens} tokens must be CLS + registers + grid; no square grid with up to "
            f"{_MOST_REGISTERS} registers fits what was said; state --grid HxW, --registers N, --cls 0 or 1"
        )
    raise ConfigError(f"{num_tokens} tokens can be: {said}; state --registers, --cls or --grid")


def _is_usual(layout: TokenLayout) -> bool:
    return layout.num_registers in (_USUAL_REGISTERS if layout.num_cls else (0,))


def _layouts(num_tokens: int, options: ImportOptions) -> Iterator[TokenLayout]:
    many = range(_MOST_REGISTERS + 1) if options.registers is None else (options.registers,)
    for num_cls in (1, 0) if options.num_cls is None else (options.num_cls,):
        if options.grid is not None and options.registers is None:
            many = (num_tokens - num_cls - options.grid[0] * options.grid[1],)
        for registers in many:
            patches = num_tokens - num_cls - registers
            side = math.isqrt(max(patches, 0))
            grid = options.grid or (side, side)
            if registers >= 0 and patches > 0 and grid[0] * grid[1] == patches:
                yield TokenLayout(num_cls=num_cls, num_registers=registers, grid=grid)


def _spoken(layout: TokenLayout) -> str:
    height, width = layout.grid
    return f"{layout.num_cls} CLS + {layout.num_registers} registers + {height}x{width}"


def infer_layers(num_layers: int, text: str | None) -> tuple[int, ...]:
    """Numbers of the layers along the axis.

    Raises:
        ConfigError: they are not as many as the axis has, or were not stated where layer 0 may be missing.
    """
    if text is None:
        if num_layers in _USUAL_DEPTHS:
            raise ConfigError(
                f"the array has {num_layers} layers; whether the first is the embedded input cannot be told; "
                f"state --layers 0-{num_layers - 1} or --layers 1-{num_layers}"
            )
        return tuple(range(num_layers))
    layers = parse_layers(text, range(4097))
    if len(layers) != num_layers:
        raise ConfigError(
            f"--layers names each of the array's {num_layers} layers; {text!r} are {len(layers)}"
        )
    return layers


def plan_import(
    reference: Reference,
    options: ImportOptions,
    grid: tuple[int, int],
    quantisation: tuple[Quantisation, ...] | None,
) -> Manifest:
    """The manifest of the store that the array becomes; rows keep their order.

    Args:
        reference: the array.
        options: what else is known.
        grid: rows a shard and rows a chunk, from `aligned_grid`.
        quantisation: for int8, one a layer.
    """
    layers = infer_layers(reference.shape[1], options.layers)
    layout = infer_layout(reference.shape[2], options)
    return Manifest(
        num_rows=reference.num_rows,
        layers=layers,
        kinds=layout.kinds,
        layout=layout,
        dtype=options.dtype,
        quantisation=quantisation,
        shard_rows=grid[0],
        chunk_rows=grid[1],
        teacher=TeacherInfo(
            name=options.teacher,
            architecture=options.teacher,
            weights=UNKNOWN,
            weights_sha256=UNKNOWN,
            license=UNKNOWN,
            num_blocks=max(layers[-1], 1),
            dim=reference.shape[3],
            num_heads=options.heads,
            timm_version=UNKNOWN,
            torch_version=UNKNOWN,
        ),
        preprocessing=options.preprocessing,
        source=SourceInfo(kind="arrays", name=reference.name, fingerprint=reference.fingerprint),
        row_seed=0,
        license=options.license,
        citation=options.citation,
    )


def aligned_grid(
    reference: Reference, options: ImportOptions, buffer_bytes: int = SHARD_BUFFER_BYTES
) -> tuple[int, int]:
    """`(shard_rows, chunk_rows)` of which a shard is whole chunks of the source, where one fits the buffer.

    Then each chunk of the source is decompressed once; in a smaller buffer, once a shard that it has rows in.

    Raises:
        ConfigError: the shard rows that were asked for do not fit the buffer.
    """
    layout = infer_layout(reference.shape[2], options)
    shard_rows, chunk_rows = choose_grid(
        num_rows=reference.num_rows,
        layout=layout,
        kinds=layout.kinds,
        num_layers=reference.shape[1],
        dim=reference.shape[3],
        dtype=options.dtype,
        shard_rows=options.shard_rows,
        buffer_bytes=buffer_bytes,
    )
    high = reference.chunks[0]
    divisor = next(rows for rows in range(min(chunk_rows, high), 0, -1) if high % rows == 0)
    step = math.lcm(high, chunk_rows) if 4 * divisor < chunk_rows else high
    if options.shard_rows is not None or shard_rows < step or shard_rows >= reference.num_rows:
        return shard_rows, chunk_rows
    return shard_rows // step * step, chunk_rows if step % chunk_rows == 0 else divisor
