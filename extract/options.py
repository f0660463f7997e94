"""What an extraction is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from activault.store import ConfigError, StoredDtype
from activault.store.cores import num_cores
from activault.store.leases import LEASE, MOST_LEASE
from activault.store.manifest import Compression

from .arithmetic import Arithmetic, Autocast
from .budget import parse_budget
from .decode import MAX_PIXELS, Orientation
from .order import parse_condition
from .preprocess import CropMode, Interpolation, PreprocessingRequest, RuleSet

__all__ = ["OF_RUN", "ExtractOptions", "SourceOptions"]

OF_RUN: Final = ("max_bad", "batch_size", "workers", "device", "rank", "world", "local_world", "lease")
"""Options that say how a store is computed, and may be others at each run."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """How a source is read; which rows there are, their keys and labels follow from it."""

    kind: Literal["auto", "folder", "tar", "parquet", "table"] = "auto"
    """What the images are; `auto` looks at the path."""
    keys: Literal["name", "place"] = "name"
    """Keys of tars and Parquet: the images' own names, or the file's name and the row's number in it."""
    image_column: str | None = None
    """Column of a Parquet file, or extension in a tar, that is the image; None where there is but one."""
    path_column: str | None = None
    """Column of a table that is the image's path; None is the first of path, file_name, filename, file."""
    key_column: str | None = None
    """Column of a table or of Parquet that is the key; None is the image's path."""
    label_column: str | None = None
    """Column of a table or of Parquet, extension or JSON field in a tar; None looks for one."""
    image_root: str | None = None
    """Path or URL that a table's paths are relative to, and below; None is the table's own folder."""
    index: Literal["cache", "beside", "none"] = "cache"
    """Where the index of a tar is kept: the user's cache folder, beside a local tar, nowhere."""


@dataclass(frozen=True, kw_only=True)
class ExtractOptions:
    """What to extract and how.

    All of it is part of the store's identity, and must be said again to go on with a store, but for `OF_RUN`
    and where the teacher's weights are read from (`weights`), which their hash stands for. `shard_rows`,
    `license` and `citation` are the store's if they are not said. `teacher_weights` counts at its planning.
    """

    teacher: str
    """timm's name of a ViT (a `.tag` picks its weights), or `demo`."""
    weights: Path | None = None
    """A weights file, or a folder of transformers; without it timm's hub is asked."""
    teacher_weights: bool = True
    """Whether the teacher's weights travel with the store; without them their hash alone does."""
    image_size: int | tuple[int, int] = 224
    """Side of the teacher's input in pixels, or its height and width."""
    preprocessing: RuleSet = "reference"
    """Whose rules prepare an image: the reference's (bicubic, 256 for 224), or the `teacher`'s own."""
    resize: int | None = None
    """Shorter side before the crop; None follows from the rules. The image size: no margin."""
    interpolation: Interpolation | None = None
    """How an image is scaled; None follows from the rules."""
    crop_mode: CropMode | None = None
    """`center`, `squash` or `border`; None follows from the rules."""
    mean: tuple[float, float, float] | None = None
    """Mean of red, green and blue, from 0 to 1; None is what timm records for the teacher's name."""
    std: tuple[float, float, float] | None = None
    """Their standard deviation; None as for the mean."""
    layers: str = "all"
    """Layers to keep, such as `0-12` or `0,6,12`; 0 is the embedded input."""
    tokens: str = "all"
    """Token kinds to keep, such as `cls,patches`."""
    patches: str = "all"
    """Patches to keep: `all`, `mean`, `every:N` or `random:N`, drawn by the seed."""
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
    source: SourceOptions = field(default_factory=SourceOptions)
    """How the images' source is read."""
    where: tuple[str, ...] = ()
    """Rows to keep, all conditions at once: `label=cat`, `label!=cat`, `key~*/n01*`."""
    split: str | None = None
    """Keep the rows of one split: `train`, `validation`, `test`, or a word of the source's own."""
    order: Literal["shuffled", "kept"] = "shuffled"
    """Order of the rows: drawn by the seed, or the source's own."""
    seed: int = 0
    """Seed of the order of the rows, and of `random:N` patches."""
    limit: int | None = None
    """Keep the first so many rows of that order."""
    orientation: Orientation = "stored"
    """`exif` turns images as their EXIF block asks."""
    max_pixels: int = MAX_PIXELS
    """Pixels above which an image is a bad row instead of being decoded."""
    max_bad: str = "5%"
    """Bad rows above which the run stops: a number, or a share of all rows (at least 10 of them)."""
    autocast: Autocast = "off"
    """What the teacher's blocks compute in: exact float32, or a 16-bit type where torch deems it safe."""
    compile: bool = False
    """Whether the blocks go through `torch.compile`."""
    batch_invariant: bool = False
    """Whether no value may depend on the batch size, the rows a shard, and the other images of a batch."""
    batch_size: int | Literal["auto"] = 64
    """Images a forward pass, on a CPU the most of them; `auto` finds how many are fastest."""
    workers: int | None = None
    """Decoding threads; None is one a core."""
    device: str = "auto"
    """`auto` (the first there is of cuda, mps, cpu), or a torch device."""
    rank: int = 0
    """This worker's place among `world`: which shards it asks for first, and no more (see `workers`)."""
    world: int = 1
    """Workers on this store."""
    local_world: int = 1
    """Those of them that share this machine's memory."""
    lease: float = LEASE
    """Seconds without a sign of life after which a worker's shards are taken over by others."""

    def __post_init__(self) -> None:
        counts = {"workers": self.workers, "shard_rows": self.shard_rows, "local_world": self.local_world}
        if self.batch_size != "auto":
            counts["batch_size"] = self.batch_size
        for name, count in (counts | {"limit": self.limit, "max_pixels": self.max_pixels}).items():
            if count is not None and count < 1:
                raise ConfigError(f"{name} is at least 1; got {count}")
        _ = self.request
        if self.seed < 0:
            raise ConfigError(f"seed is at least 0; got {self.seed}")
        if not 0 <= self.rank < self.world:
            raise ConfigError(f"a rank is among 0 to world - 1; got rank {self.rank} of world {self.world}")
        if not 1 <= self.lease <= MOST_LEASE:
            raise ConfigError(f"a lease is from 1 to {MOST_LEASE:,} seconds; got {self.lease:g}")
        if self.dtype == "bfloat16" and self.compression == "none":
            raise ConfigError(
                "bfloat16 takes 4 bytes a value without compression; choose float16, or compression blosc"
            )
        parse_budget(self.max_bad, 1)
        for condition in self.where:
            parse_condition(condition)

    @property
    def num_workers(self) -> int:
        """Decoding threads."""
        return self.workers or num_cores()

    @property
    def arithmetic(self) -> Arithmetic:
        """What the teacher computes in."""
        return Arithmetic(autocast=self.autocast, compile=self.compile, batch_invariant=self.batch_invariant)

    @property
    def request(self) -> PreprocessingRequest:
        """What is asked for of the images' preparation."""
        return PreprocessingRequest(
            rules=self.preprocessing,
            resize=self.resize,
            interpolation=self.interpolation,
            crop_mode=self.crop_mode,
            mean=self.mean,
            std=self.std,
            orientation=self.orientation,
        )

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the teacher's input."""
        size = self.image_size
        return (size, size) if isinstance(size, int) else size
