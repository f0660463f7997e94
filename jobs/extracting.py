"""`extract`: flags in; the summary on standard output, progress on standard error."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Literal

from activault.store import ConfigError

from . import console

__all__ = ["extract"]


def extract(
    images: Path,
    store: Path,
    /,
    *,
    teacher: str,
    weights: Path | None = None,
    image_size: str = "224",
    resize: int | None = None,
    layers: str = "all",
    tokens: str = "cls,registers,patches",
    dtype: Literal["bfloat16", "float16", "float32", "int8"] = "bfloat16",
    compression: Literal["blosc", "none"] = "blosc",
    batch_size: int = 64,
    workers: int | None = None,
    device: str = "auto",
    shard_rows: int | None = None,
    seed: int = 0,
    limit: int | None = None,
    license: str | None = None,
    citation: str | None = None,
    repair: Path | None = None,
    json: bool = False,
) -> int:
    """Run the teacher once over an image folder and write its layers to a store.

    Run it again and it goes on where it stopped.

    ```
    activault extract photos/ photos.zarr --teacher demo --image-size 98
    activault extract imagenet/train in1k.zarr --teacher vit_base_patch14_reg4_dinov2.lvd142m
    activault extract photos/ cls.zarr --teacher demo --layers 6-12 --tokens cls
    ```

    Parameters
    ----------
    images
        Folder of images; class sub-folders give labels, a first folder train or test gives the split.
    store
        The store to write, or to go on with.
    teacher
        `demo`, or timm's name of a Vision Transformer.
    weights
        A safetensors or Meta .pth file; without it timm's own weights are fetched from the hub.
    image_size
        Pixels of the teacher's input: one number, or height x width such as 224x336.
    resize
        Shorter side after resizing, before the centre crop; by default 256/224 of the image size.
    layers
        Layers to keep: numbers and ranges such as 0-12 or 0,6,12, or all.
    tokens
        Token kinds to keep: cls, registers, patches.
    dtype
        Precision of the stored values. int8 keeps patches within an R2 of 0.999 in every layer, in a sixth
        of the bytes of float32.
    compression
        none reads fastest and takes most room; not for bfloat16.
    batch_size
        Images in one forward pass.
    workers
        Threads that decode images; by default the number of cores.
    device
        auto, cpu, cuda, cuda:1, mps.
    shard_rows
        Rows a shard, the unit of resumption; by default as many as fit the byte targets.
    seed
        Seed of the order of the rows.
    limit
        Keep only this many images, drawn by the seed.
    license
        Licence of the activations, for those they are shared with.
    citation
        What to cite for them.
    repair
        A plan of `activault verify STORE --deep --repair-plan FILE`: do what it says and no more.
    json
        Print the summary as JSON.
    """
    from activault.extract import ExtractOptions

    from . import show, tasks

    options = ExtractOptions(
        teacher=teacher,
        weights=weights,
        image_size=_image_size(image_size),
        resize=resize,
        layers=layers,
        tokens=tokens,
        dtype=dtype,
        compression=compression,
        license=license,
        citation=citation,
        batch_size=batch_size,
        workers=workers,
        device=device,
        shard_rows=shard_rows,
        seed=seed,
        limit=limit,
    )
    summary = tasks.extract_images(images, store, options, repair=repair, quiet=json)
    if json:
        console.print_json(dataclasses.asdict(summary))
    else:
        show.show_extraction(store, summary)
    return 0


def _image_size(text: str) -> int | tuple[int, int]:
    """`224` or `224x336`, height first."""
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text.strip())
    if match is None:
        raise ConfigError(f"an image size is one number, or height x width such as 224x336; got {text!r}")
    return (int(match[1]), int(match[2])) if match[2] else int(match[1])
