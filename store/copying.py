"""Making a store out of shards of others: planned as any store, filled shard by shard, completed at the end.

A `CopyPlan` in, a store in a folder out. What is not finished is an unfinished store of its own at every
moment, so that a copy that was killed goes on, verifies, and is never mistaken for the whole. One that was
finished stays so while it is mended. Several may fill one folder: a shard is copied by whoever owns it.
"""

from __future__ import annotations

import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from .arrow import pa
from .collecting import collect_leftovers
from .completion import is_completed, write_completion
from .copy_plan import REMEDY, CopyPlan, kept_bytes, kept_shards, record_there
from .copy_shard import ShardCopy
from .creation import is_free, plan_store
from .errors import ConfigError, CorruptStoreError, ShardBusyError, StoreError, StoreMismatchError
from .fetching import FileToFetch, Retries, fetch_file, with_retries
from .files import disk_error, refuse_another_folder
from .locks import at_work
from .marks import begin_again, own, owned_shards
from .metadata import restore_metadata
from .records import record_path
from .restoring import restore_records
from .storage import Folder

__all__ = ["Progress", "copy_store"]

Progress = Callable[[int, int], None]
_BUSY_S: Final = 0.5
"""Between two looks at shards that another process has."""


def copy_store(
    plan: CopyPlan,
    path: Path,
    *,
    deep: bool = False,
    num_threads: int = 8,
    retries: Retries | None = None,
    progress: Progress | None = None,
) -> None:
    """Carry out a plan; run it again and it goes on where it stopped.

    Args:
        plan: what to make.
        path: where there is nothing, an empty folder, or what an earlier run of the same plan left.
        deep: hold also what is there already against its hashes, and copy again what is not what was written.
        num_threads: files under way at once; each takes about 16 MiB of memory.
        retries: patience with the sources.
        progress: told `(bytes done, bytes in all)`, from any thread, one at a time.

    Raises:
        ConfigError: fewer threads than one.
        StoreMismatchError: another store is there; the first difference is named.
        NotAStoreError: something else is there.
        CorruptStoreError: a file is damaged in the source, or a source changed meanwhile; no such file is
            left in the copy.
        UnreachableError: a source does not answer.
        StoreError: the disk has no room, is read-only or gone; finished shards are kept.
    """
    if num_threads < 1:
        raise ConfigError(f"a copy takes 1 thread or more; got {num_threads}")
    copy = _Copy(plan, path, retries or Retries(), progress, deep=deep)
    try:
        copy.run(num_threads)
    except CorruptStoreError:
        for source in plan.sources():
            source.refuse_changed()
        raise
    except OSError as exc:
        raise disk_error(exc, path, copy.left_bytes) from exc


