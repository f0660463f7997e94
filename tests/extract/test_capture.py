"""The engine: order, back-pressure, errors of every thread, and threads that stop."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from activault.extract.backbone import Backbone
from activault.extract.capture import Decoded, StallTimes, capture
from activault.store import (
    Manifest,
    NonFiniteError,
    Outcome,
    SourceInfo,
    StoreWriter,
    create_store,
    open_store,
    plan_samples,
)

NUM_ROWS = 22


def pixels(row: int) -> np.ndarray:
    return np.full((32, 32, 3), 3 * row, np.uint8)


def good(row: int) -> Decoded:
    return Decoded(outcome=Outcome(status="ok", width=32, height=32), pixels=pixels(row))


def plan(path: Path, teacher: Backbone, shard_rows: int = 8, dtype: str = "float32") -> StoreWriter:
    manifest = Manifest(
        num_rows=NUM_ROWS,
        layers=(0, 2, 6),
        kinds=teacher.layout.kinds,
        layout=teacher.layout,
        dtype=dtype,
        shard_rows=shard_rows,
        chunk_rows=4,
        teacher=teacher.info,
        preprocessing=teacher.preprocessing,
        source=SourceInfo(kind="arrays", name="test", fingerprint="0"),
        row_seed=0,
    )
    samples = plan_samples([str(row) for row in range(NUM_ROWS)], [None] * NUM_ROWS, "test")
    return create_store(path, manifest, samples, {})


def stored(path: Path) -> np.ndarray:
    return open_store(path).read(slice(0, NUM_ROWS), (0, 2, 6))


@torch.inference_mode()
def expected(teacher: Backbone, rows: range, layer: int) -> np.ndarray:
    batch = teacher.prepare(torch.from_numpy(np.stack([pixels(row) for row in rows])))
    return dict(teacher.layers(batch, [layer]))[layer].numpy()


def test_every_row_holds_its_own_image_whatever_order_decoding_ends_in(
    tmp_path: Path, tiny: Backbone
) -> None:
    def slow_for_some(row: int) -> Decoded:
        time.sleep(0.01 * (row % 3))
        return good(row)

    writer = plan(tmp_path / "s.zarr", tiny)
    capture(writer, tiny, slow_for_some, batch_size=3, workers=4)
    found = stored(tmp_path / "s.zarr")
    for row in range(NUM_ROWS):
        np.testing.assert_allclose(found[row, 0], expected(tiny, range(row, row + 1), 0)[0], atol=1e-5)
        np.testing.assert_allclose(found[row, 2], expected(tiny, range(row, row + 1), 6)[0], atol=1e-4)


def test_stored_layers_are_the_teachers_bit_for_bit(tmp_path: Path, tiny: Backbone) -> None:
    capture(plan(tmp_path / "s.zarr", tiny), tiny, good, batch_size=8, workers=2)
    found = stored(tmp_path / "s.zarr")
    for start in (0, 8, 16):
        rows = range(start, min(start + 8, NUM_ROWS))
        for place, layer in enumerate((0, 2, 6)):
            assert np.array_equal(found[rows.start : rows.stop, place], expected(tiny, rows, layer))


def test_bfloat16_is_rounded_to_nearest_even(tmp_path: Path, tiny: Backbone) -> None:
    capture(plan(tmp_path / "s.zarr", tiny, dtype="bfloat16"), tiny, good, batch_size=8, workers=2)
    exact = torch.from_numpy(expected(tiny, range(8), 6))
    assert np.array_equal(stored(tmp_path / "s.zarr")[:8, 2], exact.bfloat16().float().numpy())


def test_batches_end_at_a_shards_border(tmp_path: Path, tiny: Backbone) -> None:
    done: list[tuple[int, int]] = []
    writer = plan(tmp_path / "s.zarr", tiny)
    capture(writer, tiny, good, batch_size=5, workers=2, progress=lambda *at: done.append(at))
    assert done == [(5, 22), (8, 22), (13, 22), (16, 22), (21, 22), (22, 22)]


def test_one_shard_is_claimed_ahead_however_small_they_are(
    tmp_path: Path, tiny: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes then finds the others free."""
    writer, begun, claimed = plan(tmp_path / "s.zarr", tiny, shard_rows=4), list[int](), list[int]()
    claim, buffer = writer.claim, writer.buffer

    def counted(shard: int) -> bool:
        claimed.append(shard)
        assert len(claimed) <= len(begun) + 1
        return claim(shard)

    monkeypatch.setattr(writer, "claim", counted)
    monkeypatch.setattr(writer, "buffer", lambda shard: (begun.append(shard), buffer(shard))[1])
    capture(writer, tiny, good, batch_size=8, workers=2)
    assert claimed == begun == list(range(-(-NUM_ROWS // 4)))


def test_a_second_run_computes_the_unfinished_shards_alone(tmp_path: Path, tiny: Backbone) -> None:
    writer = plan(tmp_path / "s.zarr", tiny)
    capture(writer, tiny, good, batch_size=8, workers=2)
    (tmp_path / "s.zarr" / "shards" / "00001.json").unlink()
    decoded: list[int] = []
    done: list[tuple[int, int]] = []

    def watched(row: int) -> Decoded:
        decoded.append(row)
        return good(row)

    capture(writer, tiny, watched, batch_size=8, workers=1, progress=lambda *at: done.append(at))
    assert decoded == list(range(8, 16))
    assert done == [(22, 22)]


def test_runs_at_once_share_the_shards(tmp_path: Path, tiny: Backbone) -> None:
    decoded: list[int] = []

    def slow(row: int) -> Decoded:
        decoded.append(row)
        time.sleep(0.01)
        return good(row)

    def run(_: int) -> None:
        with plan(tmp_path / "s.zarr", tiny, shard_rows=4) as writer:
            capture(writer, tiny, slow, batch_size=2, workers=1)
            assert writer.unfinished == []  # also what the other one computed

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(2)))
    assert sorted(decoded) == list(range(NUM_ROWS))
    capture(plan(tmp_path / "alone.zarr", tiny, shard_rows=4), tiny, good, batch_size=2, workers=1)
    assert open_store(tmp_path / "s.zarr").digest == open_store(tmp_path / "alone.zarr").digest


def test_a_shard_whose_owner_gives_up_is_computed_by_the_one_that_waits(
    tmp_path: Path, tiny: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, writer = plan(tmp_path / "s.zarr", tiny), plan(tmp_path / "s.zarr", tiny)
    assert other.claim(1)
    monkeypatch.setattr(time, "sleep", lambda seconds: other.close())
    capture(writer, tiny, good, batch_size=8, workers=2)
    assert writer.unfinished == []


def test_claims_end_with_the_run_that_failed(tmp_path: Path, tiny: Backbone) -> None:
    def broken(row: int) -> Decoded:
        if row == 9:
            raise RuntimeError("broken")
        return good(row)

    with pytest.raises(RuntimeError, match="broken"), plan(tmp_path / "s.zarr", tiny) as writer:
        capture(writer, tiny, broken, batch_size=4, workers=1)
    assert not list((tmp_path / "s.zarr" / "shards").glob(".*.tmp"))
    assert open_store(tmp_path / "s.zarr").finished_rows.tolist() == list(range(8))


def test_bad_rows_are_kept_with_their_reason(tmp_path: Path, tiny: Backbone) -> None:
    def decode(row: int) -> Decoded:
        if row in (0, 3, 4, 7, *range(8, 16)):
            return Decoded(outcome=Outcome(status="truncated", reason="the data ends early"), pixels=None)
        return good(row)

    capture(plan(tmp_path / "s.zarr", tiny), tiny, decode, batch_size=4, workers=2)
    store, found = open_store(tmp_path / "s.zarr"), stored(tmp_path / "s.zarr")
    assert store.num_bad == 12
    assert store.samples["status"].to_pylist()[2:5] == ["ok", "truncated", "truncated"]
    bad = np.isnan(found).all(axis=(1, 2, 3))
    assert np.flatnonzero(bad).tolist() == [0, 3, 4, 7, *range(8, 16)]
    for row in (1, 2, 5, 6, 16):
        np.testing.assert_allclose(found[row, 0], expected(tiny, range(row, row + 1), 0)[0], atol=1e-5)


def our_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(("decode", "publish"))]


def test_a_decoders_error_reaches_the_caller_and_nothing_is_published(tmp_path: Path, tiny: Backbone) -> None:
    def decode(row: int) -> Decoded:
        if row == 5:
            raise RuntimeError("a bug at row 5")
        return good(row)

    writer = plan(tmp_path / "s.zarr", tiny)
    with pytest.raises(RuntimeError, match="a bug at row 5"):
        capture(writer, tiny, decode, batch_size=4, workers=2)
    assert not our_threads()
    assert writer.unfinished == [0, 1, 2]


def test_nan_from_the_teacher_is_an_error_and_earlier_shards_are_kept(
    tmp_path: Path, tiny: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = plan(tmp_path / "s.zarr", tiny)
    prepare, calls = tiny.prepare, iter(range(9))

    def broken(batch: torch.Tensor) -> torch.Tensor:
        return prepare(batch) * (float("nan") if next(calls) == 1 else 1.0)

    monkeypatch.setattr(tiny, "prepare", broken)
    with pytest.raises(NonFiniteError, match=r"row 8 \(8\) holds nan in layer 0, patches"):
        capture(writer, tiny, good, batch_size=8, workers=2)
    assert not our_threads()
    assert 0 not in writer.unfinished


def test_a_writers_error_is_raised_before_the_next_shard_is_full(
    tmp_path: Path, tiny: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = plan(tmp_path / "s.zarr", tiny)
    failed = threading.Event()

    def publish(*_: object) -> None:
        failed.set()
        raise OSError(28, "no space left")

    monkeypatch.setattr(writer, "publish", publish)
    done: list[int] = []

    def progress(now: int, _: int) -> None:
        done.append(now)
        if now > 8:
            failed.wait(10)
            time.sleep(0.05)

    with pytest.raises(OSError, match="no space left"):
        capture(writer, tiny, good, batch_size=1, workers=2, progress=progress)
    assert max(done) < 12
    assert not our_threads()


def test_the_last_shards_error_is_raised_too(
    tmp_path: Path, tiny: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = plan(tmp_path / "s.zarr", tiny, shard_rows=24)
    monkeypatch.setattr(writer, "publish", lambda *_: (_ for _ in ()).throw(OSError("gone")))
    with pytest.raises(OSError, match="gone"):
        capture(writer, tiny, good, batch_size=8, workers=2)


def test_decoding_waits_for_the_teacher_and_computing_for_the_writer(
    tmp_path: Path, tiny: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = plan(tmp_path / "s.zarr", tiny, shard_rows=4)
    publish, alive, most = writer.publish, 0, 0
    ahead: list[int] = []
    taken = 0

    def slow(*arguments: object) -> object:
        nonlocal alive, most
        alive += 1
        most = max(most, alive)
        time.sleep(0.05)
        alive -= 1
        return publish(*arguments)  # type: ignore[arg-type]

    def decode(row: int) -> Decoded:
        ahead.append(row - taken)
        return good(row)

    def progress(now: int, _: int) -> None:
        nonlocal taken
        taken = now

    monkeypatch.setattr(writer, "publish", slow)
    stalls = capture(writer, tiny, decode, batch_size=2, workers=2, progress=progress)
    assert most == 1
    # Ahead of the teacher, and two batches that it has and one that is not told of yet.
    assert max(ahead) <= 2 * 2 + 2 + 3 * 2
    assert stalls.write > 0.05
    assert sum(stalls.shares().values()) == pytest.approx(1.0)


def test_shares_of_nothing_are_nothing() -> None:
    assert StallTimes().shares() == {"decode": 0.0, "compute": 0.0, "copy": 0.0, "write": 0.0}
