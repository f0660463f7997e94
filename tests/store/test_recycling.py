"""Memory comes back when nobody looks at it any more, and not before."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch

from activault.store import ActivationLoader, Store
from activault.store.recycling import Recycler, ThreadSpace

FLOAT32 = np.dtype(np.float32)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_is_used_again_once_it_is_dropped() -> None:
    memory = Recycler(2)
    first = memory.array((4, 5), FLOAT32)
    place = address(first)
    second = memory.array((4, 5), FLOAT32)
    assert address(second) != place
    del first
    assert address(memory.array((3, 5), FLOAT32)) == place
    assert address(memory.array((10, 5), FLOAT32)) not in (place, address(second))


def test_views_and_tensors_keep_it() -> None:
    memory = Recycler(2)
    array = memory.array((4, 5), FLOAT32)
    place = address(array)
    views = {
        "view": array[1:].reshape(-1)[2:],
        "tensor": torch.from_numpy(array)[2:],
        "other dtype": torch.from_numpy(array).view(torch.bfloat16)[:, ::2],
        "numpy of a tensor": torch.from_numpy(array)[3].numpy(),
        "storage": torch.from_numpy(array).untyped_storage(),
        "buffer": memoryview(array),
    }
    del array
    while views:
        assert address(memory.array((4, 5), FLOAT32)) != place, list(views)
        views.popitem()
    gc.collect()
    found = [memory.array((4, 5), FLOAT32) for _ in range(3)]
    assert place in map(address, found)


def test_no_more_is_kept_than_is_said() -> None:
    memory = Recycler(2)
    arrays = [memory.array((8,), FLOAT32) for _ in range(5)]
    del arrays
    assert len(memory._free) == 2


def test_batches_that_are_kept_stay_as_they_were(store: Store) -> None:
    loader = ActivationLoader(store, layers=[0, 2], batch_size=5, pool_bytes=1)
    kept = [batch for _ in range(2) for batch in loader]
    for batch in kept:
        expected = torch.from_numpy(store.read(batch.rows.numpy(), [0, 2]))
        assert torch.equal(batch.tokens, expected)
    places = {batch.tokens.data_ptr() for batch in kept}
    assert len(places) == len(kept)
    del kept, batch
    assert {batch.tokens.data_ptr() for batch in loader} & places


def test_what_a_thread_leaves_behind_the_next_one_takes() -> None:
    space = ThreadSpace(Recycler(2))
    seen: list[int] = []

    def work() -> None:
        seen.append(space.decoded((100,), np.dtype(np.uint8)).ctypes.data)

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen[0] == seen[1]


@pytest.mark.parametrize("offset", [0, 1, 37, 63, 4095, 10**9 + 7])
@pytest.mark.parametrize("size", [1, 5000])
def test_encoded_bytes_begin_where_copying_is_quick(offset: int, size: int) -> None:
    found = ThreadSpace(Recycler(2)).encoded(size, offset)
    assert len(found) == size
    assert found.ctypes.data % 64 == 0
    assert (found.ctypes.data - offset) % 4096 >= 32 or found.ctypes.data % 4096 >= 2048
