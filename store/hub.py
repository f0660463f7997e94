"""Data sets and buckets of the Hugging Face hub that a store is published to; see `targets.Target`.

`datasets/OWNER/NAME[/path]` or `buckets/OWNER/NAME[/path]` in. Token and endpoint are the usual ones
(HF_TOKEN or `hf auth login`, HF_ENDPOINT). Needs the extra `hf`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from .card import CARD, license_lines
from .errors import AccessDeniedError, ConfigError, MissingExtraError, StorageError, UnreachableError
from .fetching import FileToFetch
from .root import ROOT
from .storage import Folder
from .targets import Listed, Target

__all__ = ["HubBucket", "HubDataset", "open_hub"]

_README: Final = "README.md"


def open_hub(place: str, store: Path, license: str | None = None) -> Target:
    """The data set or bucket that is behind `hf://`.

    Raises:
        ConfigError: it is neither.
        MissingExtraError: `huggingface_hub` is not installed.
    """
    kind, *parts = place.rstrip("/").split("/")
    if kind not in ("datasets", "buckets") or len(parts) < 2 or not all(parts):
        raise ConfigError(
            "on the hub a store goes to hf://datasets/OWNER/NAME[/path] or hf://buckets/OWNER/NAME[/path]; "
            f"got hf://{place}"
        )
    try:
        import huggingface_hub
    except ImportError as exc:
        raise MissingExtraError(
            "publishing to the hub needs huggingface_hub, which is not installed; python -m pip install "
            "'activault[hf]'"
        ) from exc
    api = huggingface_hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="activault")
    repo, prefix = "/".join(parts[:2]), "/".join(parts[2:])
    if kind == "datasets":
        return HubDataset(api, repo, prefix, _readme(store, license))
    return HubBucket(api, repo, prefix)


def _readme(store: Path, license: str | None) -> bytes | None:
    """The data set's page: the store's card, with the licence that was asked for."""
    card = store / CARD
    if not card.is_file():
        return None
    text = card.read_text(encoding="utf-8")
    found = re.match(r"---\n(.*?\n)---\n", text, re.DOTALL)
    if license is None:
        return text.encode()
    kept = re.sub(r"(?m)^license(_name|_link)?:.*\n", "", found[1]) if found else ""
    front = "\n".join(license_lines(license))
    return f"---\n{front}\n{kept}---\n{text[found.end() if found else 0 :]}".encode()


class _Hub:
    """What both have in common."""

    scheme: ClassVar[str]

    def __init__(self, api: Any, repo: str, prefix: str) -> None:
        self._api = api
        self._repo = repo
        self._prefix = f"{prefix}/" if prefix else ""
        self.where = f"hf://{self.scheme}/{repo}/{prefix}".rstrip("/")

    def _there(self, path: str) -> str:
        return self._prefix + path

    def _listed(self, entries: Any) -> Iterator[tuple[str, Any]]:
        """Files below the prefix by their names relative to the store."""
        for entry in entries:
            if hasattr(entry, "size") and entry.path.startswith(self._prefix):
                yield entry.path[len(self._prefix) :], entry

    def _download(self, path: str, folder: Path) -> Path | None:
        raise NotImplementedError

    def read_small(self, path: str) -> bytes | None:
        """A small file; None if it is not there."""
        with tempfile.TemporaryDirectory() as folder:
            file = self._download(path, Path(folder))
            return None if file is None else file.read_bytes()

    def check(self, file: FileToFetch) -> bool:
        """Read a file back and hold it against its hash."""
        with tempfile.TemporaryDirectory() as folder:
            arrived = self._download(file.path, Path(folder))
            if arrived is None:
                return False
            found = FileToFetch(Folder(arrived.parent), arrived.name, file.bytes, file.hash, file.algorithm)
            return found.is_sound()

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        """Failures of the hub in our words."""
        from huggingface_hub.errors import HfHubHTTPError

        # The library changed its HTTP client twice: its own error tells which one's errors there are.
        client_error: type[Exception] = HfHubHTTPError.__bases__[0]
        try:
            yield
        except (client_error, OSError, ValueError, RuntimeError) as exc:
            if isinstance(exc, OSError) and exc.filename is not None:
                raise  # of this machine's disk
            raise self._translated(exc) from exc

    def _translated(self, exc: Exception) -> Exception:
        cause: BaseException = exc
        while getattr(cause, "response", None) is None and cause.__cause__ is not None:
            cause = cause.__cause__  # an upload's failure is wrapped
        status = int(getattr(getattr(cause, "response", None), "status_code", 0) or 0)
        reason = " ".join(str(cause).split())[:300]
        if status in (401, 403):
            return AccessDeniedError(
                f"{self.where} may not be written ({status}); set HF_TOKEN to a token that may, or log in "
                "with `hf auth login`"
            )
        if isinstance(exc, ValueError) and not status:
            return ConfigError(f"{self.where} cannot be used ({reason})")
        if status in (0, 408, 429) or status >= 500:
            return UnreachableError(f"{self.where} does not answer ({reason}); publish again later")
        return StorageError(f"{self.where} cannot be written ({reason})")


class HubDataset(_Hub):
    """A data set's repository; every batch of files is one commit."""

    scheme = "datasets"
    at_once = 128

    def __init__(self, api: Any, repo: str, prefix: str, readme: bytes | None) -> None:
        super().__init__(api, repo, prefix)
        self._readme = None if prefix else readme
        self.foreign: Sequence[str] = () if prefix else (".gitattributes", _README)

    def make(self) -> None:
        """Make the repository if it is not there; private ones are made on the hub."""
        with self._translating():
            self._api.create_repo(self._repo, repo_type="dataset", exist_ok=True)

    def listing(self) -> Mapping[str, Listed]:
        """Every file, with the hash by which the hub keeps it."""
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

        try:
            with self._translating():
                try:
                    tree = self._api.list_repo_tree(
                        self._repo, self._prefix.rstrip("/") or None, recursive=True, repo_type="dataset"
                    )
                    return {
                        path: Listed(entry.size, entry.lfs.sha256 if entry.lfs else entry.blob_id)
                        for path, entry in self._listed(tree)
                    }
                except (EntryNotFoundError, RepositoryNotFoundError):
                    return {}
        except AccessDeniedError:
            return {}  # the hub does not tell a repository that is not there from one that may not be seen

    def has(self, listed: Listed, file: FileToFetch) -> bool:
        """By size and the hub's hash: sha256 of a large file, git's of a small one."""
        if listed.size != file.bytes:
            return False
        state = hashlib.sha256()
        if len(listed.hash or "") == 40:
            state = hashlib.sha1(b"blob %d\0" % file.bytes, usedforsecurity=False)
        for block in file.storage.blocks(file.path):
            state.update(block)
        return state.hexdigest() == listed.hash

    def put(self, files: Sequence[FileToFetch], progress: Callable[[int], None]) -> None:
        """Upload files in one commit."""
        if files:
            paths = {file.path: f"{file.storage.where}/{file.path}" for file in files}
            self._commit(paths, f"{len(files)} files of {files[0].storage.name}")
            progress(sum(file.bytes for file in files))

    def create(self, path: str, data: bytes) -> bool:
        """Put a small file where there is none; the last one brings the data set's page with it."""
        with self._translating():
            head = self._api.repo_info(self._repo, repo_type="dataset").sha
        listing = self.listing()
        if path in listing:
            return False
        files: dict[str, str | bytes] = {path: data}
        if path == ROOT and self._readme is not None and _README not in listing:
            files[_README] = self._readme
        # The hub refuses it if anybody committed since `head`, so that of two publications one wins.
        self._commit(files, f"{path} of {self._repo}", parent=head)
        return True

    def remove(self, path: str) -> None:
        """Remove a small file."""
        from huggingface_hub import CommitOperationDelete

        if path in self.listing():
            self._send([CommitOperationDelete(self._there(path))], f"Remove {path}")

    def _commit(self, files: Mapping[str, str | bytes], message: str, parent: str | None = None) -> None:
        from huggingface_hub import CommitOperationAdd

        adds = [CommitOperationAdd(self._there(path), source) for path, source in files.items()]
        self._send(adds, message, parent)

    def _send(self, operations: Sequence[Any], message: str, parent: str | None = None) -> None:
        with self._translating():
            self._api.create_commit(
                self._repo, operations, commit_message=message, repo_type="dataset", parent_commit=parent
            )

    def _download(self, path: str, folder: Path) -> Path | None:
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

        with self._translating():
            try:
                name = self._there(path)
                return Path(
                    self._api.hf_hub_download(self._repo, name, repo_type="dataset", local_dir=folder)
                )
            except (EntryNotFoundError, RepositoryNotFoundError):
                return None


