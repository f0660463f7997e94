"""Arrays as dask arrays: blocks of a shard, read when they are computed, wherever that is."""

from __future__ import annotations

import pickle
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from activault.store import ConfigError, IncompleteStoreError, MissingExtraError, Store
from activault.store.dask_arrays import dask_array

from .conftest import Plan, make_manifest


@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
def test_values_are_those_that_are_read(written: Plan, store: Store, scheduler: str) -> None:
    array = store.dask("patches", layer=2)
    assert (array.shape, array.dtype, array.chunks[0]) == ((50, 6, 8), np.float32, (16, 16, 16, 2))
    found = array.compute(scheduler=scheduler, num_workers=2)
    assert np.array_equal(found, written.stored[:, 1, 3:], equal_nan=True)
    mean = array[:7, 0].mean(axis=0).compute(scheduler="synchronous")
    np.testing.assert_allclose(mean, written.stored[:7, 1, 3].mean(axis=0), rtol=1e-5)


def test_nothing_is_read_before_it_is_computed(plan: Plan) -> None:
    array = plan.write([0]).dask("cls", 0)
    assert array[:16].compute(scheduler="synchronous").shape == (16, 1, 8)
    with pytest.raises(IncompleteStoreError, match=r"rows 16 to 31 are not written yet \(shard 1"):
        array[:17].compute(scheduler="synchronous")


def test_a_process_opens_a_store_once(store: Store) -> None:
    array = store.dask("cls", 0)
    graph = dict(array.__dask_graph__())
    sources = [pickle.loads(pickle.dumps(task)) for task in graph.values()]
    stores = {
        id(part.store) for task in sources for part in getattr(task, "args", task) if hasattr(part, "store")
    }
    assert len(graph) == 4
    assert len(stores) == 1


def test_what_is_not_there_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="layers are some of"):
        store.dask("cls", 1)
    with pytest.raises(ConfigError, match="token kinds here are cls, registers, patches; got 'words'"):
        store.dask("words", 0)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "dask.array", None)
    with pytest.raises(MissingExtraError, match=r"needs dask; pip install 'activault\[all\]'"):
        store.dask("cls", 0)


def test_more_shards_than_a_graph_holds_are_refused() -> None:
    claim = SimpleNamespace(manifest=make_manifest(num_rows=2**40), path="a.zarr", digest="0")
    with pytest.raises(
        ConfigError, match=r"at most 131072 shards; this store has 68719476736; read its rows"
    ):
        dask_array(claim, "cls", 0)  # type: ignore[arg-type]
