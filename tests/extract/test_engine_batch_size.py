"""How many images a forward: what is asked for, kept small on a core, or found where more gain nothing."""

from __future__ import annotations

import pytest
import torch

from activault.extract import batch_size as batch_size_module
from activault.extract.arithmetic import FIXED_BATCH, Arithmetic, Forward
from activault.extract.backbone import Backbone
from activault.extract.batch_size import choose_batch_size, plateau
from activault.extract.engines import core_batch
from activault.extract.run import ExtractOptions, extract
from activault.store import ConfigError

from .conftest import MakeFolder, changed

SIZES = [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize(
    ("rates", "found", "tried"),
    [
        ([10, 19, 35, 60, 61, 61.5, 99], 8, 6),
        ([10, 20, 40, 80, 160, 320, 640], 64, 7),
        ([10, 9, 8, 7, 6, 5, 4], 1, 3),
        ([10, 19, None, 99, 99, 99, 99], 2, 2),
        ([10, 11, 10.9, 15, 15, 15, 15], 8, 6),
    ],
    ids=["plateau", "ever more", "ever less", "memory ends", "a dip"],
)
def test_the_smallest_size_near_the_best(rates: list[float | None], found: int, tried: int) -> None:
    asked = {size: None if rate is None else float(rate) for size, rate in zip(SIZES, rates, strict=True)}
    chosen = plateau(SIZES, lambda size: asked[size])
    assert chosen.num_images == found
    assert list(chosen.rates) == SIZES[:tried]


def test_a_device_that_holds_no_image_is_refused() -> None:
    with pytest.raises(ConfigError, match="a forward of one image must fit"):
        plateau(SIZES, lambda size: None)


@pytest.mark.parametrize(
    ("asked", "tokens", "images"), [(64, 257, 8), (4, 257, 4), (64, 5, 64), (64, 5000, 1)]
)
def test_a_core_gets_few_tokens_at_a_time(asked: int, tokens: int, images: int) -> None:
    assert core_batch(asked, tokens) == images


def test_a_fixed_shape_is_not_asked_for(tiny: Backbone) -> None:
    assert choose_batch_size("auto", tiny, Arithmetic(batch_invariant=True)).num_images == FIXED_BATCH


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("MPS backend out of memory (MPS allocated")],
    ids=["cuda", "mps"],
)
def test_auto_ends_where_the_device_is_full(
    tiny: Backbone, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    run_once = Forward.run_once

    def small(self: Forward, num_images: int) -> None:
        if num_images > 4:
            raise error
        run_once(self, num_images)

    monkeypatch.setattr(Forward, "run_once", small)
    monkeypatch.setattr(batch_size_module, "_LEAST_SECONDS", 0.01)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda _: None)
    monkeypatch.setattr(batch_size_module, "_on_cores", lambda _: False)
    assert max(choose_batch_size("auto", tiny, Arithmetic()).rates) <= 4


def test_auto_is_measured_and_told(
    make_folder: MakeFolder, tmp_path: object, options: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_size_module, "_LEAST_SECONDS", 0.01)
    folder = make_folder(6)
    summary = extract(folder, folder.parent / "s.zarr", changed(options, batch_size="auto"))
    assert summary.batch_size in summary.batch_rates
    assert torch.get_num_threads() == 1
    same = extract(folder, folder.parent / "t.zarr", options)
    assert same.batch_rates == {}
    assert same.batch_size == 4
    assert same.digest == summary.digest


def test_neither_a_number_nor_auto_is_refused(options: ExtractOptions) -> None:
    with pytest.raises(ConfigError, match="batch_size is at least 1; got 0"):
        changed(options, batch_size=0)
