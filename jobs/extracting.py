"""`extract`: flags in; the summary on standard output, progress on standard error."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

from activault.store import ConfigError

from . import console

__all__ = ["extract"]


def extract(
    images: str,
    store: str,
    /,
    *,
    teacher: str | None = None,
    weights: Path | None = None,
    no_teacher_weights: bool = False,
    image_size: str = "224",
    preprocessing: Literal["reference", "teacher"] = "reference",
    resize: int | None = None,
    interpolation: Literal["bicubic", "bilinear", "lanczos", "hamming", "box", "nearest"] | None = None,
    crop_mode: Literal["center", "squash", "border"] | None = None,
    mean: tuple[float, float, float] | None = None,
    std: tuple[float, float, float] | None = None,
    layers: str = "all",
    tokens: str = "cls,registers,patches",
    patches: str = "all",
    dtype: Literal["bfloat16", "float16", "float32", "int8"] = "bfloat16",
    compression: Literal["blosc", "none"] = "blosc",
    autocast: Literal["off", "bfloat16", "float16"] = "off",
    compile: bool = False,
    batch_invariant: bool = False,
    batch_size: int | Literal["auto"] = 64,
    workers: int | None = None,
    device: str = "auto",
    rank: int | None = None,
    world: int | None = None,
    lease: float = 120.0,
    shard_rows: int | None = None,
    source: Literal["auto", "folder", "tar", "parquet", "table"] = "auto",
    image_root: str | None = None,
    image_column: str | None = None,
    path_column: str | None = None,
    key_column: str | None = None,
    label_column: str | None = None,
    keys: Literal["name", "place"] = "name",
    tar_index: Literal["cache", "beside", "none"] = "cache",
    where: list[str] | None = None,
    split: str | None = None,
    order: Literal["shuffled", "kept"] = "shuffled",
    seed: int = 0,
    limit: int | None = None,
    orientation: Literal["stored", "exif"] = "stored",
    max_pixels: int = 1 << 26,
    max_bad: str = "5%",
    license: str | None = None,
    citation: str | None = None,
    append: bool = False,
    extend: bool = False,
    repair: Path | None = None,
    dry_run: bool = False,
    json: bool = False,
) -> int:
    """Run the teacher once over a collection of images and write its layers to a store.

    Run it again and it goes on where it stopped.

    ```
    activault extract photos/ photos.zarr --teacher demo --image-size 98
    activault extract imagenet/train in1k.zarr --teacher vit_base_patch14_reg4_dinov2.lvd142m
    activault extract photos/ cls.zarr --teacher demo --layers 6-12 --tokens cls
    activault extract photos/ means.zarr --teacher vit_base_patch16_dinov3.lvd1689m --patches mean
    activault extract photos/ own.zarr --teacher vit_base_patch16_clip_quickgelu_224 --weights clip-folder/
    activault extract 's3://bucket/in1k-train-{0000..1023}.tar' in1k.zarr --teacher demo --max-bad 100
    torchrun --nproc-per-node 4 --no-python activault extract photos/ photos.zarr --teacher demo
    activault extract imagenet-1k/data/ in1k.zarr --teacher demo --split train --order kept
    activault extract photos/ s3://bucket/photos.zarr --teacher demo
    activault extract list.csv cats.zarr --teacher demo --image-root photos/ --where 'label=cat'
    activault extract photos/ photos.zarr --append
    activault extract photos/ cls.zarr --extend --layers 0-5
    activault extract imagenet/train in1k.zarr --teacher vit_base_patch14_reg4_dinov2.lvd142m --dry-run
    ```

    Parameters
    ----------
    images
        Folder of images (class sub-folders give labels, a first folder train or test gives the split);
        WebDataset tars or Parquet files with images: one, a brace range such as {0000..1023}, a glob, a
        folder of them, or several joined by `::`; a CSV, TSV or Parquet table of paths. Paths, or http(s)://
        or s3:// URLs.
    store
        The store to write, or to go on with: a path, or s3://bucket/NAME.zarr.
    teacher
        `demo`, or timm's name of a Vision Transformer; a store that grows has its own.
    weights
        A .safetensors, .pth or .bin file in the naming of timm, Meta, OpenCLIP or transformers, or a folder
        of transformers; without it timm's own weights are fetched from the hub.
    no_teacher_weights
        Leave the weights out of the store: it keeps their hash, and whoever needs the teacher later has to
        give them.
    image_size
        Pixels of the teacher's input: one number, or height x width such as 224x336.
    preprocessing
        Whose rules prepare an image: the reference's (bicubic, 256 for 224, cut from the centre), or the
        teacher's own as timm records them. Mean and standard deviation are the teacher's by both.
    resize
        Shorter side after resizing, before the crop; by default it follows from the rules.
    interpolation
        How images are scaled; by default it follows from the rules.
    crop_mode
        center cuts from the centre, squash scales both sides and cuts nothing, border fits the whole image in
        and fills the rest; by default it follows from the rules.
    mean
        Mean of red, green and blue, three numbers from 0 to 1; by default what timm records for the name of
        the teacher. Say it, and std, where --weights were trained with others.
    std
        Their standard deviation, likewise.
    layers
        Layers to keep: numbers and ranges such as 0-12 or 0,6,12, or all.
    tokens
        Token kinds to keep: cls, registers, patches.
    patches
        Patches to keep: all, mean (one token), every:N places of the grid row by row, or random:N places
        drawn by the seed. Raptor trains on all of them only.
    dtype
        Precision of the stored values. int8 keeps patches within an R2 of 0.999 in every layer, in a sixth
        of the bytes of float32.
    compression
        none reads fastest and takes most room; not for bfloat16.
    autocast
        What the teacher's blocks compute in: exact float32, or in half of it where torch deems that safe.
        The store records it.
    compile
        Compile the teacher's blocks with torch.compile, which takes a while first. The store records it.
    batch_invariant
        Forwards of one fixed size, a row always at the same place: no value depends on the batch size, the
        rows a shard or the bad images beside it. Without it the last bits may, on a GPU. It is recorded.
    batch_size
        Images in one forward pass; on a CPU, where each core runs its own, the most of them. auto measures
        for some seconds which size is fastest and fits the memory. No effect beside --batch-invariant.
    workers
        Threads that decode images; by default the number of cores.
    device
        auto, cpu, cuda, cuda:1, mps. Of several GPUs auto takes the one of this worker's rank on the machine.
    rank
        This worker's place among `world`, from 0: where it begins, and no more. Without it torchrun's or
        Slurm's variables say it; any number of workers may also run without.
    world
        How many workers there are.
    lease
        Seconds without a sign of life after which a worker's shards are taken over by others.
    shard_rows
        Rows a shard, the unit of resumption; by default as many as fit the byte targets.
    source
        What the images are, where the path does not tell.
    image_root
        Folder or URL that a table's paths are relative to; by default the table's own.
    image_column
        Column of images in Parquet, or extension of the image in a tar, where there are several.
    path_column
        Column of paths in a table; by default path, file_name, filename or file.
    key_column
        Column of keys in a table or in Parquet; by default the images' paths.
    label_column
        Column of labels; in a tar cls, txt or a field of the JSON.
    keys
        place names the rows of tars and Parquet by file and number, where names of images repeat.
    tar_index
        Where the index of a tar is kept: in the user's cache folder, beside the tar, or nowhere.
    where
        Keep the rows where a column (key, label, split, or the table's own) is so: 'label=cat', 'label!=cat',
        'key~n01*/*'. Given several times, all must hold.
    split
        Keep one split: train, validation, test.
    order
        shuffled by the seed, or kept as the source has it.
    seed
        Seed of the order of the rows, and of random patches.
    limit
        Keep only this many images, the first of the order.
    orientation
        exif turns images as their EXIF block asks; stored takes pixels as they stand.
    max_pixels
        Images of more pixels are bad rows.
    max_bad
        Bad rows, a number or a share such as 1%, above which the run stops; a share always allows 10.
    license
        Licence of the activations, for those they are shared with.
    citation
        What to cite for them.
    append
        Add the images that a finished store does not have as further rows. Teacher, preprocessing, layers and
        all the rest are the store's and need not be said again.
    extend
        Add --layers or --tokens that a finished store does not have, of the rows that it has; the images must
        be the same.
    repair
        A plan of `activault verify STORE --deep --repair-plan FILE`: do what it says and no more.
    dry_run
        Write nothing: plan, run the teacher for a few seconds, and tell rows, files, bytes, time, memory, and
        whether the disk has the room (exit status 1 if not).
    json
        Print the summary, or what a dry run found, as JSON.
    """
    from activault.extract import ExtractOptions, SourceOptions

    from . import estimating, growing, show, tasks
    from .workers import as_worker

    fields = dict[str, Any](
        teacher=teacher,
        weights=weights,
        teacher_weights=not no_teacher_weights,
        image_size=_image_size(image_size),
        preprocessing=preprocessing,
        resize=resize,
        interpolation=interpolation,
        crop_mode=crop_mode,
        mean=mean,
        std=std,
        layers=layers,
        tokens=tokens,
        patches=patches,
        dtype=dtype,
        compression=compression,
        license=license,
        citation=citation,
        autocast=autocast,
        compile=compile,
        batch_invariant=batch_invariant,
        batch_size=batch_size,
        workers=workers,
        device=device,
        lease=lease,
        shard_rows=shard_rows,
        source=SourceOptions(
            kind=source,
            keys=keys,
            image_column=image_column,
            path_column=path_column,
            key_column=key_column,
            label_column=label_column,
            image_root=image_root,
            index=tar_index,
        ),
        where=tuple(where or ()),
        split=split,
        order=order,
        seed=seed,
        limit=limit,
        orientation=orientation,
        max_pixels=max_pixels,
        max_bad=max_bad,
    )
    for name, text in (("IMAGES", images), ("STORE", store)):
        if not text.strip():
            raise ConfigError(f"{name} is a path or a URL; it is empty here")
    growing.refuse_together(append, extend, repair)
    if dry_run and (append or extend or repair):
        raise ConfigError("a dry run is of a whole extraction, not of --append, --extend or --repair")
    if append or extend:
        return growing.grow(images, store, fields, rows=append, worker=(rank, world), json=json)
    if teacher is None:
        raise ConfigError("a store is of one teacher; say which by --teacher: demo, or timm's name of a ViT")
    options = as_worker(ExtractOptions(**fields), rank, world, quiet=json)
    if dry_run:
        return estimating.dry_run(images, store, options, json=json)
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
