"""`extract --append` and `--extend`: what was said in, and what came to the store on standard output."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from activault.store import ConfigError, open_store
from activault.store.growing_join import finish_join
from activault.store.places import as_place

from . import console, show, tasks
from .said import said
from .workers import as_worker

if TYPE_CHECKING:
    from activault.extract import GrowthSummary

__all__ = ["grow", "refuse_together"]

_OF_SOURCE: Final = frozenset(
    ("source", "image_root", "image_column", "path_column", "key_column", "label_column", "keys", "tar_index")
)


def grow(
    images: str,
    store: str,
    fields: Mapping[str, Any],
    *,
    rows: bool,
    worker: tuple[int | None, int | None],
    json: bool,
) -> int:
    """Add rows, or else layers and kinds, to a finished store.

    Args:
        images: where the images are.
        store: the store.
        fields: every field of `ExtractOptions`; those that were not said are the store's.
        rows: whether rows come.
        worker: rank and number of workers, where they were said.
        json: whether the summary is printed as JSON.
    """
    from activault.extract import ExtractOptions, append, extend

    names, asked = said(), dict[str, Any]()
    for name, value in fields.items():
        flags = {"source": _OF_SOURCE, "teacher_weights": {"no_teacher_weights"}}.get(name, {name})
        if names & flags:
            asked[name] = value
    run = {name: fields[name] for name in ("source", "device", "workers")}
    run["order"] = _order(store)
    options = as_worker(ExtractOptions(teacher="", **run), *worker, quiet=json)
    asked |= {name: getattr(options, name) for name in ("device", "workers", "rank", "world")}
    source = tasks.opened_source(images, options, quiet=json)
    with console.progress_bar("extract", "rows", quiet=json) as advance:
        summary = (append if rows else extend)(source, as_place(store), advance, **asked)
    if summary.known_elsewhere:
        console.warn(
            f"{summary.known_elsewhere:,} images were left out whose keys the store has from a source of "
            "another name; if they are other images, give them keys of their own (--keys place, --key-column)"
        )
    if json:
        console.print_json(dataclasses.asdict(summary))
    else:
        show.show_extraction(store, summary.store)
        console.out.print(f"  {'came':<7} {_came(summary, rows)}", soft_wrap=True)
    return 0


def _order(store: str) -> str:
    """The order in which the images of a store are read; a store that cannot grow is refused before them."""
    from activault.extract.growth_request import local_folder

    path = local_folder(store)
    finish_join(path)
    return "kept" if open_store(path).manifest.row_seed is None else "shuffled"


def _came(summary: GrowthSummary, rows: bool) -> str:
    """What came to the store, for people."""
    if rows:
        told = [f"{summary.num_appended:,} rows", f"{summary.num_known:,} images were there already"]
        if summary.num_later:
            told.append(f"{summary.num_later:,} are left for the next --append, as they came after its start")
        return "; ".join(told)
    layers = "layers " + ", ".join(map(str, summary.layers)) if summary.layers else ""
    kinds = "tokens " + ", ".join(summary.kinds) if summary.kinds else ""
    return "; ".join(filter(None, (layers, kinds))) or "nothing: all of it was there already"


def refuse_together(append: bool, extend: bool, repair: Path | None) -> None:
    """Refuse two of the three ways in which a store that is there is changed.

    Raises:
        ConfigError: they are asked for at once.
    """
    if append + extend + (repair is not None) > 1:
        raise ConfigError("--append, --extend and --repair are done one after the other; give one of them")
