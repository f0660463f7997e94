from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from activault.store import ConfigError, IncompleteStoreError, NonFiniteError, Outcome, StoreError, open_store
from activault.store import shard_encoding as encoding_module
from activault.store import writer as writer_module
from activault.store.errors import ShardBusyError

from .conftest import MakePlan, Plan


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_values_come_back_bit_for_bit(make_plan: MakePlan, dtype: str) -> None:
    plan = make_plan(dtype=dtype, bad_rows=(7, 20))
    read = plan.write().read(slice(None), plan.manifest.layers)
    assert np.array_equal(read.view(np.uint32), plan.stored.view(np.uint32))


def test_bit_patterns_may_be_written_directly(make_plan: MakePlan) -> None:
    from activault.store.codecs import round_to_bfloat16

    plan, other = make_plan(), make_plan("b.zarr")
    writer = other.open()
    for shard in writer.unfinished:
        buffer = writer.buffer(shard)
        for place, layer in enumerate(other.manifest.layers):
            values = other.values[buffer.rows.start : buffer.rows.stop, place]
            buffer.write(layer, 0, round_to_bfloat16(values))
        writer.publish(buffer, other.outcomes(buffer.rows))
    writer.complete()
    assert open_store(other.path).digest == plan.write().digest


def test_two_runs_have_the_same_digests(make_plan: MakePlan) -> None:
    first, second = make_plan().write(), make_plan("b.zarr").write()
    assert first.digest == second.digest
    assert first.arrays_digest == second.arrays_digest


def test_arrays_digest_depends_on_values_alone(make_plan: MakePlan) -> None:
    plan, renamed, changed = make_plan(), make_plan("b.zarr", row_seed=1), make_plan("c.zarr")
    changed.values[33, 1, 4, 5] += 1
    first = plan.write()
    assert renamed.write().arrays_digest == first.arrays_digest
    assert open_store(renamed.path).digest != first.digest
    assert changed.write().arrays_digest != first.arrays_digest


