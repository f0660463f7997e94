"""int8 stores from images: steps of seeded rows, chosen once, and the promise kept in every layer."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from activault.extract.arithmetic import Arithmetic, Autocast, Forward
from activault.extract.backbone import Backbone
from activault.extract.calibration import calibrate
from activault.extract.capture import Decoded, without_pixels
from activault.extract.decode import BadImage
from activault.extract.run import ExtractOptions, extract
from activault.store import (
    ConfigError,
    ImageSourceError,
    NonFiniteError,
    Outcome,
    StoreMismatchError,
    open_store,
)

from .conftest import changed


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """40 images of noise, of which one is broken."""
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(40):
        pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        image = Image.fromarray(pixels).resize((32, 32), Image.Resampling.BICUBIC)
        image.save(tmp_path / "photos" / f"{number:02d}.png")
    (tmp_path / "photos" / "07.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    return tmp_path / "photos"


@pytest.fixture
def int8(options: ExtractOptions) -> ExtractOptions:
    return changed(options, dtype="int8", shard_rows=16)


def test_every_layer_keeps_its_r2(
    photos: Path, tmp_path: Path, options: ExtractOptions, int8: ExtractOptions
) -> None:
    extract(photos, tmp_path / "exact.zarr", changed(options, dtype="float32"))
    extract(photos, tmp_path / "s.zarr", int8)
    store, exact = open_store(tmp_path / "s.zarr"), open_store(tmp_path / "exact.zarr")
    told = store.info()["quantisation"]
    for place, layer in enumerate(store.layers):
        values = exact.read(exact.valid_rows, [layer], "patches").astype(np.float64)
        found = store.read(exact.valid_rows, [layer], "patches")
        r2 = 1 - ((values - found) ** 2).sum() / ((values - values.mean((0, 1, 2))) ** 2).sum()
        assert r2 >= 0.999
        assert told[f"layer_{layer:02d}"]["r2"] == pytest.approx(r2, abs=1e-5)
        assert store.manifest.quantisation[place].variance == pytest.approx(
            values.var((0, 1, 2)).mean(), rel=1e-3
        )
    assert 0 < store.num_bytes < exact.num_bytes / 2


def test_steps_depend_neither_on_the_batch_size_nor_on_the_threads(
    photos: Path, tmp_path: Path, int8: ExtractOptions
) -> None:
    extract(photos, tmp_path / "a.zarr", int8)
    extract(photos, tmp_path / "b.zarr", changed(int8, batch_size=7, workers=1))
    manifests = [open_store(tmp_path / name).manifest for name in ("a.zarr", "b.zarr")]
    assert manifests[0].sha256() == manifests[1].sha256()


def test_steps_of_a_store_that_was_begun_are_kept(
    photos: Path, tmp_path: Path, int8: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract(photos, tmp_path / "s.zarr", changed(int8, license="CC0-1.0"))
    digest = open_store(tmp_path / "s.zarr").digest
    (tmp_path / "s.zarr" / "index.parquet").unlink()
    (tmp_path / "s.zarr" / "shards" / "00001.json").unlink()
    monkeypatch.setattr(
        "activault.extract.calibration.calibrate", lambda *_, **__: pytest.fail("calibrated again")
    )
    with pytest.raises(StoreMismatchError, match=r"layers is \(0, 6\) there and \(0, 1\) here"):
        extract(photos, tmp_path / "s.zarr", changed(int8, layers="0,1"))
    with pytest.raises(StoreMismatchError, match="license"):
        extract(photos, tmp_path / "s.zarr", changed(int8, license="MIT"))
    assert extract(photos, tmp_path / "s.zarr", int8).num_new == 16
    assert open_store(tmp_path / "s.zarr").digest == digest


def test_two_that_plan_at_once_agree(photos: Path, tmp_path: Path, int8: ExtractOptions) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            extract(photos, tmp_path / "s.zarr", int8)
        except BaseException as exc:  # noqa: BLE001
            failures.append(exc)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert open_store(tmp_path / "s.zarr").complete


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "int8", "tokens": "cls"}, "int8 is for patches, and tokens are cls; choose bfloat16"),
        ({"compression": "none"}, "bfloat16 takes 4 bytes a value without compression; choose float16"),
    ],
)
def test_what_does_not_go_together_is_refused(
    photos: Path, tmp_path: Path, options: ExtractOptions, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        extract(photos, tmp_path / "s.zarr", changed(options, **changes))
    assert not (tmp_path / "s.zarr").exists()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_options_reach_the_manifest(
    photos: Path, tmp_path: Path, options: ExtractOptions, dtype: str
) -> None:
    asked = changed(
        options, dtype=dtype, compression="none", license="CC-BY-4.0", citation="A. Person, 2026", limit=9
    )
    extract(photos, tmp_path / "s.zarr", asked)
    manifest = open_store(tmp_path / "s.zarr").manifest
    assert (manifest.dtype, manifest.compression) == (dtype, "none")
    assert (manifest.license, manifest.citation) == ("CC-BY-4.0", "A. Person, 2026")


def pixels_of(row: int) -> Decoded:
    if row % 3 == 0:
        bad = BadImage(status="empty", reason="no bytes", width=None, height=None)
        return without_pixels(bad)
    pixels = np.random.default_rng(row).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    return Decoded(outcome=Outcome(status="ok", width=32, height=32), pixels=pixels)


def test_bad_images_are_passed_over(tiny: Backbone) -> None:
    asked: list[int] = []

    def decode(row: int) -> Decoded:
        asked.append(row)
        return pixels_of(row)

    found = calibrate(
        tiny, decode, num_rows=1000, layers=[6, 2], layout=tiny.layout, seed=0, workers=2, most_rows=10
    )
    assert [len(quantisation.scale) for quantisation in found] == [64, 64]
    assert 10 < len(asked) <= 32
    assert sorted(asked) != list(range(len(asked)))
    with pytest.raises(ImageSourceError, match="none of the 1 images could be decoded; look at"):
        calibrate(tiny, decode, num_rows=1, layers=[2], layout=tiny.layout, seed=0, workers=2)


@pytest.mark.parametrize("autocast", ["off", "bfloat16"])
def test_steps_are_of_the_values_that_are_stored(tiny: Backbone, autocast: Autocast) -> None:
    """Under autocast those of autocast."""
    arithmetic = Arithmetic(autocast=autocast, compile=True)  # compiled code is not waited for
    (found,) = calibrate(
        tiny, pixels_of, num_rows=9, layers=[6], layout=tiny.layout, seed=0, workers=1, arithmetic=arithmetic
    )
    good = [decoded.pixels for row in range(9) if (decoded := pixels_of(row)).pixels is not None]
    with torch.inference_mode():
        forward = Forward(tiny, Arithmetic(autocast=autocast), [6])
        ((_, tokens),) = forward(torch.from_numpy(np.stack(good)))
    patches = tokens[:, tiny.layout.span("patches")].double().numpy()
    # Autocast moves it by 1e-4 or more; the order of the rows, which is another here, by last digits.
    assert found.variance == pytest.approx(patches.var((0, 1)).mean(), rel=1e-6)


def test_weights_that_give_nan_are_told_before_a_store_is_made(tiny: Backbone) -> None:
    broken = copy.deepcopy(tiny)
    with torch.no_grad():
        broken.blocks[1].mlp.fc1.bias[3] = torch.nan
    calibrate(broken, pixels_of, num_rows=9, layers=[1], layout=tiny.layout, seed=0, workers=1)
    with pytest.raises(NonFiniteError, match=r"layer 2, patches: .* holds nan; check the teacher's weights"):
        calibrate(broken, pixels_of, num_rows=9, layers=[1, 2], layout=tiny.layout, seed=0, workers=1)
