"""How many cores and how much memory this process may use, and work in threads."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

__all__ = ["available_bytes", "in_threads", "memory_bytes", "num_cores"]

Item = TypeVar("Item")
Result = TypeVar("Result")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")
_GROUPS: Final = Path("/sys/fs/cgroup")
_MEMORY: Final = Path("/proc/meminfo")


def num_cores() -> int:
    """Cores this process may use, which on a cluster are fewer than the machine has."""
    # macOS and Windows do not tell which cores a process may use.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> list[Result]:
    """`function` of every item, in the items' order; the first error is raised and no further item begun."""
    if threads <= 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def memory_bytes(
    environment: Mapping[str, str] = os.environ, own_groups: Path = _OWN_GROUPS, groups: Path = _GROUPS
) -> int:
    """Memory of the machine, or what a container or a Slurm job may take of it where that is less.

    Args:
        environment: where Slurm says so, in MiB.
        own_groups: Linux's list of the control groups that this process is in.
        groups: where those are.
    """
    sizes = [
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        *(limit for _, limit in _limited_groups(own_groups, groups)),
    ]
    of_job = environment.get("SLURM_MEM_PER_NODE", "")
    if of_job.isdecimal() and int(of_job):  # 0 is all of a node
        sizes.append(int(of_job) << 20)
    return min(sizes)


def available_bytes(
    environment: Mapping[str, str] = os.environ,
    own_groups: Path = _OWN_GROUPS,
    groups: Path = _GROUPS,
    memory: Path = _MEMORY,
) -> int:
    """Memory that can still be had: what files are kept in counts, what processes have taken does not.

    Args:
        environment: see `memory_bytes`.
        own_groups: see `memory_bytes`.
        groups: see `memory_bytes`.
        memory: Linux's account of the machine's memory; elsewhere half of it is taken to be available.
    """
    there = memory_bytes(environment, own_groups, groups)
    left = [limit - _taken(folder) for folder, limit in _limited_groups(own_groups, groups)]
    of_machine = re.search(r"^MemAvailable: +([0-9]+) kB$", _text(memory), re.MULTILINE)
    left.append(int(of_machine[1]) << 10 if of_machine else there // 2)
    return max(0, min(there, *left))


def _taken(group: Path) -> int:
    """Bytes that processes of a control group have taken, without files that could be read again."""
    is_second = (group / "memory.max").is_file()
    used = _text(group / ("memory.current" if is_second else "memory.usage_in_bytes")).strip()
    files = re.findall(r"^(?:in)?active_file ([0-9]+)$", _text(group / "memory.stat"), re.MULTILINE)
    return max(0, int(used) - sum(map(int, files))) if used.isdecimal() else 0


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # not Linux, or not for us to see
        return ""


def _limited_groups(own_groups: Path, groups: Path) -> Iterator[tuple[Path, int]]:
    """Control groups with a limit, this process's and those that they are in, and the bytes they may take."""
    for line in _text(own_groups).splitlines():
        _, controllers, own = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (groups / "memory", "memory.limit_in_bytes") if controllers else (groups, "memory.max")
        group = root / own.lstrip("/")
        for folder in (group, *group.parents):
            # A container sees its own group as the root, though the list may say where that is outside.
            if folder.is_relative_to(root) and (folder / name).is_file():
                limit = (folder / name).read_text().strip()
                if limit.isdecimal():  # else `max`
                    yield folder, int(limit)