@pytest.mark.parametrize("num_writers", [1, 4])
def test_threads_may_publish_different_shards(make_plan: MakePlan, num_writers: int) -> None:
    plan = make_plan(num_rows=64, shard_rows=8)
    writers = [plan.open() for _ in range(num_writers)]
    shards = writers[0].unfinished
    threads = [
        threading.Thread(target=plan.publish, args=(writers[shard % num_writers], shard)) for shard in shards
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writers[0].complete()
    read = open_store(plan.path).read(slice(None), plan.manifest.layers)
    assert np.array_equal(read, plan.stored)
    assert open_store(plan.path).digest == make_plan("b.zarr", num_rows=64, shard_rows=8).write().digest


def test_one_owner_writes_a_shard(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = plan.open()
    inside, go_on = threading.Event(), threading.Event()
    original = encoding_module.write_shard_file

    def slow(*arguments: object) -> object:
        inside.set()
        assert go_on.wait(20)
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(encoding_module, "write_shard_file", slow)
    thread = threading.Thread(target=plan.publish, args=(writer, 1))
    thread.start()
    assert inside.wait(20)
    with pytest.raises(ShardBusyError, match="one owner writes a shard; shard 1 is being published"):
        plan.publish(writer, 1)
    go_on.set()
    thread.join()
    assert 1 not in writer.unfinished


@pytest.mark.parametrize(
    ("dtype", "value", "shown"),
    [
        ("bfloat16", np.nan, "nan"),
        ("bfloat16", -np.inf, "-inf"),
        ("bfloat16", 3.4e38, r"3.4e\+38"),
        ("float32", np.inf, "inf"),
    ],
)
def test_a_value_that_is_not_finite_is_refused(
    make_plan: MakePlan, dtype: str, value: float, shown: str
) -> None:
    plan = make_plan(dtype=dtype)
    plan.values[18, 1, 5, 3] = value
    writer = plan.open()
    message = rf"row 18 \(folder/018.jpg\) holds {shown} in layer 2, patches \(1 values\)"
    with pytest.raises(NonFiniteError, match=message):
        plan.publish(writer, 1)
    assert writer.unfinished == [0, 1, 2, 3]
    assert not (plan.path / "shards" / "00001.json").exists()


def test_bad_rows_may_hold_anything_and_become_fill(make_plan: MakePlan) -> None:
    plan = make_plan(bad_rows=(2,))
    plan.values[2] = np.inf
    store = plan.write()
    assert np.isnan(store.read([2], [0, 2, 4])).all()
    assert store.num_bad == 1
    assert 2 not in store.valid_rows


def test_statistics_leave_bad_rows_out(plan: Plan) -> None:
    store = plan.write()
    is_ok = ~np.isin(np.arange(50), [7, 20])
    patches = plan.stored[is_ok][:, 1, 3:].astype(np.float64).reshape(-1, 8)
    found = store.statistics(2, "patches")
    assert found.count == len(patches)
    np.testing.assert_allclose(found.mean, patches.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.var, patches.var(axis=0), rtol=1e-12)
    assert np.array_equal(found.absmax, np.abs(patches).max(axis=0))


def test_a_shard_needs_an_outcome_for_each_row(plan: Plan) -> None:
    writer = plan.open()
    with pytest.raises(ConfigError, match="shard 0 has 16 rows; got 1 outcomes"):
        writer.publish(writer.buffer(0), [Outcome(status="ok")])


def test_an_unfinished_store_is_not_completed(plan: Plan) -> None:
    plan.write([0, 2])
    with pytest.raises(IncompleteStoreError, match=r"2 of 4 are not \(first: 1\)"):
        plan.open().complete()


def test_completion_cut_short_is_done_again(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    from activault.store import completion

    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(completion, "write_index", killed)
        with pytest.raises(KeyboardInterrupt):
            plan.write()
    between = open_store(plan.path)
    assert not between.complete
    assert between.samples["status"].to_pylist().count("truncated") == 2
    store = plan.write()
    assert store.complete
    assert store.digest == between.digest


def test_completing_twice_changes_nothing(plan: Plan) -> None:
    plan.write()
    before = (plan.path / "index.parquet").read_bytes()
    plan.open().complete()
    assert (plan.path / "index.parquet").read_bytes() == before


def test_a_lost_file_makes_its_shard_unfinished_and_writing_it_again_mends_the_store(plan: Plan) -> None:
    store = plan.write()
    (plan.path / "layer_02" / "cls" / "c" / "1" / "0" / "0").unlink()
    writer = plan.open()
    assert writer.unfinished == [1]
    plan.publish(writer, 1)
    assert not open_store(plan.path).complete
    writer.complete()
    mended = open_store(plan.path)
    assert mended.digest == store.digest
    assert np.array_equal(mended.read(slice(None), [2]), plan.stored[:, 1:2], equal_nan=True)


def test_leftovers_are_collected_unless_another_writer_is_at_work(plan: Plan) -> None:
    writer = plan.open()
    folder = plan.path / "layer_00" / "cls" / "c" / "0" / "0"
    folder.mkdir(parents=True)
    leftovers = [folder / "0.abc.partial", plan.path / "shards" / ".00000.json.abc.tmp"]
    for file in leftovers:
        file.write_bytes(b"half")
    second = plan.open()
    writer.close()
    plan.open().close()
    assert all(file.exists() for file in leftovers)
    second.close()
    plan.open()
    assert not any(file.exists() for file in leftovers)


def test_a_file_left_by_a_killed_writer_is_not_merged_into(plan: Plan) -> None:
    file = plan.path / "layer_00" / "cls" / "c" / "3" / "0" / "0"
    plan.open()
    file.parent.mkdir(parents=True)
    file.write_bytes(b"not a shard at all")
    assert np.array_equal(plan.write().read(slice(None), [0]), plan.stored[:, :1], equal_nan=True)


def test_a_full_disk_is_told_with_the_remedy(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = plan.open()

    def full(*arguments: object) -> object:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(encoding_module, "write_shard_file", full)
        with pytest.raises(
            StoreError, match=r"could not be written \(No space left on device\); free at least"
        ):
            plan.publish(writer, 0)
    assert writer.unfinished == [0, 1, 2, 3]
    plan.publish(writer, 0)
    assert writer.unfinished == [1, 2, 3]


def test_shards_of_other_writers_are_looked_at_until_they_are_finished(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer_module, "_WAIT", 0.0)
    other, seen = plan.open(), list[list[int]]()
    assert other.claim(1)
    with plan.open() as writer:
        for wanted in writer.rounds(writer.unfinished):
            seen.append(list(wanted))
            for shard in wanted:
                if writer.claim(shard):
                    plan.publish(writer, shard)
            if len(seen) == 2:
                other.close()  # its owner dies
        assert writer.unfinished == []
    assert seen == [[0, 1, 2, 3], [1], [1]]
    (said,) = caplog.messages  # once
    assert said.startswith(f"waiting for shard 1 of {plan.path}, which process {os.getpid()} on ")
    assert said.endswith("taken over when that dies, or gives no sign of life for 120 s")


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("dtype", {"dtype": "float32"}),
        ("dtype", {"dtype": "int8"}),
        ("shard_rows", {"shard_rows": 8}),
        ("num_rows", {"num_rows": 44}),
        ("layers", {"layers": [0, 2]}),
        ("row_seed", {"row_seed": 1}),
    ],
    ids=str,
)
def test_a_buffer_of_another_store_is_refused(
    make_plan: MakePlan, plan: Plan, field: str, changes: dict[str, object]
) -> None:
    other = make_plan("b.zarr", **changes)
    with plan.open() as writer, other.open() as foreign:
        buffer = foreign.buffer(0)
        with pytest.raises(ConfigError, match=f"a buffer of its own store; {field} is .* in the buffer and"):
            writer.publish(buffer, other.outcomes(buffer.rows))
        assert writer.unfinished == [0, 1, 2, 3]


def test_a_buffer_of_the_same_store_opened_twice_is_taken(plan: Plan) -> None:
    with plan.open() as writer, plan.open() as second:
        buffer = second.buffer(0)
        for layer in plan.manifest.layers:
            buffer.write(layer, 0, np.zeros((16, 9, 8), np.float32))
        writer.publish(buffer, plan.outcomes(buffer.rows))
        assert writer.unfinished == [1, 2, 3]


@pytest.mark.parametrize("threads", [0, -3])
def test_a_shard_is_written_by_one_thread_or_more(plan: Plan, threads: int) -> None:
    with plan.open() as writer:
        buffer = writer.buffer(0)
        with pytest.raises(ConfigError, match=f"1 thread or more; got {threads}"):
            writer.publish(buffer, plan.outcomes(buffer.rows), threads=threads)


def test_path_may_be_text(plan: Plan) -> None:
    plan.write()
    assert open_store(str(plan.path)).digest == open_store(plan.path).digest
