"""How the tests of stores that grow run, what they add, and the same rows by one plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from activault.extract.backbone import Backbone
from activault.extract.capture import capture
from activault.extract.growth_rows import places_of
from activault.extract.images import ImageFolder
from activault.extract.run import ExtractOptions, row_decoder
from activault.store import (
    create_store,
    open_store,
    plan_samples,
)

RUN: dict[str, Any] = {"device": "cpu", "batch_size": 1, "workers": 2}
"""A batch of one: what a row becomes does not depend on which rows are beside it."""


def add(folder: Path, name: str, content: bytes) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def at_once(path: Path, grown: Path, folder: Path, backbone: Backbone) -> str:
    """`arrays_digest` of the same rows in the same order, extracted by one plan with the same steps."""
    store, source = open_store(grown), ImageFolder(folder)
    keys, labels = map(str, store.samples["key"].to_pylist()), store.samples["label"].to_pylist()
    samples = plan_samples(list(keys), labels, "photos")
    options = ExtractOptions(teacher="test_vit", **RUN)
    with create_store(path, store.manifest, samples, {}) as writer:
        decode = row_decoder(source, places_of(samples, source), backbone, options)
        capture(writer, backbone, decode, batch_size=1, workers=2)
        writer.complete()
    reference = open_store(path)
    for array in [(layer, kind) for layer in store.layers for kind in store.kinds]:
        assert reference.statistics(*array) == store.statistics(*array)
    assert reference.samples.drop(["source"]).equals(store.samples.drop(["source"]))
    return reference.arrays_digest
