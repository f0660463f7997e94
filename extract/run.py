"""Extraction as a whole: plan, capture what is unfinished, complete.

In: a folder of images, the path of a store, `ExtractOptions`. Out: the finished store and `ExtractSummary`.

    extract(Path("photos"), Path("photos.zarr"), ExtractOptions(teacher="demo", image_size=98))

The rows are the images in an order shuffled by the seed, so that reading a store from its start is already
mixed. Called again with the same request, it goes on where it stopped, and computes again the shards of which
a file is missing or of another size; a finished store that is whole is left as it is.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from activault.store import (
    ConfigError,
    ImageSourceError,
    Manifest,
    Outcome,
    Store,
    StoredDtype,
    StoreMismatchError,
    choose_grid,
    create_store,
    open_store,
    parse_kinds,
    parse_layers,
    plan_samples,
)
from activault.store.cores import num_cores
from activault.store.creation import is_free
from activault.store.grid import SHARD_BUFFER_BYTES

from .backbone import Backbone, load_backbone, save_teacher
from .capture import Decoded, Progress, StallTimes, capture, without_pixels
from .decode import BadImage
from .images import ImageFolder
from .machine import choose_device, memory_bytes
from .preprocess import default_resize, to_pixels
from .weights import DEMO_SHA256, DEMO_SOURCE, hub_source

__all__ = ["ExtractOptions", "ExtractSummary", "extract"]

Rows = npt.NDArray[np.int64]


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
    """Precision of the stored values."""
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

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the teacher's input."""
        size = self.image_size
        return (size, size) if isinstance(size, int) else size


@dataclass(frozen=True, kw_only=True)
class ExtractSummary:
    """What is in the store now, and what this run did for it."""

    num_rows: int
    num_new: int
    """Rows computed by this run."""
    bad: dict[str, int]
    """Bad rows of the whole store by reason code."""
    num_bytes: int
    """Bytes of the stored arrays."""
    float32_bytes: int
    """Bytes of the same arrays as plain float32."""
    seconds: float
    """Of this run, from planning to completion."""
    stalls: dict[str, float]
    """Share of the capture's time spent waiting for `decode`, in `compute`, and waiting for `write`."""
    digest: str


def extract(
    images: Path, store: Path, options: ExtractOptions, progress: Progress | None = None
) -> ExtractSummary:
    """Plan the store or go on with it, compute the shards that are not finished, and complete it.

    Args:
        images: a folder of images.
        store: where the store is or will be.
        options: the request; a store that was planned from another one is not touched.
        progress: called in this thread with rows done and rows in all.

    Raises:
        ConfigError: an option cannot be used.
        ImageSourceError: there are no images, or none of them could be decoded.
        WeightsError: the teacher's weights are absent or do not fit.
        NotAStoreError, StoreMismatchError: `store` is something else, or another request's.
        StoreError: the disk is full or gone, or the teacher gave NaN; finished shards are kept.
    """
    start = time.perf_counter()
    device = choose_device(options.device)
    source = ImageFolder(images)
    there = _existing(store)
    if there is not None and there.is_whole and options.weights is None:
        _refuse_other_request(there, source, options)
        return _summary(there, 0, StallTimes(), start)
    backbone = load_backbone(
        options.teacher, weights=options.weights, image_size=options.image_size, resize=options.resize
    )
    order = _row_order(len(source), options)
    manifest = _manifest(source, len(order), backbone, options, there)
    keys, labels = ([column[i] for i in order] for column in (source.keys, source.labels))
    samples = plan_samples(keys, labels, source.info.name)
    with create_store(store, manifest, samples, lambda folder: save_teacher(backbone, folder)) as writer:
        num_new = sum(len(manifest.shard_range(shard)) for shard in writer.unfinished)
        stalls = capture(
            writer,
            backbone.to(device),
            _decoder(source, order, backbone),
            batch_size=options.batch_size,
            workers=options.workers or num_cores(),
            progress=progress,
        )
        _refuse_all_bad(open_store(store))
        writer.complete()
    return _summary(open_store(store), num_new, stalls, start)


def _existing(path: Path) -> Store | None:
    """The store that is there already; a path that is something else is refused before anything is loaded."""
    return None if is_free(path) else open_store(path)


