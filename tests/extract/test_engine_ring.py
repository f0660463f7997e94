"""The ring between a device and a shard: nothing is read before its copy has landed, nothing is overwritten.

The device is a double whose copies end late, in a thread of their own, as those of a GPU do: until then the
target holds what stood there before. Images say in their pixels which row they are of.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor

from activault.extract import capture as capture_module
from activault.extract import engines
from activault.extract.arithmetic import Arithmetic, Forward
from activault.extract.backbone import Backbone
from activault.extract.capture import Decoded, capture
from activault.extract.engines import DeviceEngine
from activault.extract.ring import Ring, Staging
from activault.extract.stalls import StallTimes
from activault.extract.transfers import BlockingTransfer, CudaTransfer
from activault.store import ConfigError, NonFiniteError, Outcome, open_store

from .test_capture import NUM_ROWS, good, plan, stored

DELAY = 0.003


class LateLanding:
    def __init__(self, done: Future[None], honest: bool) -> None:
        self._done = done
        self._honest = honest

    def wait(self) -> float:
        if self._honest:
            self._done.result()
        return 0.0


class LateTransfer:
    """Copies that end `DELAY` after they are asked for, one after the other in each direction."""

    def __init__(self, honest: bool = True) -> None:
        self._honest = honest
        self._threads = {way: ThreadPoolExecutor(1, f"late {way}") for way in ("up", "down")}
        self.under_way = 0
        self.most = 0
        self._guard = threading.Lock()

    def host_memory(self, num_bytes: int) -> Tensor:
        return torch.full((num_bytes,), 0xAB, dtype=torch.uint8)

    def down(self, source: Tensor, target: Tensor) -> LateLanding:
        with self._guard:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        return self._late("down", source, target)

    def up(self, source: Tensor) -> tuple[Tensor, LateLanding]:
        # The device's own work waits for its copy, as one stream waits for another.
        there = torch.empty_like(source)
        landing = self._late("up", source, there)
        landing._done.result()
        return there, landing

    def _late(self, way: str, source: Tensor, target: Tensor) -> LateLanding:
        def copy() -> None:
            time.sleep(DELAY)
            with torch.inference_mode():  # a mode of the thread's
                target.copy_(source)
            with self._guard:
                self.under_way -= way == "down"

        return LateLanding(self._threads[way].submit(copy), self._honest)

    def close(self) -> None:
        for thread in self._threads.values():
            thread.shutdown()


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[LateTransfer]:
    """`capture` on a device whose copies are late."""
    yield (transfer := use(monkeypatch, LateTransfer()))
    transfer.close()


def use(monkeypatch: pytest.MonkeyPatch, transfer: LateTransfer) -> LateTransfer:
    def engine_for(forward: Forward, *arguments: object) -> DeviceEngine:
        return DeviceEngine(forward, *arguments, transfer=transfer)  # type: ignore[arg-type]

    monkeypatch.setattr(capture_module, "engine_for", engine_for)
    return transfer


def with_bad(row: int) -> Decoded:
    if row % 7 in (2, 3) or row == NUM_ROWS - 1:
        return Decoded(outcome=Outcome(status="truncated", reason="the data ends early"), pixels=None)
    return good(row)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("batch_size", [1, 3, 5])
def test_a_late_device_stores_what_the_cpu_stores(
    tmp_path: Path,
    tiny: Backbone,
    late: LateTransfer,
    monkeypatch: pytest.MonkeyPatch,
    batch_size: int,
    dtype: str,
) -> None:
    monkeypatch.setattr(engines, "_RING_SLOTS", (3, 3))
    capture(plan(tmp_path / "late.zarr", tiny, dtype=dtype), tiny, with_bad, batch_size=batch_size, workers=2)
    monkeypatch.setattr(capture_module, "engine_for", engines.engine_for)
    capture(plan(tmp_path / "cpu.zarr", tiny, dtype=dtype), tiny, with_bad, batch_size=batch_size, workers=2)
    assert late.most <= 3
    assert open_store(tmp_path / "late.zarr").num_bad == sum(
        with_bad(row).pixels is None for row in range(NUM_ROWS)
    )
    np.testing.assert_array_equal(stored(tmp_path / "late.zarr"), stored(tmp_path / "cpu.zarr"))


def test_every_row_holds_the_number_that_its_pixels_say(
    tmp_path: Path, tiny: Backbone, late: LateTransfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect of the reference: copies from the device are read before they are over."""
    monkeypatch.setattr(type(tiny), "layers", numbered_layers(tiny))
    capture(plan(tmp_path / "s.zarr", tiny), tiny, with_bad, batch_size=2, workers=3)
    found = stored(tmp_path / "s.zarr")
    for row in range(NUM_ROWS):
        if with_bad(row).pixels is not None:
            for place, layer in enumerate((0, 2, 6)):
                assert (found[row, place] == 3 * row + 1000 * layer).all(), (row, layer)


