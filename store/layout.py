"""What the tokens of one layer are, and which layers are meant.

A layer's tokens stand in the order CLS, registers, patches (row-major grid); a store keeps each kind in
an array of its own. Layer 0 is the embedded input, layer l the output of block l (counted from 1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Annotated, Literal

from pydantic import Field, model_validator

from .errors import ConfigError
from .models import Model

__all__ = [
    "KINDS",
    "TokenKind",
    "TokenLayout",
    "layer_name",
    "parse_kept_kinds",
    "parse_kinds",
    "parse_layers",
    "require_all_layers",
    "require_all_tokens",
]

TokenKind = Literal["cls", "registers", "patches"]
KINDS: tuple[TokenKind, ...] = ("cls", "registers", "patches")


class TokenLayout(Model):
    """Counts of each token kind in one layer."""

    num_cls: int = Field(ge=0, le=1)
    """1 if the teacher has a class token."""
    num_registers: int = Field(ge=0, le=1024)
    """Register tokens, between CLS and patches."""
    grid: tuple[Annotated[int, Field(ge=1, le=4096)], Annotated[int, Field(ge=1, le=4096)]]
    """Patch rows and columns."""
    kept_patches: Literal["mean"] | tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """Patches that a store has: None is all, `mean` their mean alone, else places in the grid, ascending."""

    @model_validator(mode="after")
    def _consistent(self) -> TokenLayout:
        kept, all_patches = self.kept_patches, self.grid[0] * self.grid[1]
        if isinstance(kept, tuple) and (
            not kept or list(kept) != sorted(set(kept)) or kept[-1] >= all_patches or len(kept) == all_patches
        ):
            raise ValueError(
                f"kept_patches are some places of a grid of {all_patches}, ascending, and None is all of "
                f"them; got {len(kept)} of them: {kept[:8]}"
            )
        return self

    @property
    def num_patches(self) -> int:
        """Patch tokens of one image, of those that are kept."""
        if self.kept_patches is None:
            return self.grid[0] * self.grid[1]
        return 1 if self.kept_patches == "mean" else len(self.kept_patches)

    @property
    def num_tokens(self) -> int:
        """All tokens of one image in one layer."""
        return self.num_cls + self.num_registers + self.num_patches

    @property
    def kinds(self) -> tuple[TokenKind, ...]:
        """The kinds that this layout has at least one token of."""
        return tuple(kind for kind in KINDS if self.count(kind))

    def count(self, kind: TokenKind) -> int:
        """Tokens of one kind."""
        return {"cls": self.num_cls, "registers": self.num_registers, "patches": self.num_patches}[kind]

    def span(self, kind: TokenKind) -> slice:
        """Where one kind stands on the token axis of a whole layer."""
        start = sum(self.count(before) for before in KINDS[: KINDS.index(kind)])
        return slice(start, start + self.count(kind))


def layer_name(layer: int) -> str:
    """Folder of one layer's arrays: `layer_07`."""
    return f"layer_{layer:02d}"


