"""The manifest: all that is needed to reproduce a store and to read it, as `attributes.activault`.

Nothing in it can be derived from something else in it; counts and shapes are properties.
"""

from __future__ import annotations

import hashlib
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .files import canonical_json
from .layout import TokenKind, TokenLayout

__all__ = ["FORMAT_VERSION", "Manifest", "Preprocessing", "SourceInfo", "StoredDtype", "TeacherInfo"]

FORMAT_VERSION: Final = 1
MOST_SHARD_ROWS: Final = 1 << 16
"""The format's bound on rows a shard."""
MAX_CHUNK_BYTES: Final = 1 << 30
MAX_TABLE_BYTES: Final = 4 << 30
StoredDtype = Literal["bfloat16", "float32"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TeacherInfo(_Record):
    """The frozen model whose activations these are."""

    name: str
    """timm's name of the architecture, or `demo`."""
    architecture: str
    """timm's name of the architecture that was built."""
    weights: str
    """Where the weights came from, in words, without paths."""
    weights_sha256: str
    """Hash of the weights' tensors in name order, so that the same weights in another container agree."""
    license: str
    """Licence of the weights, or `unknown`."""
    num_blocks: int = Field(ge=1, le=4096)
    """Blocks of the teacher; layers are 0 to this number."""
    dim: int = Field(ge=1, le=1 << 20)
    """Width of a token."""
    num_heads: int = Field(ge=1)
    """Attention heads of a block."""
    timm_version: str
    torch_version: str


class Preprocessing(_Record):
    """How an image became the teacher's input."""

    image_size: tuple[int, int]
    """Height and width of the input in pixels."""
    resize: int
    """The shorter side after resizing, before the centre crop."""
    interpolation: Literal["bicubic", "bilinear"]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class SourceInfo(_Record):
    """Where the images came from."""

    kind: Literal["folder", "arrays"]
    name: str
    """Last part of the source's path: a name, never a path."""
    fingerprint: str
    """Hash over the keys and sizes of all its images."""


class Manifest(_Record):
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
    """Precision of the values; `bfloat16` is kept as float32 rounded to it."""
    shard_rows: int = Field(ge=1, le=MOST_SHARD_ROWS)
    """Rows a shard."""
    chunk_rows: int = Field(ge=1, le=MOST_SHARD_ROWS)
    """Rows an inner chunk; divides `shard_rows`."""
    teacher: TeacherInfo
    preprocessing: Preprocessing
    source: SourceInfo
    row_seed: int
    """Seed of the order of the rows."""

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
        return self

    @property
    def dim(self) -> int:
        """Width of a token."""
        return self.teacher.dim

    @property
    def num_shards(self) -> int:
        """Shards of every array; the last may be shorter."""
        return -(-self.num_rows // self.shard_rows)

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
        size = (64 << 20) + (self.num_rows << 12) + arrays * ((self.num_shards << 10) + (self.dim << 6))
        return min(MAX_TABLE_BYTES, size)

    @property
    def tokens_per_layer(self) -> int:
        """Tokens of one layer that are kept."""
        return sum(self.layout.count(kind) for kind in self.kinds)

    def sha256(self) -> str:
        """Hash of the canonical JSON."""
        return hashlib.sha256(canonical_json(self.model_dump(mode="json"))).hexdigest()