def numbered_layers(teacher: Backbone) -> Callable[..., object]:
    """Layers whose every value is the image's grey and the layer's number: exact, and unlike any other."""
    shape = (teacher.layout.num_tokens, teacher.dim)

    def layers(self: Backbone, images: Tensor, wanted: object, blocks: object = ()) -> object:
        grey = (images * self.std + self.mean).mul(255).mean(dim=(1, 2, 3)).round()
        for layer in (0, 2, 6):
            yield layer, (grey + 1000 * layer)[:, None, None].expand(-1, *shape).clone()

    return layers


def test_the_double_shows_a_copy_that_is_read_too_early(
    tmp_path: Path, tiny: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that the tests above would fail if the ring did not wait.
    use(monkeypatch, LateTransfer(honest=False))
    monkeypatch.setattr(type(tiny), "layers", numbered_layers(tiny))
    capture(plan(tmp_path / "s.zarr", tiny), tiny, good, batch_size=2, workers=2)
    wanted = np.array([[3 * row + 1000 * layer for layer in (0, 2, 6)] for row in range(NUM_ROWS)])
    assert not np.array_equal(stored(tmp_path / "s.zarr")[:, :, 0, 0], wanted)


def test_an_overflow_of_float16_is_told_with_the_value_it_was(
    tmp_path: Path, tiny: Backbone, late: LateTransfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbered = numbered_layers(tiny)

    def large(self: Backbone, *arguments: object) -> object:
        return ((layer, tokens + 70_000 * (layer == 6)) for layer, tokens in numbered(self, *arguments))

    monkeypatch.setattr(type(tiny), "layers", large)
    with pytest.raises(NonFiniteError, match=r"row 0 \(0\) holds 76000 in layer 6, .*choose bfloat16"):
        capture(plan(tmp_path / "s.zarr", tiny, dtype="float16"), tiny, good, batch_size=4, workers=2)


def test_a_failing_delivery_is_its_future_s_and_gives_the_slot_back() -> None:
    ring = Ring(BlockingTransfer(torch.device("cpu")), slot_bytes=16, num_slots=1, stalls=StallTimes())

    def broken(_: Tensor) -> None:
        raise OSError("gone")

    failed = ring.send(torch.zeros(4), broken)
    seen: list[list[float]] = []
    sent = ring.send(torch.arange(2.0), lambda values: seen.append(values.tolist()))
    ring.close()
    with pytest.raises(OSError, match="gone"):
        failed.result()
    assert sent.result() is None
    assert seen == [[0.0, 1.0]]


def test_a_tensor_is_given_up_when_its_copy_has_landed() -> None:
    """And not when the copy is delivered: a device's memory is dearer."""
    ring = Ring(BlockingTransfer(torch.device("cpu")), slot_bytes=16, num_slots=1, stalls=StallTimes())
    sent, alive = threading.Event(), list[bool]()

    def send() -> weakref.ref[Tensor]:
        tensor = torch.zeros(4)
        ring.send(tensor, lambda _: (sent.wait(10), alive.append(ref() is not None)))
        return weakref.ref(tensor)

    ref = send()
    sent.set()
    ring.close()
    assert alive == [False]


def test_nothing_is_asked_of_another_gpu_than_the_teachers(monkeypatch: pytest.MonkeyPatch) -> None:
    current, calls = [torch.device("cuda:0")], list[tuple[str, torch.device]]()

    @contextmanager
    def device(chosen: torch.device) -> Iterator[None]:
        before, current[0] = current[0], chosen
        yield
        current[0] = before

    def called(name: str, given: object = None) -> Callable[..., object]:
        return lambda *_, **__: (calls.append((name, current[0])), given)[1]

    monkeypatch.setattr(torch.cuda, "device", device)
    stream, begun, done = (
        Mock(spec=kind) for kind in (torch.cuda.Stream, torch.cuda.Event, torch.cuda.Event)
    )
    begun.elapsed_time, done.synchronize = called("time", 3000.0), called("wait")
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: done)
    monkeypatch.setattr(torch, "empty", called("memory", torch.zeros(8, dtype=torch.uint8)))
    transfer = CudaTransfer(torch.device("cuda:1"))
    transfer.host_memory(8)
    assert transfer._landing(stream, begun).wait() == 3.0
    assert calls == [(name, torch.device("cuda:1")) for name in ("memory", "wait", "time")]


def test_whoever_sends_waits_while_every_slot_is_in_use() -> None:
    ring = Ring(BlockingTransfer(torch.device("cpu")), slot_bytes=4, num_slots=2, stalls=StallTimes())
    go_on, sent = threading.Event(), list[float]()

    def send() -> None:
        for number in range(3):
            ring.send(
                torch.tensor([float(number)]), lambda values: (go_on.wait(10), sent.append(values.item()))
            )
            begun.append(number)

    begun: list[int] = []
    sender = threading.Thread(target=send)
    sender.start()
    end = time.monotonic() + 60
    while len(begun) < 2 and time.monotonic() < end:
        time.sleep(0.005)
    time.sleep(0.05)
    assert begun == [0, 1]
    go_on.set()
    sender.join(10)
    ring.close()
    assert sent == [0.0, 1.0, 2.0]


def test_images_that_are_on_their_way_are_not_overwritten() -> None:
    waited: list[int] = []

    class Watched(BlockingTransfer):
        def up(self, source: Tensor) -> tuple[Tensor, object]:  # type: ignore[override]
            number = int(source.flatten()[0])

            class Landing:
                def wait(self) -> float:
                    waited.append(number)
                    return 0.0

            return source.clone(), Landing()

    staging = Staging(Watched(torch.device("cpu")), (2, 1, 1, 3), num_slots=2)
    for number in range(4):

        def fill(images: np.ndarray, number: int = number) -> None:
            assert waited == list(range(max(0, number - 1)))
            images[:] = number

        assert staging.up(1, fill).unique().item() == number


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("MPS backend out of memory (MPS allocated")],
    ids=["cuda", "mps"],
)
def test_a_batch_that_the_device_has_no_memory_for_is_told(
    tmp_path: Path, tiny: Backbone, error: RuntimeError
) -> None:
    writer = plan(tmp_path / "s.zarr", tiny)
    forward = Forward(tiny, Arithmetic(), (0, 2, 6))

    def full(*_: object) -> object:
        raise error

    with DeviceEngine(forward, writer.manifest, 4) as engine:
        engine._layers = full  # type: ignore[method-assign, assignment]
        with pytest.raises(ConfigError, match=r"a forward of 1 images must fit .*--batch-size auto"):
            engine.put(writer.buffer(0), 0, [good(0).pixels])