def parse_layers(text: str, available: Sequence[int]) -> tuple[int, ...]:
    """`"0-12"`, `"0,3,7-9"` or `"all"` as ascending layer numbers out of `available`.

    Every layer of a range must be there: one that is not would be missed only later.

    Raises:
        ConfigError: the text is not a list of layers, or names one that is not available.
    """
    if text.strip() == "all":
        return tuple(available)
    layers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part)
        if match is None:
            raise ConfigError(
                f"layers are numbers and ranges such as '0-12' or '0,3,7-9', or 'all'; got {_short(text)}"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ConfigError(f"a range of layers rises; got {part.strip()!r} in {_short(text)}")
        layers.update(_bounded(range(first, last + 1), available, text))
    return tuple(sorted(layers))


def _bounded(layers: range, available: Sequence[int], text: str) -> range:
    """The same layers, all of them there; a range such as `0-999999999` is never spelled out."""
    known = set(available)
    # The ends first; in between the first gap comes after as many layers as there are, at the latest.
    for layer in chain((layers[0], layers[-1]), layers):
        if layer not in known:
            rule = "is not kept" if known and min(known) < layer < max(known) else "is out of range"
            raise ConfigError(f"layer {layer} in {_short(text)} {rule}; there are layers {_spoken(known)}")
    return layers


def _spoken(layers: Iterable[int]) -> str:
    """`0, 2, 4-6`; `none` if there are none."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and runs[-1][-1] == layer - 1:
            runs[-1][1:] = [layer]
        else:
            runs.append([layer])
    return ", ".join("-".join(map(str, run)) for run in runs) or "none"


def _short(text: str) -> str:
    """As a message shows it, quoted."""
    return repr(text) if len(text) <= 80 else f"{text[:77]!r}..."


def parse_kinds(text: str | Iterable[str], layout: TokenLayout) -> tuple[TokenKind, ...]:
    """`"all"`, `"cls,patches"` or a sequence of kinds, in the layout's order.

    Kinds that the layout has no token of are left out, so that `cls,registers,patches` suits every teacher.

    Raises:
        ConfigError: a kind is unknown, or none of the kinds is there.
    """
    if isinstance(text, str):
        text = KINDS if text.strip() == "all" else [part.strip() for part in text.split(",")]
    try:
        asked = list(text)
    except TypeError as exc:
        said = "token kinds are 'all', 'cls,patches' or a sequence of kinds"
        raise ConfigError(f"{said}; got {text!r}") from exc
    for kind in asked:
        if kind not in KINDS:
            raise ConfigError(f"token kinds are {', '.join(KINDS)} or all; got {kind!r}")
    kinds = tuple(kind for kind in layout.kinds if kind in asked)
    if not kinds:
        raise ConfigError(f"none of the token kinds {asked} is here; there are {', '.join(layout.kinds)}")
    return kinds


def require_all_layers(layers: Iterable[int], num_blocks: int, use: str) -> None:
    """Refuse a store without some of its teacher's layers, for a use that needs each of them.

    Args:
        layers: the store's.
        num_blocks: blocks of the teacher; layer 0 is what goes into the first.
        use: what needs them; begins the message.

    Raises:
        ConfigError: a layer is not there.
    """
    if missing := sorted(set(range(num_blocks + 1)) - set(layers)):
        raise ConfigError(
            f"{use} takes the teacher's layers 0-{num_blocks}; the store lacks {missing}; extract with "
            "--layers all"
        )


def require_all_tokens(layout: TokenLayout, kinds: Iterable[TokenKind], use: str) -> None:
    """Refuse a store that was made without some tokens of a layer, for a use that needs each of them.

    Args:
        layout: the store's.
        kinds: the kinds that it keeps.
        use: what needs them; begins the message.

    Raises:
        ConfigError: a kind is not kept, or patches are kept in part.
    """
    lacking: list[str] = [kind for kind in layout.kinds if kind not in kinds]
    if not lacking and layout.kept_patches is not None:
        lacking = ["most patches"]
    if lacking:
        raise ConfigError(
            f"{use} takes all tokens of a layer; this store was made without {', '.join(lacking)}; extract "
            "with --tokens cls,registers,patches"
        )


def parse_kept_kinds(
    text: str | Iterable[str], layout: TokenLayout, kept: tuple[TokenKind, ...]
) -> tuple[TokenKind, ...]:
    """The same out of the kinds that a store keeps, where `"all"` is all of those.

    Raises:
        ConfigError: a kind is unknown or not kept.
    """
    if isinstance(text, str) and text.strip() == "all":
        return kept
    kinds = parse_kinds(text, layout)
    missing = [kind for kind in kinds if kind not in kept]
    if missing:
        raise ConfigError(f"token kinds here are {', '.join(kept)}; got {', '.join(missing)}")
    return kinds
