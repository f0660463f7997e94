"""`extract --dry-run`: what an extraction will take, as the terminal shows it.

An `Estimate` in; lines, and the exit status: 1 where the disk has not the room.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import console
from .tasks import opened_source

if TYPE_CHECKING:
    from activault.extract import Estimate, ExtractOptions

__all__ = ["dry_run"]


def dry_run(images: str, store: Path | str, options: ExtractOptions, *, json: bool) -> int:
    """Estimate an extraction and show it; nothing is written at `store`."""
    from activault.extract import estimate

    found = estimate(opened_source(images, options, quiet=json), store, options)
    if json:
        console.print_json(_as_json(found))
    else:
        _show(found)
    return 1 if found.lacking else 0


def _as_json(found: Estimate) -> dict[str, Any]:
    return {"dry_run": True, "enough_room": found.lacking is None, **dataclasses.asdict(found)}


def _show(found: Estimate) -> None:
    console.out.print(f"{found.store}: nothing was written", style="bold", soft_wrap=True)
    for name, text in _lines(found).items():
        console.out.print(f"  {name:<9} {text}", soft_wrap=True)
    for note in found.notes:
        console.out.print(f"  note: {note}", soft_wrap=True)
    if found.lacking:
        console.warn(found.lacking)


def _lines(found: Estimate) -> dict[str, str]:
    size, left, human = found.size, found.left, console.human_bytes
    tokens = " + ".join(f"{count} {kind}" for kind, count in size.tokens.items())
    ratio = size.float32_bytes / max(1, size.expected_bytes)
    # The teacher's files are most of a small store, and no share of its values.
    of_float32 = f"1 / {ratio:.2f} of float32" if ratio > 1 else "the teacher's files included"
    lines = {
        "rows": f"{size.num_rows:,} from {size.source} ({size.source_kind})",
        "values": f"{len(size.layers)} layers ({_spoken(size.layers)}) of {tokens} of width {size.dim}, "
        f"{size.dtype}" + (", not compressed" if size.compression == "none" else ""),
        "shards": f"{size.num_shards:,} of {size.shard_rows:,} rows, in chunks of {size.chunk_rows}",
        "files": f"{size.num_files:,}",
        "bytes": f"{human(size.expected_bytes)} expected, {human(size.float32_bytes)} as float32",
    }
    if found.speed is not None:
        spread = f"{human(size.lowest_bytes)} to {human(size.highest_bytes)} by batch"
        lines["bytes"] += f" ({of_float32}; {spread})"
        lines["left"] = (
            f"{left.rows:,} rows in {left.shards:,} shards, {left.files:,} files, {human(left.bytes)}"
        )
    lines["disk"] = _disk(found)
    return lines | _measured(found)


def _measured(found: Estimate) -> dict[str, str]:
    """Lines on what a trial has shown."""
    speed, memory, left, human = found.speed, found.memory, found.left, console.human_bytes
    if speed is None or memory is None:
        return {}
    needed = human(left.bytes / max(left.seconds, 1e-9) if left.rows else 0)
    workers = "one worker" if left.workers == 1 else f"{left.workers} workers as fast as this one"
    of_host = ", ".join(f"{name} {human(num_bytes)}" for name, num_bytes in memory.host.items())
    peak = human(memory.peak_host)
    if memory.workers > 1:
        peak += f" a worker, x {memory.workers} workers on this machine,"
    lines = {
        "speed": f"{speed.images_a_second:,.1f} images/s ({speed.low:,.1f} to {speed.high:,.1f}) on "
        f"{found.device}, from {speed.num_images:,} images in {speed.seconds:.1f} s",
        "time": f"{console.human_seconds(left.seconds)} for {workers}, if the disk takes {needed}/s",
        "waits": _waits(left.files // left.workers, left.disk_seconds),
        "memory": f"{peak} of {human(memory.machine)} ({of_host})",
    }
    if left.disk_seconds is None:
        del lines["waits"]
    if memory.device is not None:
        lines["device"] = f"{human(memory.device)} of its memory"
    return lines


def _waits(num_files: int, seconds: float | None) -> str:
    return (
        f"{console.human_seconds(seconds or 0.0)} to bring a worker's {num_files:,} files to disk, "
        "meanwhile, if the store's is as quick as that of TMPDIR; more --shard-rows make fewer files"
    )


def _disk(found: Estimate) -> str:
    room = found.room
    if room.free_bytes is None:
        return room.note
    free = f"{console.human_bytes(room.free_bytes)} free at {room.place}"
    return f"{free}: {'NOT enough' if found.lacking else 'enough'}"


def _spoken(layers: tuple[int, ...]) -> str:
    """`0-12`, or the numbers one by one."""
    if len(layers) > 2 and layers[-1] - layers[0] + 1 == len(layers):
        return f"{layers[0]}-{layers[-1]}"
    return ", ".join(map(str, layers))