class _Copy:
    """One copy under way."""

    def __init__(
        self, plan: CopyPlan, path: Path, retries: Retries, progress: Progress | None, *, deep: bool
    ) -> None:
        self.plan = plan
        self.path = path
        self.retries = retries
        self.stop = threading.Event()
        self._deep = deep
        self._distrusted: frozenset[int] = frozenset()
        """Shards whose files are held against their hashes although they look finished."""
        self._refuse_another_folder: Callable[[], None] = lambda: None
        self._progress = progress
        self._done = 0
        self._lock = threading.Lock()

    @property
    def left_bytes(self) -> int:
        """Bytes that are still to be written."""
        return max(0, self.plan.num_bytes - self._done)

    def arrived(self, size: int) -> None:
        """Count bytes, from any thread."""
        with self._lock:
            self._done += size
            if self._progress is not None:
                self._progress(self._done, self.plan.num_bytes)

    def run(self, num_threads: int) -> None:
        """All of it."""
        plan = self.plan
        samples = with_retries(plan.samples, self.retries, self.stop)
        free = is_free(self.path)
        if not free:
            self._plan(samples)
        kept = {} if free else kept_shards(plan, self.path)
        _refuse_small_disk(self.path, plan.num_bytes - sum(kept.values()))
        if free:
            self._plan(samples)
        with _tidied(self.path) as handle:
            self._refuse_another_folder = partial(refuse_another_folder, handle, self.path)
            if not free:
                self._mend_planned()
            todo = [shard for shard in plan.shards if self._deep or shard not in kept]
            self._collect_marks(except_for=todo)
            self.arrived(0 if self._deep else sum(kept.values()))
            while todo := self._copy_shards(todo, num_threads):
                self.stop.wait(_BUSY_S)  # others have those
            if plan.complete and not self._is_completed():
                self._refuse_another_folder()
                write_completion(self.path, plan.root, samples)

    def _mend_planned(self) -> None:
        """Bring back what planning made and is not there any more, or not as it was."""
        self._fetch_teacher(self.path / "teacher")  # those that are there are looked at
        restore_metadata(self.path, self.plan.manifest)
        # A shard whose record was damaged or deleted stays valid by the index while it is looked at.
        restored = restore_records(self.path)
        self._distrusted = frozenset(self.plan.shards if self._deep else restored)

    def _collect_marks(self, except_for: Iterable[int]) -> None:
        """Remove marks beside records, which a killed copy left; living owners' stay.

        Such a mark would say of a record that is lost later that it was never made. Marks of shards without a
        record stay, with the files: whoever copies those shards goes on with both.
        """
        for shard in sorted(set(owned_shards(self.path)).difference(except_for)):
            if (self.path / record_path(shard)).exists():
                with suppress(ShardBusyError):
                    own(self.path, self.plan.manifest, shard).discard()

    def _plan(self, samples: pa.Table) -> None:
        root = plan_store(self.path, self.plan.manifest, samples, self._fetch_teacher, REMEDY)
        if root != self.plan.root:
            raise StoreMismatchError(f"{self.path} was planned with other files of the teacher; {REMEDY}")

    def _is_completed(self) -> bool:
        try:
            return is_completed(Folder(self.path), self.plan.root)
        except CorruptStoreError:  # all that it tells stands in the records
            begin_again(self.path, ())
            return False

    def _fetch_teacher(self, folder: Path) -> None:
        assert folder == self.path / "teacher"
        storage = self.plan.teacher.storage
        for name, file in self.plan.root.teacher.items():
            self.fetch(FileToFetch(storage, name, file.bytes, file.sha256, "sha256"))

    def fetch(self, file: FileToFetch) -> None:
        """One file, from any thread."""
        self._refuse_another_folder()
        fetch_file(file, self.path, self.retries, self.stop, self.arrived)

    def _copy_shards(self, shards: Iterable[int], num_threads: int) -> list[int]:
        """Copy those that nobody else has; returns the others."""
        under_way: deque[ShardCopy] = deque()
        busy: list[int] = []
        with ThreadPoolExecutor(num_threads, "activault-copy") as pool:
            try:
                for shard in shards:
                    try:
                        copy = self._begin(shard, pool)
                    except ShardBusyError:
                        busy.append(shard)
                        continue
                    if copy is not None:
                        under_way.append(copy)
                    # So many files wait that every thread goes on while a shard is finished.
                    while (
                        under_way
                        and sum(each.num_files for each in under_way)
                        > 2 * num_threads + under_way[0].num_files
                    ):
                        self._finish(under_way)
                while under_way:
                    self._finish(under_way)
            except BaseException:
                self.stop.set()
                raise
            finally:
                pool.shutdown(cancel_futures=True)
                for each in under_way:
                    each.close()
        return busy

    def _begin(self, shard: int, pool: ThreadPoolExecutor) -> ShardCopy | None:
        """Own a shard and begin to fetch it; None if another process has finished it meanwhile.

        Raises:
            ShardBusyError: another process has it now.
        """
        self._refuse_another_folder()
        mark = own(self.path, self.plan.manifest, shard)
        try:
            kept = None if shard in self._distrusted else kept_bytes(self.plan, self.path, shard)
            if kept is None:
                mends = record_there(self.plan, self.path, shard) is not None
                pieces = self.plan.shards[shard]
                return ShardCopy(
                    self.path,
                    self.plan.manifest,
                    mark,
                    shard,
                    pieces,
                    mends=mends,
                    fetch=self.fetch,
                    pool=pool,
                )
        except BaseException:
            mark.close()
            raise
        mark.discard()  # alone: the shard has its record
        self.arrived(kept)
        return None

    def _finish(self, under_way: deque[ShardCopy]) -> None:
        self._refuse_another_folder()
        self.arrived(under_way[0].finish())
        under_way.popleft()


@contextmanager
def _tidied(path: Path) -> Iterator[int]:
    """Hold the writers' shared lock; first remove what killed copies left half-written.

    Marks stay, with the files of their shards: the copy goes on with both. Yields the folder's handle.
    """
    with at_work(path) as handle:
        try:
            collect_leftovers(path, handle, marks_of=None)
            yield handle
        except OSError:
            refuse_another_folder(handle, path)  # which says more than that a file cannot be written
            raise


def _refuse_small_disk(path: Path, needed: int) -> None:
    folder = path.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StoreError(
            f"{path} needs {needed / 1e6:,.1f} MB more; {free / 1e6:,.1f} MB are free there; free the rest, "
            "copy fewer layers, tokens or rows, or choose another disk"
        )
