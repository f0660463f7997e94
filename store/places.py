"""Which place a path or a URL names: a folder of this machine, a web server, or a bucket.

Text in, a `Storage` out; nothing is read, and obstore is imported when a URL is first read.
"""

from __future__ import annotations

import re
import urllib.parse
from pathlib import Path

from .errors import ConfigError
from .remote import Remote
from .storage import Folder, Storage

__all__ = ["as_place", "open_storage"]


def open_storage(where: Path | str) -> Storage:
    """The place that a path or a URL names; nothing is read yet.

    Args:
        where: a path, `file://`, `http://`, `https://` or `s3://bucket/prefix`.

    Raises:
        ConfigError: a URL of another scheme, or one that names no place.
    """
    # At least two letters: a Windows drive is no scheme.
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]+)://", where) if isinstance(where, str) else None
    if found is None:
        return Folder(where)
    scheme = found[1].lower()
    if scheme == "file":
        return Folder(_file_path(str(where)))
    if scheme in {"http", "https", "s3"}:
        return Remote(str(where))
    raise ConfigError(
        f"a store is a path, or a URL that begins with file://, http://, https:// or s3://; got {where}"
    )


def _file_path(url: str) -> str:
    host, slash, path = url.partition("://")[2].partition("/")
    if host not in {"", "localhost"} or not slash:
        raise ConfigError(f"a file:// URL is file:///PATH; got {url}")
    return slash + urllib.parse.unquote(path)


def as_place(where: Path | str) -> Path | str:
    """A path as such, also where it was given as `file://`; any other URL as it is; raises as above."""
    folder = open_storage(where).folder
    if folder is None:
        return str(where)
    return folder if str(where).lower().startswith("file://") else Path(where)
