"""`info` and `verify`: what a store is and whether it is whole, without torch.

store path -> facts (a JSON-able dict) or a `VerifyReport`, and how the terminal shows them
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from activault.store import CorruptStoreError, VerifyReport, open_store, verify_store

from . import console

__all__ = ["facts", "report_json", "require_sound", "show_facts", "show_report", "verify"]


def facts(path: Path) -> dict[str, Any]:
    """All of `info --json`."""
    return open_store(path).info()


def show_facts(facts: dict[str, Any]) -> None:
    """The facts as two columns; nested values as `key.key`."""
    rows = [(key, _spoken(key, value)) for key, value in _flat(facts)]
    width = max(len(key) for key, _ in rows)
    for key, value in rows:
        console.out.print(f"{key:<{width}}  {value}", soft_wrap=True)


def _flat(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in facts.items():
        rows += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return rows


def _spoken(key: str, value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int) and "bytes" in key:
        return f"{console.human_bytes(value)} ({value:,})"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def verify(path: Path, *, deep: bool, complete: bool, quiet: bool) -> VerifyReport:
    """Check a store, with a bar over the bytes."""
    with console.progress_bar("verify", "B", quiet=quiet) as advance:
        return verify_store(path, deep=deep, complete=complete, progress=advance)


def report_json(report: VerifyReport) -> dict[str, Any]:
    """The report as `verify --json` prints it."""
    return {
        "ok": report.ok,
        "complete": report.complete,
        "finished_shards": report.finished_shards,
        "num_shards": report.num_shards,
        "faults": [
            {"where": fault.where, "rule": fault.rule, "detail": fault.detail} for fault in report.faults
        ],
    }


def show_report(path: Path, report: VerifyReport) -> None:
    """Every fault on a line of its own, then the verdict."""
    for fault in report.faults:
        console.out.print(f"{fault.where}: {fault.rule}; {fault.detail}", soft_wrap=True)
    shards = f"{report.finished_shards} of {report.num_shards} shards finished"
    shards += ", complete" if report.complete else ", not complete"
    verdict = "sound" if report.ok else f"{len(report.faults)} fault(s)"
    console.out.print(f"{path}: {verdict}, {shards}", soft_wrap=True)


def require_sound(path: Path, *, quiet: bool) -> None:
    """A deep verification of a finished store that other steps stand on.

    Raises:
        CorruptStoreError: there is a fault; names the first and how many there are.
    """
    report = verify(path, deep=True, complete=True, quiet=quiet)
    if report.faults:
        fault = report.faults[0]
        raise CorruptStoreError(
            f"{path} has {len(report.faults)} fault(s), the first: {fault.where}: {fault.rule}; "
            f"{fault.detail}; `activault verify {path} --deep` lists all"
        )
    if not quiet:
        show_report(path, report)
