"""`info` and `verify`: flags in, output and exit status out; no torch, and a store may lie behind a URL."""

from __future__ import annotations

from pathlib import Path

from activault.store.repair_plan import plan_repair, refuse_plan_file, write_plan

from . import console, inspect

__all__ = ["info", "verify"]


def info(store: str, /, *, json: bool = False) -> int:
    """What is in a store: teacher, preprocessing, layers, tokens, rows, sizes, completeness, digest.

    ```
    activault info photos.zarr
    activault info https://example.org/photos.zarr --json
    ```

    Parameters
    ----------
    store
        The store: a path, http(s):// or s3://.
    json
        Print everything as JSON.
    """
    facts = inspect.facts(store)
    if json:
        console.print_json(facts)
    else:
        inspect.show_facts(facts)
    return 0


def verify(
    store: str,
    /,
    *,
    deep: bool = False,
    values: bool = False,
    complete: bool = False,
    repair_plan: Path | None = None,
    json: bool = False,
) -> int:
    """Check a store and list every fault; exit status 1 on any.

    A store that is sound but not finished is no fault unless --complete asks for it.

    ```
    activault verify photos.zarr
    activault verify photos.zarr --deep --complete
    activault verify photos.zarr --values
    activault verify photos.zarr --deep --repair-plan plan.json
    ```

    Parameters
    ----------
    store
        The store: a path, http(s):// or s3://.
    deep
        Read every byte and hold it against its hash, and statistics against what can be.
    values
        Decode every value too, and hold it against what records and statistics say; implies --deep.
    complete
        Count unfinished shards as a fault.
    repair_plan
        Write what would mend it to this file, for `activault extract ... --repair FILE`.
    json
        Print the report and what would mend it as JSON.
    """
    if repair_plan is not None:
        refuse_plan_file(repair_plan, store)
    report = inspect.verify(store, deep=deep, values=values, complete=complete, quiet=json)
    if repair_plan is not None:
        write_plan(repair_plan, plan_repair(report))
    if json:
        console.print_json(inspect.report_json(report))
    else:
        inspect.show_report(store, report)
    return 0 if report.ok else 1
