"""`pull`, `merge` and `publish`: flags in; what will be copied told first, then a bar; a summary out.

No torch here, so that the plain install has these commands.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from activault.store import open_store

from . import console

__all__ = ["merge", "pull", "publish"]


def pull(
    source: str,
    destination: str,
    /,
    *,
    layers: str = "all",
    tokens: str = "all",
    rows: str | None = None,
    deep: bool = False,
    threads: int = 8,
    dry_run: bool = False,
    json: bool = False,
) -> int:
    """Copy a store, or some of its layers, tokens and rows, from a path, http(s):// or s3://.

    Says first how much it is, then copies and holds every byte against its hash. The copy is a complete store
    of its own. Interrupted, it goes on where it stopped when it is run again. Run over a finished copy, it
    brings back what is missing or of another size, and with --deep what has rotted.

    ```
    activault pull https://example.org/in1k.zarr in1k.zarr
    activault pull s3://bucket/in1k.zarr cls.zarr --layers 7-12 --tokens cls
    activault pull /data/in1k.zarr head.zarr --rows 0:10000 --dry-run
    ```

    Parameters
    ----------
    source
        A path, http(s)://host/path/NAME.zarr or s3://bucket/prefix/NAME.zarr.
    destination
        Folder of the copy: nothing, empty, or what an earlier pull of the same left.
    layers
        Layers to copy: numbers and ranges such as 7-12 or 0,6,12, or all.
    tokens
        Token kinds to copy: cls, registers, patches, or all.
    rows
        Rows to copy, as first:stop; widened to whole shards.
    deep
        Read what is there already too, and copy again what is not what was written.
    threads
        Files under way at once.
    dry_run
        Say how much it is and stop.
    json
        Print the summary as JSON.
    """
    from activault.store.transfer import plan_pull

    planned = plan_pull(source, layers, tokens, rows)
    path = planned.checked(destination)
    there = planned.bytes_there(path)
    told = {
        "source": source,
        "destination": destination,
        "layers": list(planned.part.manifest.layers),
        "tokens": list(planned.part.manifest.kinds),
        "rows": [planned.part.rows.start, planned.part.rows.stop],
        "num_files": planned.num_files,
        "num_bytes": planned.num_bytes,
        "bytes_there": there,
        "unfinished_shards": planned.num_unfinished,
    }
    if not json:
        _tell("pull", told)
        asked, taken = planned.part.asked_rows, planned.part.rows
        if asked != taken:
            became = f"{asked.start}:{asked.stop} became {taken.start}:{taken.stop}"
            console.say(f"rows are copied in whole shards: {became}")
        if planned.num_unfinished:
            console.say(
                f"the source is not finished: {planned.num_unfinished} shards are left out; pull again when "
                "it has gone on"
            )
        if there and not dry_run and not deep:
            console.say("of what is there names and sizes alone are looked at; --deep reads it")
    if not dry_run:
        _run(
            "pull", json, lambda advance: planned.run(path, deep=deep, num_threads=threads, progress=advance)
        )
    return _finish(told, None if dry_run else path, json=json)


def merge(
    *sources: str,
    out: str,
    threads: int = 8,
    json: bool = False,
) -> int:
    """Join stores with different shards, or with different layers or tokens of the same rows, into one.

    They must be parts of one store: of the same plan, extracted in several places or pulled in parts.
    Interrupted, it goes on where it stopped when it is run again.

    ```
    activault merge first-half.zarr second-half.zarr --out all.zarr
    activault merge layers-0-6.zarr s3://bucket/layers-7-12.zarr --out all.zarr
    ```

    Parameters
    ----------
    sources
        Two or more stores: paths or URLs.
    out
        Folder of the result: nothing, empty, or what an earlier merger of the same left.
    threads
        Files under way at once.
    json
        Print the summary as JSON.
    """
    from activault.store.merging import plan_merge

    planned = plan_merge(sources)
    told = {
        "sources": list(sources),
        "destination": out,
        "layers": list(planned.plan.manifest.layers),
        "tokens": list(planned.plan.manifest.kinds),
        "num_files": planned.plan.num_files,
        "num_bytes": planned.plan.num_bytes,
    }
    if not json:
        _tell("merge", told)
    _run("merge", json, lambda advance: planned.run(out, num_threads=threads, progress=advance))
    return _finish(told, Path(out), json=json)


def publish(
    store: Path,
    destination: str,
    /,
    *,
    license: str | None = None,
    deep: bool = False,
    dry_run: bool = False,
    json: bool = False,
) -> int:
    """Put a complete store onto S3, or into a data set or bucket of the Hugging Face hub.

    Says first how much it is. What is there already of the same store is kept; another store is never
    overwritten. Others then read it by its URL, or `activault pull` it.

    ```
    activault publish in1k.zarr s3://bucket/in1k.zarr
    activault publish in1k.zarr hf://datasets/me/in1k-dinov2 --license cc-by-4.0
    ```

    Parameters
    ----------
    store
        The store.
    destination
        s3://bucket/prefix, hf://datasets/OWNER/NAME[/path] or hf://buckets/OWNER/NAME[/path].
    license
        Licence named on a data set's page in place of the store's own.
    deep
        Read everything back and hold it against its hash.
    dry_run
        Say how much it is and stop.
    json
        Print the summary as JSON.
    """
    from activault.store.publishing import plan_publish

    planned = plan_publish(store, destination, license=license)
    told = {
        "source": str(store),
        "destination": destination,
        "num_files": planned.num_files,
        "num_bytes": planned.num_bytes,
    }
    if not json:
        _tell("publish", told)
    if not dry_run:
        _run("publish", json, lambda advance: planned.run(deep=deep, progress=advance))
    if json:
        told["digest"] = open_store(store).digest
        console.print_json(told)
    elif not dry_run:
        console.say(f"published: {destination}")
    return 0


def _tell(what: str, told: dict[str, Any]) -> None:
    there = told.get("bytes_there", 0)
    kept = f", {console.human_bytes(there)} of it is there already" if there else ""
    console.say(f"{what}: {told['num_files']:,} files, {console.human_bytes(told['num_bytes'])}{kept}")


def _run(title: str, quiet: bool, work: Callable[[console.Advance], object]) -> None:
    with console.progress_bar(title, "B", quiet=quiet) as advance:
        work(advance)


def _finish(told: dict[str, Any], made: Path | None, *, json: bool) -> int:
    """What was made: its digest, and whether it is complete."""
    if made is not None:
        store = open_store(made)
        told |= {"complete": store.complete, "digest": store.digest}
        if not json:
            state = "complete" if store.complete else "not complete"
            console.say(f"{made}: {state}, digest {store.digest}")
    if json:
        console.print_json(told)
    return 0
