"""The manifest: all that is needed to reproduce a store and to read it, as `attributes.activault`.

Nothing in it can be derived from something else in it; counts and shapes are properties.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt
from pydantic import (
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    field_serializer,
    field_validator,
    model_validator,
)

from .files import canonical_json
from .held import HeldShards
from .layout import TokenKind, TokenLayout
from .provenance import UNKNOWN, Preprocessing, SourceInfo, StrictModel, TeacherInfo

__all__ = [
    "FORMAT_VERSION",
    "MOST_SHARD_ROWS",
    "PRECISIONS",
    "Compression",
    "Detail",
    "Manifest",
    "Quantisation",
    "StoredDtype",
]

FORMAT_VERSION: Final = 1
MOST_SHARD_ROWS: Final = 1 << 16
"""The format's bound on rows a shard."""
MAX_CHUNK_BYTES: Final = 1 << 30
MAX_TABLE_BYTES: Final = 4 << 30
StoredDtype = Literal["bfloat16", "float16", "float32", "int8"]
Compression = Literal["blosc", "none"]
PRECISIONS: Final[tuple[tuple[StoredDtype, Compression], ...]] = tuple(
    pair for pair in product(get_args(StoredDtype), get_args(Compression)) if pair != ("bfloat16", "none")
)
"""Each dtype with each compression that a store may have."""
Detail = StrictStr | StrictBool | StrictInt | StrictFloat | None
_DETAIL_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MOST_DETAILS: Final = 64
_LONGEST_DETAIL: Final = 1000


def _refuse_longer(numbers: npt.NDArray[np.float64], bits: int, name: str) -> None:
    """Refuse numbers that a float32 of so many significant bits is not."""
    with np.errstate(over="ignore"):
        singles = numbers.astype(np.float32)
    wrong = (singles != numbers) | (np.ldexp(np.frexp(numbers)[0], bits) % 1 != 0)
    if wrong.any():
        raise ValueError(
            f"{name} of a quantisation are float32 of {bits} significant bits; got {numbers[wrong][0]}"
        )


class Quantisation(StrictModel):
    """How one layer's patches become int8 codes: `value = code * scale[channel] + offset[channel]`."""

    scale: tuple[float, ...]
    """(dim,) step of each channel, a float32."""
    offset: tuple[float, ...]
    """(dim,) value of code 0, a float32."""
    variance: float = Field(ge=0)
    """Mean over channels of the variance on the calibration rows; the error bound is a share of it."""


