"""`info` and `verify`: what a store is and whether it is whole, without torch.

store path -> facts (a JSON-able dict) or a `VerifyReport`, and how the terminal shows them
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from activault.store import CorruptStoreError, VerifyReport, open_store, verify_store
from activault.store.findings import Remedy
from activault.store.places import open_storage
from activault.store.repair_plan import RepairPlan, plan_repair

from . import console

__all__ = [
    "facts",
    "printable",
    "report_json",
    "require_sound",
    "show_facts",
    "show_report",
    "verify",
]

_TITLES: Final[dict[Remedy, str]] = {
    "copy": "only a copy of the store mends",
    "extract": "mended by extracting again",
    "rebuild": "mended without an image",
    "delete": "to be deleted",
    "reach": "out of reach; mend rights, disk or connection",
    "finish": "not finished",
}


def facts(path: Path | str) -> dict[str, Any]:
    """All of `info --json`."""
    return open_store(path).info()


def show_facts(facts: dict[str, Any]) -> None:
    """The facts as two columns; nested values as `key.key`."""
    rows = [(key, _spoken(key, value)) for key, value in _flat(facts)]
    width = max(len(key) for key, _ in rows)
    for key, value in rows:
        console.say(f"{key:<{width}}  {printable(value)}")


def _flat(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in facts.items():
        rows += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return rows


def _spoken(key: str, value: Any) -> str:
    if key == "shards":
        return "all" if value is None else ", ".join(f"{first} to {stop - 1}" for first, stop in value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int) and "bytes" in key:
        return f"{console.human_bytes(value)} ({value:,})"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def verify(
    path: Path | str, *, deep: bool, complete: bool, quiet: bool, values: bool = False
) -> VerifyReport:
    """Check a store, with a bar over the bytes."""
    with console.progress_bar("verify", "B", quiet=quiet) as advance:
        return verify_store(path, deep=deep, complete=complete, progress=advance, values=values)


def report_json(report: VerifyReport) -> dict[str, Any]:
    """The report as `verify --json` prints it."""
    return {
        "ok": report.ok,
        "state": report.state,
        "complete": report.complete,
        "deep": report.deep,
        "values": report.values,
        "finished_shards": report.finished_shards,
        "num_shards": report.num_shards,
        "lost_shards": list(report.lost_shards),
        "shards_at_work": list(report.shards_at_work),
        "writers_gone": report.writers_gone,
        "faults": [
            {
                "where": fault.where,
                "rule": fault.rule,
                "detail": fault.detail,
                "remedy": fault.remedy,
                "shard": fault.shard,
            }
            for fault in report.faults
        ],
        "notes": [{"where": note.where, "text": note.text} for note in report.notes],
        "repair": None if report.ok else plan_repair(report).model_dump(mode="json"),
    }


def show_report(path: Path | str, report: VerifyReport) -> None:
    """Faults by what mends them, each on a line of its own; notes; the verdict and what to do."""
    for remedy, title in _TITLES.items():
        faults = [fault for fault in report.faults if fault.remedy == remedy]
        if faults:
            console.say(f"{title} ({len(faults)}):")
        for fault in faults:
            console.say(f"  {printable(str(fault))}")
    for note in report.notes:
        console.say(f"note: {printable(str(note))}")
    verdict = "sound" if report.ok else f"{len(report.faults)} fault(s)"
    console.say(f"{path}: {verdict}, {_spoken_state(report)}")
    plan = plan_repair(report)
    if plan.shards or plan.records or plan.metadata or plan.tables or plan.delete:
        console.say(_repair_hint(path, plan))
        if report.manifest is not None and report.manifest.shards is not None:
            console.say(
                f"without the teacher, a partial copy is mended by `activault pull SOURCE {path} --deep`"
            )


def _spoken_state(report: VerifyReport) -> str:
    spoken = f"{report.finished_shards} of {report.num_shards} shards finished"
    if report.shards_at_work:
        who = "left by a writer that was killed" if report.writers_gone else "being written"
        spoken += f", {len(report.shards_at_work)} {who}"
    if report.lost_shards:
        spoken += f", the records of {len(report.lost_shards)} lost"
    return spoken + (", complete" if report.complete else ", not complete")


def _repair_hint(path: Path | str, plan: RepairPlan) -> str:
    again = f"extracts {plan.num_rows} row(s) again" if plan.needs_images else "needs no image"
    level = "--values" if plan.values else "--deep"
    if open_storage(path).folder is None:
        # A shard in a bucket that lacks a file is computed again, and every byte of it looked at.
        return f"repair: no plan is carried out behind a URL; do what each line above says; it {again}"
    first = f"`activault verify {path} {level} --repair-plan plan.json`"
    return f"repair: {first}, then the same `activault extract` with --repair plan.json; it {again}" + (
        "" if plan.deep else " (more, if --deep finds more)"
    )


def printable(text: str) -> str:
    """`text` without what would steer a terminal: a store may come from anyone."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def require_sound(path: Path | str, *, quiet: bool) -> None:
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
