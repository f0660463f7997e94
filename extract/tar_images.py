"""Images in tars as WebDataset writes them, as rows whose bytes are ranges of their tar.

    source = TarImages("in1k-train-{0000..1023}.tar", SourceOptions())

Tars are indexed once (`tar_index.py`) and their members made rows by WebDataset's rules (`tar_samples.py`),
in the order of the tars and of the samples in them. Nothing is lost in silence: a key that two rows have is
an error that names both places; tars that are cut off and samples without an image are `faults`. Labels come
from `.cls`, from the field `label` of `.json`, from a `.txt` of one short line, else from the key's folder.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, Final

import numpy as np

from activault.store.errors import ConfigError, ImageSourceError
from activault.store.provenance import SourceInfo

from .decode import EXTENSIONS, BadImage
from .listing import Listed, file_split, fingerprint_of, folder_split, refuse_repeats, reopened, with_splits
from .options import SourceOptions
from .places import SourceFile, find_files, reading, source_name
from .tar_index import TarIndex, index_tar
from .tar_samples import tar_rows

__all__ = ["TarImages"]

Progress = Callable[[int, int], None]
_AT_ONCE: Final = 4
"""Tars that are indexed at one time."""
_REMEDIES: Final = {
    "name": "take --keys place, which names rows by their tar and number",
    "place": "rename one of these tars",
}
"""Where keys repeat, by what they are."""


class TarImages(Listed):
    """Rows of one or many tars.

    Args:
        images: what `places.find_files` understands.
        options: see `SourceOptions`.
        progress: bytes gone through, and of how many; called from several threads, one at a time.

    Raises:
        ImageSourceError: there is no tar, or no image in them, a key or an extension of a sample is there
            twice, or a sample has several images.
        ConfigError: no sample has the label column that is asked for.
    """

    def __init__(self, images: str, options: SourceOptions, progress: Progress | None = None) -> None:
        self._images, self._options = images, options
        self._files = find_files(images, (".tar",))
        indices = _indexed(self._files, options, progress)
        self._tar_bytes = [index.size for index in indices]
        self._list(indices)
        if not len(self):
            raise ImageSourceError(_nothing_found(images, indices))
        if options.label_column is not None and not any(self.labels):
            raise ConfigError(
                f"no sample has the label column {options.label_column!r}; it is cls, txt, or a field of the "
                "samples' JSON"
            )
        refuse_repeats(self.keys, self._where, _REMEDIES[options.keys])

    def _list(self, indices: Sequence[TarIndex]) -> None:
        keys, labels, splits = list[str](), list[str | None](), list[str | None]()
        places, faults = list[tuple[int, int, int]](), list[str]()
        same: dict[str | None, str | None] = {}
        self._bad: dict[int, BadImage] = {}
        for tar, (file, index) in enumerate(zip(self._files, indices, strict=True)):
            rows, odd = tar_rows(file, index, self._options)
            stem, split = file.name.removesuffix(".tar"), file_split(file.name)
            is_named = self._options.keys == "name"
            for row in rows:
                if row.bad is not None:
                    self._bad[len(keys)] = row.bad
                keys.append(row.key if is_named else f"{stem}/{row.number:07d}")
                labels.append(same.setdefault(row.label, row.label))
                splits.append(folder_split(row.key) or split)
                places.append((tar, row.offset, row.size))
            faults += odd
        table = np.array(places, np.int64).reshape(-1, 3)
        self._tar_of, self._offsets, self._sizes = (np.ascontiguousarray(column) for column in table.T)
        self.keys, self.labels, self._splits, self.faults = with_splits(keys, splits), labels, splits, faults

    def _where(self, row: int) -> str:
        return f"{self._files[self._tar_of[row]].where} at byte {self._offsets[row]}"

    @cached_property
    def info(self) -> SourceInfo:
        """The tar's name, or the pattern's, and a hash over keys and sizes of the images."""
        fingerprint = fingerprint_of(self.keys, self._sizes.tolist())
        return SourceInfo(kind="tar", name=source_name(self._images), fingerprint=fingerprint)

    def __reduce__(self) -> tuple[Any, ...]:
        return reopened, (TarImages, (self._images, self._options), self.info.fingerprint)

    def read(self, row: int) -> bytes | BadImage:
        """The bytes of one image, by one read of a range; may be called from several threads."""
        if row in self._bad:
            return self._bad[row]
        tar = int(self._tar_of[row])
        file, offset, size = self._files[tar], int(self._offsets[row]), int(self._sizes[row])

        def ranged() -> bytes:
            with file.storage.open(file.path, self._tar_bytes[tar]) as opened:
                return opened.read(offset, size)

        return reading(file.where, ranged)


def _indexed(
    files: Sequence[SourceFile], options: SourceOptions, progress: Progress | None
) -> list[TarIndex]:
    lock, done = threading.Lock(), 0
    sizes = [reading(file.where, lambda file=file: file.storage.size(file.path)) for file in files]  # type: ignore[misc]

    def advance(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            if progress is not None:
                progress(done, sum(sizes))

    with ThreadPoolExecutor(_AT_ONCE, "index") as threads:
        try:
            return list(threads.map(lambda file: index_tar(file, options.index, advance), files))
        finally:
            threads.shutdown(cancel_futures=True)


def _nothing_found(images: str, indices: Sequence[TarIndex]) -> str:
    names: list[Any] = [name for index in indices for name in index.members["name"].to_pylist()]
    endings = Counter(PurePosixPath(name).suffix.lower() or "no extension" for name in names)
    seen = ", ".join(ending for ending, _ in endings.most_common(4)) or "none"
    known = " ".join(sorted(EXTENSIONS))
    return f"0 images among {len(names)} members ({seen}) of {images}; images are members that end in {known}"
