"""What the teacher computes in: autocast, compiled blocks, forwards of one shape; what is recorded of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import InductorError

from activault.extract.arithmetic import FIXED_BATCH, Arithmetic, Forward, exact_arithmetic
from activault.extract.backbone import Backbone
from activault.extract.capture import Decoded, capture
from activault.extract.engines import CoreEngine
from activault.extract.run import ExtractOptions, extract
from activault.store import ConfigError, NonFiniteError, Outcome, StoreMismatchError, open_store

from .conftest import MakeFolder, changed
from .test_capture import NUM_ROWS, expected, good, pixels, plan, stored

INVARIANT = Arithmetic(batch_invariant=True)


def run(
    path: Path, teacher: Backbone, arithmetic: Arithmetic, shard_rows: int = 8, **options: object
) -> np.ndarray:
    writer = plan(path, teacher, shard_rows=shard_rows)
    capture(writer, teacher, good, **{"batch_size": 4, "workers": 2, **options}, arithmetic=arithmetic)
    return stored(path)


@pytest.fixture
def _rounded_products() -> Iterator[None]:
    """Torch as NVIDIA's containers start it: matrix products in TF32, on some CPUs in bfloat16."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("_rounded_products")
def test_matrix_products_are_exact_whatever_torch_was_set_to(
    tmp_path: Path, tiny: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set[tuple[str, bool]]()
    prepare = tiny.prepare

    def looked(batch: torch.Tensor) -> torch.Tensor:
        seen.add((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
        return prepare(batch)

    monkeypatch.setattr(tiny, "prepare", looked)
    run(tmp_path / "s.zarr", tiny, Arithmetic())
    assert seen == {("highest", False)}
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.usefixtures("_rounded_products")
def test_it_stays_exact_until_the_last_of_several_is_done() -> None:
    first, second = exact_arithmetic(), exact_arithmetic()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert torch.get_float32_matmul_precision() == "highest"
    second.__exit__(None, None, None)
    assert torch.get_float32_matmul_precision() == "high"


def test_engines_at_once_have_all_threads_and_give_them_back(tmp_path: Path, tiny: Backbone) -> None:
    """The second one's thread finds the number that the first one's have set."""
    torch.set_num_threads(3)
    manifest = plan(tmp_path / "s.zarr", tiny).manifest
    first, second = (CoreEngine(Forward(tiny, Arithmetic(), [6]), manifest, 4) for _ in range(2))

    def in_a_new_thread() -> int:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(torch.get_num_threads).result()

    with first:
        assert in_a_new_thread() == 1
        with ThreadPoolExecutor(1) as pool:
            pool.submit(second.__enter__).result()
        assert second.num_threads == 3
    second.__exit__()
    assert in_a_new_thread() == 3


@pytest.mark.parametrize("autocast", ["bfloat16", "float16"])
def test_autocast_is_over_the_blocks_and_layers_stay_as_they_are_stored(
    tmp_path: Path, tiny: Backbone, autocast: str
) -> None:
    found = run(tmp_path / "s.zarr", tiny, Arithmetic(autocast=autocast))
    exact = expected(tiny, range(NUM_ROWS), 6)
    assert np.array_equal(found[:, 0], expected(tiny, range(NUM_ROWS), 0))  # the embedding is exact
    error = np.abs(found[:, 2] - exact).max() / np.abs(exact).max()
    assert 1e-6 < error < 0.03


def test_a_block_that_overflows_under_autocast_is_refused_by_name(tmp_path: Path, tiny: Backbone) -> None:
    writer = plan(tmp_path / "s.zarr", tiny)
    weights = tiny.vit.blocks[1].mlp.fc2.weight
    kept = weights.clone()
    try:
        weights *= 1e6
        with pytest.raises(NonFiniteError, match=r"row 0 \(0\) holds -?(inf|nan) in layer 2, "):
            capture(writer, tiny, good, batch_size=8, workers=1, arithmetic=Arithmetic(autocast="float16"))
    finally:
        weights.copy_(kept)


def test_what_a_device_cannot_autocast_to_is_refused(tiny: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    # Torch warns and goes on in float32, which nobody would see in the store.
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    with pytest.raises(ConfigError, match="the device cpu cannot autocast to float16"):
        Forward(tiny, Arithmetic(autocast="float16"), [0])


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_blocks_give_the_same_layers_up_to_rounding(
    tmp_path: Path, tiny: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With more, torch starts processes that import it again, for kernels that no CPU has.
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)
    try:
        found = run(tmp_path / "s.zarr", tiny, Arithmetic(compile=True), batch_size=5)
    finally:
        torch._dynamo.reset()
    for place, layer in enumerate((0, 2, 6)):
        np.testing.assert_allclose(found[:, place], expected(tiny, range(NUM_ROWS), layer), atol=2e-5)
    assert type(tiny.blocks[0]).__name__ != "OptimizedModule"  # the teacher itself is as it was


@pytest.mark.parametrize(
    "error", [TorchDynamoException("no g++\nmore"), InductorError(OSError("no g++"), None)]
)
def test_a_missing_compiler_is_a_message(
    tmp_path: Path, tiny: Backbone, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(_: object) -> object:
        def run(_: object) -> object:
            raise error

        return run

    monkeypatch.setattr(torch, "compile", fails)
    with pytest.raises(ConfigError, match=r"compiling the teacher's blocks failed \(.*no g\+\+.*--compile"):
        run(tmp_path / "s.zarr", tiny, Arithmetic(compile=True))
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("arithmetic", [Arithmetic(), INVARIANT], ids=["default", "invariant"])
def test_values_depend_neither_on_batch_size_nor_on_rows_a_shard(
    tmp_path: Path, tiny: Backbone, arithmetic: Arithmetic
) -> None:
    """On a CPU also by default (measured: see docs/extracting.md); under the switch everywhere."""
    digests = set()
    for batch_size, shard_rows in ((1, 8), (3, 8), (8, 4), (64, 12), (64, 24)):
        path = tmp_path / f"{batch_size}-{shard_rows}.zarr"
        run(path, tiny, arithmetic, shard_rows, batch_size=batch_size)
        digests.add(open_store(path).arrays_digest)
    assert len(digests) == 1


def test_forwards_have_one_shape_and_rows_their_place_whatever_is_asked_for(
    tmp_path: Path, tiny: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it holds on a GPU too, where other shapes are computed by other kernels."""
    seen: list[torch.Tensor] = []
    prepare = tiny.prepare
    monkeypatch.setattr(tiny, "prepare", lambda batch: seen.append(batch.clone()) or prepare(batch))

    def with_bad(row: int) -> Decoded:
        bad = Decoded(outcome=Outcome(status="empty", reason=""), pixels=None)
        return bad if row in (1, 2, 17) else good(row)

    for batch_size, shard_rows in ((1, 8), (64, 12)):
        seen.clear()
        writer = plan(tmp_path / f"{batch_size}.zarr", tiny, shard_rows=shard_rows)
        capture(writer, tiny, with_bad, batch_size=batch_size, workers=1, arithmetic=INVARIANT)
        found = dict[int, int]()
        for batch in seen:
            assert batch.shape == (FIXED_BATCH, 32, 32, 3)
            for place in range(FIXED_BATCH):
                if grey := int(batch[place, 0, 0, 0]):
                    found[grey // 3] = place
        assert found == {
            row: row % FIXED_BATCH for row in range(1, NUM_ROWS) if with_bad(row).pixels is not None
        }


def test_bad_images_change_no_other_row(tmp_path: Path, tiny: Backbone) -> None:
    def with_bad(row: int) -> Decoded:
        return Decoded(outcome=Outcome(status="empty", reason=""), pixels=None) if row % 5 == 1 else good(row)

    for name, decode in (("all", good), ("some", with_bad)):
        writer = plan(tmp_path / f"{name}.zarr", tiny)
        capture(writer, tiny, decode, batch_size=8, workers=1, arithmetic=INVARIANT)
    some = stored(tmp_path / "some.zarr")
    kept = [row for row in range(NUM_ROWS) if row % 5 != 1]
    np.testing.assert_array_equal(some[kept], stored(tmp_path / "all.zarr")[kept])
    assert np.isnan(some[1]).all()
    assert pixels(1).any()


def test_what_is_not_the_default_is_recorded_and_another_one_is_refused(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    folder = make_folder(5)
    chosen = changed(options, autocast="bfloat16", batch_invariant=True)
    extract(folder, tmp_path / "s.zarr", chosen)
    recorded = dict(open_store(tmp_path / "s.zarr").manifest.details)
    assert (recorded["autocast"], recorded["batch_invariant"]) == ("bfloat16", FIXED_BATCH)
    assert "compile" not in recorded
    assert extract(folder, tmp_path / "s.zarr", chosen).num_new == 0
    with pytest.raises(
        StoreMismatchError, match=r"'bfloat16' there and 'off' here; .* with --autocast bfloat16$"
    ):
        extract(folder, tmp_path / "s.zarr", changed(chosen, autocast="off"))
    extract(folder, tmp_path / "plain.zarr", options)
    assert not {"autocast", "compile", "batch_invariant"} & set(
        dict(open_store(tmp_path / "plain.zarr").manifest.details)
    )
    with pytest.raises(
        StoreMismatchError,
        match=r"is False there and True here; .* there without --batch-invariant$",
    ):
        extract(folder, tmp_path / "plain.zarr", changed(options, batch_invariant=True))