def _refuse_other_request(there: Store, source: ImageFolder, options: ExtractOptions) -> None:
    """Compare a finished store with the request, without the teacher.

    Versions of timm and torch are left out: they say how it was made, and it is made.
    """
    has = there.manifest
    resize = options.resize or default_resize(options.input_size)
    demo = options.teacher == "demo"
    wanted = {
        "teacher": (has.teacher.name, options.teacher),
        "weights": (has.teacher.weights, DEMO_SOURCE if demo else hub_source(options.teacher)),
        "weights_sha256": (has.teacher.weights_sha256, DEMO_SHA256 if demo else has.teacher.weights_sha256),
        "image_size": (has.preprocessing and has.preprocessing.image_size, options.input_size),
        "resize": (has.preprocessing and has.preprocessing.resize, resize),
        "layers": (has.layers, parse_layers(options.layers, range(has.teacher.num_blocks + 1))),
        "tokens": (has.kinds, parse_kinds(options.tokens, has.layout)),
        "dtype": (has.dtype, options.dtype),
        "shard_rows": (has.shard_rows, options.shard_rows or has.shard_rows),
        "seed": (has.row_seed, options.seed),
        "rows": (has.num_rows, min(len(source), options.limit or len(source))),
        "source": (has.source, source.info),
    }
    for field, (old, new) in wanted.items():
        if old != new:
            raise StoreMismatchError(
                f"{there.path} was planned differently: {field} is {old!r} there and {new!r} here; "
                "choose another path, or ask for what is there"
            )


def _row_order(num_images: int, options: ExtractOptions) -> Rows:
    """Places in the source by row."""
    return np.random.default_rng(options.seed).permutation(num_images)[: options.limit]


def _manifest(
    source: ImageFolder, num_rows: int, backbone: Backbone, options: ExtractOptions, there: Store | None
) -> Manifest:
    layers = parse_layers(options.layers, range(backbone.num_blocks + 1))
    kinds = parse_kinds(options.tokens, backbone.layout)
    if there is not None and options.shard_rows in (None, there.manifest.shard_rows):
        # A store that was begun elsewhere keeps its grid, whatever this machine's memory would suggest.
        grid = there.manifest.shard_rows, there.manifest.chunk_rows
    else:
        grid = choose_grid(
            num_rows=num_rows,
            layout=backbone.layout,
            kinds=kinds,
            num_layers=len(layers),
            dim=backbone.dim,
            dtype=options.dtype,
            shard_rows=options.shard_rows,
            # Two buffers are alive at once, beside what the writer and the teacher need.
            buffer_bytes=min(SHARD_BUFFER_BYTES, memory_bytes() // 8),
        )
    return Manifest(
        num_rows=num_rows,
        layers=layers,
        kinds=kinds,
        layout=backbone.layout,
        dtype=options.dtype,
        shard_rows=grid[0],
        chunk_rows=grid[1],
        teacher=backbone.info,
        preprocessing=backbone.preprocessing,
        source=source.info,
        row_seed=options.seed,
    )


def _decoder(source: ImageFolder, order: Rows, backbone: Backbone) -> Callable[[int], Decoded]:
    """A row's pixels, by its number."""

    def decode(row: int) -> Decoded:
        image = source.read(int(order[row]))
        if isinstance(image, BadImage):
            return without_pixels(image)
        pixels = to_pixels(image.image, backbone.preprocessing, source.max_pixels)
        if pixels is None:
            reason = f"scaled to the teacher's input it is more pixels than the cap of {source.max_pixels}"
            return without_pixels(
                BadImage(status="too-large", reason=reason, width=image.width, height=image.height)
            )
        return Decoded(outcome=Outcome(status="ok", width=image.width, height=image.height), pixels=pixels)

    return decode


def _bad_rows(store: Store) -> dict[str, int]:
    if not store.num_bad:
        return {}
    counts = Counter(str(status) for status in store.samples["status"].to_pylist())
    return {status: counts[status] for status in sorted(counts) if status not in ("ok", "pending")}


def _refuse_all_bad(store: Store) -> None:
    if store.num_bad < store.num_rows:
        return
    reasons = ", ".join(f"{count} {status}" for status, count in _bad_rows(store).items())
    raise ImageSourceError(f"none of the {store.num_rows} images could be decoded ({reasons})")


def _summary(store: Store, num_new: int, stalls: StallTimes, start: float) -> ExtractSummary:
    return ExtractSummary(
        num_rows=store.num_rows,
        num_new=num_new,
        bad=_bad_rows(store),
        num_bytes=store.num_bytes,
        float32_bytes=store.float32_bytes,
        seconds=time.perf_counter() - start,
        stalls=stalls.shares(),
        digest=store.digest,
    )
