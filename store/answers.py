"""What a failed request means, in words, by what has to be done about it.

An exception of obstore in; a `FileNotFoundError` or one of our storage errors out.
"""

from __future__ import annotations

import re
from typing import Any, Final

from .aws import has_credentials
from .errors import AccessDeniedError, StorageError, UnreachableError

__all__ = [
    "BeyondEndError",
    "ShortBodyError",
    "access_remedy",
    "body_of",
    "ignores_ranges",
    "may_pass",
    "translated",
]

_STATUS: Final = re.compile(r"Server returned non-2xx status code: (\d{3})")
_RANGE: Final = re.compile(r"CONTENT_RANGE|Content-Range|Requested \d+\.\.\d+, got")
_FULL: Final = re.compile(r"QuotaExceeded|StorageFull|TooManyObjects|InsufficientStorage|status code: 507")
"""How servers tell that a bucket, its owner or they themselves have no room: Ceph as 403."""
_PASSING: Final = frozenset({408, 425, 429})
"""Refusals that mean: not now."""


class ShortBodyError(Exception):
    """A well-formed answer with fewer bytes than were asked for."""


class BeyondEndError(Exception):
    """The range starts where the file has no byte."""


def ignores_ranges(exc: Exception) -> bool:
    """Whether a request failed since the server gives files whole, whatever part of them is asked for."""
    from obstore.exceptions import NotSupportedError

    return isinstance(exc, NotSupportedError) or "non-partial response" in str(exc)


def body_of(answer: Any, what: str, wanted: int) -> bytes:
    """The bytes of an answer that has to have `wanted` of them.

    Raises:
        StorageError: it has more, or is encoded.
        ShortBodyError: it has fewer.
    """
    encoding = answer.attributes.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise StorageError(
            f"{what}: this server encodes files (Content-Encoding: {encoding}); they must be served as they "
            "are"
        )
    parts, arrived = [], 0
    # Not `answer.bytes()`, which makes room for as much as the server says that it will send.
    for part in answer.stream(min_chunk_size=max(1, wanted)):
        parts.append(part)
        arrived += len(part)
        if arrived > wanted:
            raise StorageError(
                f"{what}: this server sends more than the {wanted} bytes that it was asked for; use another "
                "one"
            )
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    if len(data) < wanted:
        raise ShortBodyError(f"{len(data)} bytes of {wanted}")
    return data


def may_pass(exc: Exception) -> bool:
    """Whether to ask again: obstore has done so itself for all but bodies that ended early."""
    return isinstance(exc, ShortBodyError) or "request or response body error" in str(exc)


def translated(exc: Exception, path: str, where: str) -> Exception:
    """The failure of a request for `path` below the URL `where`."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    what = f"{where}/{path}".rstrip("/")
    text = str(exc).partition("\n\nDebug source")[0]
    reason = " ".join(text.partition("<")[0].split())[:400]  # an error page says no more
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    if "NoSuchBucket" in text:
        return StorageError(f"{what}: there is no such bucket; check the URL and AWS_ENDPOINT_URL")
    if _FULL.search(text):
        return StorageError(
            f"{what} cannot be written: there is no room, or a quota is used up ({reason}); make room or "
            "raise the quota, then run the same command again: what is finished is kept"
        )
    if isinstance(exc, FileNotFoundError) or status == 410:
        return FileNotFoundError(path)
    # AWS answers 400 where a session's token has run out; a refused listing has no type of its own.
    denied = status in {401, 403} or "ExpiredToken" in text or "InvalidToken" in text
    if denied or isinstance(exc, (PermissionDeniedError, UnauthenticatedError)):
        return AccessDeniedError(f"{what} may not be read ({status or 'denied'}); {access_remedy(where)}")
    if status == 416:
        return BeyondEndError(reason)
    if ignores_ranges(exc):
        return StorageError(
            f"{what}: this server ignores Range requests (it answered 200 where 206 was due); use one that "
            "heeds them"
        )
    if "error following redirect" in text:
        return StorageError(
            f"{what}: this server redirects in a circle, or too often; give the URL that it leads to"
        )
    if _RANGE.search(text):
        return StorageError(
            f"{what}: an answer to a Range request must tell in Content-Range which bytes of how many it has "
            f"({reason}); use a server that does"
        )
    if 300 <= status < 500 and status not in _PASSING:
        return StorageError(f"{what} cannot be read ({reason}); check the URL and, for S3, AWS_REGION")
    return UnreachableError(f"{what} does not answer, or not to the end ({reason}); try again later")


def access_remedy(where: str, rights: str = "s3:GetObject") -> str:
    """What to do where something may not be done that takes these rights."""
    if not where.startswith("s3:"):
        return "no credentials are sent over http(s): the server has to give it to everybody"
    hint = (
        f"check the credentials, and that they allow {rights} there"
        if has_credentials()
        else "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
        "AWS_SKIP_SIGNATURE=false for the role of this machine"
    )
    return f"{hint}; without the right to list (s3:ListBucket) S3 answers the same for a missing file"
