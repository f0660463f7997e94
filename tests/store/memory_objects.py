"""A bucket in memory that heeds conditions, to be stopped at any request: `MemoryObjects(bucket, at_put)`.

    bucket: dict[str, bytes] = {}
    objects = MemoryObjects(bucket, at_put=lambda path: ...)     # called before every conditional put

Several of them may share one bucket, as writers on several machines do. `dump(bucket, folder)` makes a folder
of it, to be verified as a store.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable
from pathlib import Path

from activault.store.objects import Entry, Objects, _RefusedError

Bucket = dict[str, bytes]


class MemoryObjects(Objects):
    def __init__(self, bucket: Bucket, at_put: Callable[[str], object] = lambda path: None) -> None:
        super().__init__("s3://memory/a.zarr")
        self.bucket = bucket
        self.at_put = at_put

    def entries(self, prefix: str = "") -> dict[str, Entry]:
        return {path: entry(data) for path, data in self.bucket.items() if path.startswith(prefix)}

    def find(self, path: str) -> Entry | None:
        return entry(self.bucket[path]) if path in self.bucket else None

    def read_tagged(self, path: str) -> tuple[bytes, str] | None:
        data = self.bucket.get(path)
        return None if data is None else (data, entry(data).tag)

    def remove(self, path: str) -> None:
        self.bucket.pop(path, None)

    def _put(self, path: str, data: bytes | mmap.mmap, tag: str | None) -> str:
        self.at_put(path)
        there = self.bucket.get(path)
        if (tag is None) != (there is None) or (there is not None and entry(there).tag != tag):
            raise _RefusedError
        self.bucket[path] = data[:]
        return entry(self.bucket[path]).tag

    def stamp(self, path: str) -> tuple[int, str]:
        if path not in self.bucket:
            raise FileNotFoundError(path)
        found = entry(self.bucket[path])
        return found.size, found.tag

    def fetch(self, path: str, start: int, stop: int) -> tuple[bytes, int]:
        size = self.size(path)
        return self.bucket[path][start:stop], size

    def names(self, folder: str) -> list[str] | None:
        prefix = f"{folder}/" if folder else ""
        rest = (path[len(prefix) :] for path in self.bucket if path.startswith(prefix))
        return sorted({name.partition("/")[0] for name in rest})


def entry(data: bytes) -> Entry:
    return Entry(len(data), f'"{hashlib.md5(data).hexdigest()}"')


def dump(bucket: Bucket, folder: Path) -> Path:
    for path, data in bucket.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder
