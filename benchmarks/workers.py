"""Several workers extract into one store, and one of them is killed every few seconds for the whole run.

    python benchmarks/workers.py IMAGES [--teacher demo] [--image-size 98] [--limit N] [--every 5] [--seed 0]

IMAGES is any source that `activault extract` takes; the pinned demo teacher is fetched if it is not cached,
`--weights FILE --teacher NAME` takes another. First one worker makes the store undisturbed. Then workers of
random ranks make it again: at random moments one is killed with SIGKILL and another started, one is stopped
with SIGSTOP for longer than its lease and continued, one leaves for good, or one is added. Both stores must
have the same digests, every byte and value must verify, every worker that lived must end with exit status 0
and that digest, and nothing may be left over. Prints a line for the log and exits 1 on the first fault.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from activault.store import Store, open_store, verify_store
from activault.store.index import INDEX
from activault.store.locks import LOCK

NUM_WORKERS, MOST_WORKERS = 3, 5
EVENTS = {"kill": 12, "stop": 2, "leave": 1, "join": 2}
"""What befalls the workers, and how often."""
LONGEST = 1800
"""Seconds after which a run counts as hung."""


def work(arguments: list[str], log: Path) -> None:
    """One worker: the command line's own program, in a process that has torch already."""
    from activault.jobs.cli import main

    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.exit(main(arguments))


class Crew:
    """The workers on one store."""

    def __init__(self, context: ForkServerContext, arguments: list[str], folder: Path, seed: int) -> None:
        self._context, self._arguments, self._folder = context, arguments, folder
        self._moments = random.Random(seed)
        self._number = 0
        self.living: dict[int, ForkServerProcess] = {}
        self.done: list[tuple[int, int | None]] = []
        """Number and exit status of those that ended by themselves."""
        self.stopped: dict[int, float] = {}
        """When they are continued, by number."""
        self.events: Counter[str] = Counter()

    def start(self) -> None:
        """One more worker, of any rank."""
        world = self._moments.randint(1, MOST_WORKERS)
        ranks = ["--rank", str(self._moments.randrange(world)), "--world", str(world)]
        log = self.log(self._number)
        process = self._context.Process(target=work, args=([*self._arguments, *ranks], log))
        process.start()
        self.living[self._number] = process
        self._number += 1

    def log(self, number: int) -> Path:
        """Where a worker's output goes."""
        return self._folder / f"worker {number}.txt"

    def disturb(self, lease: float) -> None:
        """One event at a worker that is not stopped."""
        awake = sorted(self.living.keys() - self.stopped.keys())
        event = self._moments.choices(list(EVENTS), list(EVENTS.values()))[0]
        if event == "join" and len(self.living) < MOST_WORKERS:
            self.start()
        elif not awake:
            return
        elif event == "stop" and len(awake) > 1:
            number = self._moments.choice(awake)
            os.kill(self.living[number].pid or 0, signal.SIGSTOP)
            self.stopped[number] = time.monotonic() + lease * self._moments.uniform(0.5, 3.0)
        else:
            event = "kill" if event != "leave" or len(awake) < 2 else "leave"
            number = self._moments.choice(awake)
            self.living[number].kill()
            self.living.pop(number).join()
            if event == "kill":
                self.start()
        self.events[event] += 1

    def look(self) -> None:
        """Continue who was stopped for long enough, and note who has ended."""
        for number, until in list(self.stopped.items()):
            if time.monotonic() > until:
                os.kill(self.living[number].pid or 0, signal.SIGCONT)
                del self.stopped[number]
        for number, process in list(self.living.items()):
            if process.exitcode is not None:
                self.done.append((number, process.exitcode))
                del self.living[number]


def disturbed(crew: Crew, path: Path, every: float, lease: float, moments: random.Random) -> None:
    """Disturb the workers until the store is complete, then wait for them."""
    until = time.monotonic() + LONGEST
    for _ in range(NUM_WORKERS):
        crew.start()
    at = time.monotonic() + moments.uniform(0.2, 1.8) * every
    while crew.living:
        if time.monotonic() > until:
            raise SystemExit(f"not done after {LONGEST} s")
        crew.look()
        if not crew.living and not (path / INDEX).exists():
            return  # all have ended by themselves, with a fault
        if time.monotonic() > at and not (path / INDEX).exists():
            crew.disturb(lease)
            at = time.monotonic() + moments.uniform(0.2, 1.8) * every
        time.sleep(0.02)


def faults_of(crew: Crew, store: Path, expected: Store) -> list[str]:
    """What is not as it should be after the run."""
    wrong = [
        f"worker {number} ended with {status}: {crew.log(number).read_text()[-2000:]}"
        for number, status in crew.done
        if status
    ]
    if not (store / INDEX).exists():
        return [*wrong, "the store is not complete"]
    found = open_store(store)
    wrong += [
        f"{name} differs from the undisturbed store's"
        for name in ("digest", "arrays_digest")
        if getattr(found, name) != getattr(expected, name)
    ]
    for number, _ in crew.done:
        said = crew.log(number).read_text()
        if json.loads(said[said.index("{") : said.rindex("}") + 1])["digest"] != expected.digest:
            wrong.append(f"worker {number} told another digest")
    wrong += [str(fault) for fault in verify_store(store, deep=True, values=True).faults]
    left = [str(path.relative_to(store)) for path in store.rglob(".*") if path.name != LOCK]
    return [*wrong, *(f"{path} is left over" for path in left)]


def main() -> int:
    """Both stores; print the line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images")
    parser.add_argument("--teacher", default="demo")
    parser.add_argument(
        "--every", type=float, default=5.0, help="seconds from one event to the next, in the mean"
    )
    parser.add_argument("--lease", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    options, extra = parser.parse_known_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["activault.jobs.cli", "activault.jobs.tasks", "activault.extract.run"])
    folder = Path(tempfile.mkdtemp(prefix="workers"))
    preload = context.Process(target=time.sleep, args=(0,))
    preload.start()  # torch is imported once, and before any clock runs
    preload.join()
    request = ["--teacher", options.teacher, "--lease", str(options.lease), "--json", *extra]
    try:
        once, often = folder / "once.zarr", folder / "often.zarr"
        start = time.perf_counter()
        alone = context.Process(
            target=work, args=(["extract", options.images, str(once), *request], folder / "alone.txt")
        )
        alone.start()
        alone.join()
        if alone.exitcode:
            print((folder / "alone.txt").read_text(), file=sys.stderr)
            return 1
        undisturbed, start = time.perf_counter() - start, time.perf_counter()
        expected = open_store(once)
        crew = Crew(context, ["extract", options.images, str(often), *request], folder, options.seed)
        disturbed(crew, often, options.every, options.lease, random.Random(options.seed))
        seconds = time.perf_counter() - start
        if wrong := faults_of(crew, often, expected):
            print("\n".join(wrong), file=sys.stderr)
            return 1
        taken = sum(log.read_text().count("was taken over") for log in folder.glob("worker *.txt"))
    finally:
        shutil.rmtree(folder)
    spoken = ", ".join(f"{event} {count}" for event, count in sorted(crew.events.items()))
    what = f"{expected.num_rows} rows of {expected.manifest.teacher.name}"
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}: {what} in {len(expected.manifest.held_shards)} shards; one worker "
        f"{undisturbed:.0f} s; {NUM_WORKERS} workers with {sum(crew.events.values())} events ({spoken}; "
        f"{taken} late owners told) {seconds:.0f} s: the same digest and arrays_digest, verified deep and by "
        "values, nothing left over"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