class Manifest(StrictModel):
    """Everything that names a store's content, before its first shard is written."""

    format: Literal[1] = FORMAT_VERSION
    num_rows: int = Field(ge=1, le=1 << 40)
    """Rows of every array, bad images included."""
    layers: tuple[int, ...] = Field(min_length=1)
    """Layers that are kept, ascending."""
    kinds: tuple[TokenKind, ...] = Field(min_length=1)
    """Token kinds that are kept."""
    layout: TokenLayout
    """Tokens of one layer of the teacher."""
    dtype: StoredDtype
    """Precision of the values; `bfloat16` is kept as float32 rounded to it, `int8` quantises patches only."""
    compression: Compression = "blosc"
    """How inner chunks are compressed."""
    quantisation: tuple[Quantisation, ...] | None = None
    """One a kept layer if the dtype is int8, else None."""
    shard_rows: int = Field(ge=1, le=MOST_SHARD_ROWS)
    """Rows a shard."""
    chunk_rows: int = Field(ge=1, le=MOST_SHARD_ROWS)
    """Rows an inner chunk; divides `shard_rows`."""
    teacher: TeacherInfo
    preprocessing: Preprocessing | None
    """None where unknown."""
    source: SourceInfo
    row_seed: int | None
    """Seed of the order of the rows; None is the source's own order."""
    shards: tuple[tuple[int, int], ...] | None = None
    """Shards of a partial copy, as `(first, stop)` ranges that ascend and do not touch; None is all."""
    license: str = UNKNOWN
    """Licence of the activations as a data set, for the people they are shared with."""
    citation: str = ""
    """What to cite for them."""
    details: tuple[tuple[str, Detail], ...] = ()
    """What else a writer notes of how the values came to be, by name; nothing that a reader needs."""

    @field_validator("details", mode="before")
    @classmethod
    def _details_in_order(cls, value: Any) -> Any:
        return tuple(sorted(value.items())) if isinstance(value, Mapping) else value

    @field_serializer("details")
    def _details_by_name(self, value: tuple[tuple[str, Detail], ...]) -> dict[str, Detail]:
        return dict(value)

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        if self.shard_rows % self.chunk_rows:
            raise ValueError(
                f"shard_rows {self.shard_rows} is not a multiple of chunk_rows {self.chunk_rows}"
            )
        ascending = list(self.layers) == sorted(set(self.layers))
        if not ascending or self.layers[0] < 0 or self.layers[-1] > self.teacher.num_blocks:
            raise ValueError(f"layers ascend within 0-{self.teacher.num_blocks}; got {self.layers}")
        if self.kinds != tuple(kind for kind in self.layout.kinds if kind in self.kinds):
            raise ValueError(f"kinds are some of {self.layout.kinds}, in this order; got {self.kinds}")
        largest = max(self.chunk_shape(kind)[1] for kind in self.kinds)
        if self.chunk_rows * largest * self.dim * 4 > MAX_CHUNK_BYTES:
            raise ValueError(
                f"a chunk is at most {MAX_CHUNK_BYTES} bytes; chunk_rows {self.chunk_rows} of {largest} "
                f"tokens of width {self.dim} are more; lower chunk_rows"
            )
        self._check_precision()
        self._check_shards()
        self._check_details()
        return self

    def _check_precision(self) -> None:
        if (self.dtype, self.compression) not in PRECISIONS:
            raise ValueError(
                "bfloat16 takes 4 bytes a value without compression; choose float16, or compression blosc"
            )
        if (self.dtype == "int8") != (self.quantisation is not None):
            raise ValueError(f"int8 alone has a quantisation; dtype is {self.dtype}")
        if self.quantisation is None:
            return
        vectors = [vector for layer in self.quantisation for vector in (layer.scale, layer.offset)]
        if len(self.quantisation) != len(self.layers) or any(len(vector) != self.dim for vector in vectors):
            raise ValueError(f"a quantisation is {self.dim} scales and offsets for each layer that is kept")
        scale, offset = (
            np.array([getattr(layer, name) for layer in self.quantisation]) for name in ("scale", "offset")
        )
        if not (scale > 0).all():
            raise ValueError("scales of a quantisation are above 0")
        _refuse_longer(scale, 16, "scales")
        _refuse_longer(offset, 24, "offsets")

    def _check_shards(self) -> None:
        if self.shards is None:
            return
        bounds = [bound for first_stop in self.shards for bound in first_stop]
        ascending = bounds == sorted(set(bounds))
        if not bounds or not ascending or bounds[0] < 0 or bounds[-1] > self.num_shards:
            raise ValueError(
                f"shards are ranges that ascend within 0 to {self.num_shards} and do not touch; "
                f"got {self.shards[:4]}"
            )
        if self.shards == ((0, self.num_shards),):
            raise ValueError("shards is null for a store that holds all of them")

    def _check_details(self) -> None:
        wrong = [
            name
            for name, value in self.details
            if not _DETAIL_NAME.fullmatch(name) or len(str(value)) > _LONGEST_DETAIL
        ]
        if len(self.details) > _MOST_DETAILS or wrong:
            raise ValueError(
                f"details are up to {_MOST_DETAILS} values of up to {_LONGEST_DETAIL} characters by names "
                f"such as `max_pixels`; got {wrong[0][:80] if wrong else len(self.details)!r}"
            )

    @property
    def dim(self) -> int:
        """Width of a token."""
        return self.teacher.dim

    @property
    def num_shards(self) -> int:
        """Shards of every array, held here or not; the last may be shorter."""
        return -(-self.num_rows // self.shard_rows)

    @cached_property
    def held_shards(self) -> Sequence[int]:
        """Shards that are part of this store, ascending: all, unless it is a partial copy."""
        if self.shards is None:
            return range(self.num_shards)
        return HeldShards(self.shards)

    def holds(self, shard: int) -> bool:
        """Whether a shard is part of this store."""
        if self.shards is None:
            return 0 <= shard < self.num_shards
        return any(first <= shard < stop for first, stop in self.shards)

    @property
    def absent_rows(self) -> list[range]:
        """Rows of shards that are not part of this store, in ascending runs; none unless it is partial."""
        if self.shards is None:
            return []
        bounds = [0, *(bound * self.shard_rows for held in self.shards for bound in held), self.num_rows]
        gaps = zip(bounds[::2], bounds[1::2], strict=True)
        return [range(first, stop) for first, stop in gaps if first < stop]

    def stored_dtype(self, kind: TokenKind) -> StoredDtype:
        """Precision of one kind's arrays: `int8` is for patches, the few other tokens stay bfloat16."""
        return "bfloat16" if self.dtype == "int8" and kind != "patches" else self.dtype

    def quantisation_of(self, layer: int, kind: TokenKind) -> Quantisation | None:
        """What one array's codes mean; None where it holds none."""
        if self.quantisation is None or self.stored_dtype(kind) != "int8":
            return None
        return self.quantisation[self.layers.index(layer)]

    def with_parts(
        self,
        layers: Sequence[int],
        kinds: Iterable[TokenKind],
        shards: tuple[tuple[int, int], ...],
        steps: Mapping[int, Quantisation] | None = None,
    ) -> Manifest:
        """The manifest of other layers, kinds and shards of the same plan.

        Scales of int8 stay with their layers, also where patches are left out: so the parts of a store can be
        merged whatever they hold.

        Args:
            layers: ascending.
            kinds: in the layout's order.
            shards: `(first, stop)` ranges; all shards may be among them.
            steps: int8's by layer; None is this manifest's own.
        """
        if steps is None:
            steps = dict(zip(self.layers, self.quantisation or (), strict=False))
        parts = {
            "layers": tuple(layers),
            "kinds": tuple(kinds),
            "quantisation": [steps[layer].model_dump() for layer in layers] if steps else None,
            "shards": None if shards == ((0, self.num_shards),) else shards,
        }
        return Manifest.model_validate(self.model_dump() | parts)

    def shard_range(self, shard: int) -> range:
        """Rows of one shard."""
        return range(shard * self.shard_rows, min((shard + 1) * self.shard_rows, self.num_rows))

    def array_shape(self, kind: TokenKind) -> tuple[int, int, int]:
        """Shape of one layer's array of one kind: rows, tokens, width."""
        return (self.num_rows, self.layout.count(kind), self.dim)

    def chunk_shape(self, kind: TokenKind) -> tuple[int, int, int]:
        """Shape of an inner chunk of one kind's arrays."""
        return (self.chunk_rows, self.layout.count(kind), self.dim)

    @property
    def chunks_per_shard(self) -> int:
        """Inner chunks of one array's shard file."""
        return self.shard_rows // self.chunk_rows

    @property
    def max_table_bytes(self) -> int:
        """Largest index.parquet or samples.parquet that is believed; many times what writers make."""
        arrays = len(self.layers) * len(self.kinds)
        size = (64 << 20) + (self.num_rows << 12) + arrays * ((len(self.held_shards) << 10) + (self.dim << 6))
        return min(MAX_TABLE_BYTES, size)

    @property
    def tokens_per_layer(self) -> int:
        """Tokens of one layer that are kept."""
        return sum(self.layout.count(kind) for kind in self.kinds)

    def sha256(self) -> str:
        """Hash of the canonical JSON."""
        return hashlib.sha256(canonical_json(self.model_dump(mode="json"))).hexdigest()
