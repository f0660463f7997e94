"""What an extraction is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from activault.store import ConfigError, StoredDtype
from activault.store.manifest import Compression

__all__ = ["ExtractOptions"]


@dataclass(frozen=True, kw_only=True)
class ExtractOptions:
    """What to extract and how; everything but the last three is part of the store's identity."""

    teacher: str
    """timm's name of a ViT (a `.tag` picks its weights), or `demo`."""
    weights: Path | None = None
    """A `.safetensors` or `.pth` file; without it timm's hub is asked."""
    image_size: int | tuple[int, int] = 224
    """Side of the teacher's input in pixels, or its height and width."""
    resize: int | None = None
    """Shorter side before the centre crop; None is the reference's 256 for 224. The image size: no margin."""
    layers: str = "all"
    """Layers to keep, such as `0-12` or `0,6,12`; 0 is the embedded input."""
    tokens: str = "all"
    """Token kinds to keep, such as `cls,patches`."""
    dtype: StoredDtype = "bfloat16"
    """Precision of the stored values; int8 is for patches, within an R2 of 0.999 in every layer."""
    compression: Compression = "blosc"
    """`none` reads fastest and takes most; not for bfloat16."""
    license: str | None = None
    """Licence of the activations as a data set; None keeps what the store there says."""
    citation: str | None = None
    """What to cite for them; None keeps what the store there says."""
    shard_rows: int | None = None
    """Rows a shard, the unit of resumption; None chooses by size, or keeps what the store there has."""
    seed: int = 0
    """Seed of the order of the rows."""
    limit: int | None = None
    """Keep the first so many rows of that order."""
    batch_size: int = 64
    """Images a forward pass."""
    workers: int | None = None
    """Decoding threads; None is one a core."""
    device: str = "auto"
    """`auto` (the first there is of cuda, mps, cpu), or a torch device."""

    def __post_init__(self) -> None:
        counts = {"batch_size": self.batch_size, "workers": self.workers, "shard_rows": self.shard_rows}
        for name, count in (counts | {"limit": self.limit}).items():
            if count is not None and count < 1:
                raise ConfigError(f"{name} is at least 1; got {count}")
        if self.seed < 0:
            raise ConfigError(f"seed is at least 0; got {self.seed}")
        if self.dtype == "bfloat16" and self.compression == "none":
            raise ConfigError(
                "bfloat16 takes 4 bytes a value without compression; choose float16, or compression blosc"
            )

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the teacher's input."""
        size = self.image_size
        return (size, size) if isinstance(size, int) else size