class HubBucket(_Hub):
    """A bucket: files without history. It has no put that spares what is there: one publisher at a time."""

    scheme = "buckets"
    at_once = 128
    foreign: Sequence[str] = ()

    def make(self) -> None:
        """Make the bucket if it is not there."""
        with self._translating():
            self._api.create_bucket(self._repo, exist_ok=True)

    def listing(self) -> Mapping[str, Listed]:
        """Every file; the hub keeps them by a hash that does not follow from the bytes alone."""
        from huggingface_hub.errors import HfHubHTTPError

        with self._translating():
            try:
                tree = self._api.list_bucket_tree(
                    self._repo, self._prefix.rstrip("/") or None, recursive=True
                )
                return {path: Listed(entry.size) for path, entry in self._listed(tree)}
            except HfHubHTTPError as exc:
                if exc.response is not None and exc.response.status_code == 404:
                    return {}
                raise

    def has(self, listed: Listed, file: FileToFetch) -> bool:
        """By size."""
        return listed.size == file.bytes

    def put(self, files: Sequence[FileToFetch], progress: Callable[[int], None]) -> None:
        """Upload files together."""
        if files:
            add = [(f"{file.storage.where}/{file.path}", self._there(file.path)) for file in files]
            with self._translating():
                self._api.batch_bucket_files(self._repo, add=add)
            progress(sum(file.bytes for file in files))

    def create(self, path: str, data: bytes) -> bool:
        """Put a small file where there is none, as far as a look before can tell."""
        if path in self.listing():
            return False
        with self._translating():
            self._api.batch_bucket_files(self._repo, add=[(data, self._there(path))])
        return True

    def remove(self, path: str) -> None:
        """Remove a small file."""
        if path in self.listing():
            with self._translating():
                self._api.batch_bucket_files(self._repo, delete=[self._there(path)])

    def _download(self, path: str, folder: Path) -> Path | None:
        if path not in self.listing():
            return None
        target = folder / "file"
        with self._translating():
            self._api.download_bucket_files(self._repo, [(self._there(path), target)])
        return target
