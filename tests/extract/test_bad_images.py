"""Every kind of bad image, as a real file, through every source: a row with its status, or the right pixels.

The rules are those of `decode.py`; here they are held end to end, from the file to the store's table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from activault.extract.decode import MAX_SCANS, BadImage, GoodImage, decode_image
from activault.extract.options import ExtractOptions
from activault.extract.run import extract
from activault.extract.sources import open_source
from activault.store import open_store, verify_store

from .conftest import changed
from .make_sources import as_csv, as_parquet, as_tar

RNG = np.random.default_rng(5)
NOISE = RNG.integers(0, 256, (40, 60, 3), dtype=np.uint8)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def jpeg(**options: Any) -> bytes:
    return encoded(Image.fromarray(NOISE), "JPEG", quality=90, **options)


def exif_six() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return jpeg(exif=exif)


def bad_xmp() -> bytes:
    text = PngImagePlugin.PngInfo()
    text.add_itxt("XML:com.adobe.xmp", "<x:xmpmeta <<< not xml")
    return encoded(Image.fromarray(NOISE), "PNG", pnginfo=text)


def bad_exif() -> bytes:
    data = jpeg()
    block = b"Exif\0\0MM\0*\0\0\0\x08\xff\xff broken"
    return data[:2] + b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block + data[2:]


def palette_with_alpha() -> bytes:
    image = Image.fromarray(NOISE).quantize(16)
    return encoded(image, "PNG", transparency=bytes([0] * 8 + [255] * 8))


def animated() -> bytes:
    frames = [Image.fromarray(np.roll(NOISE, step, 0)) for step in range(3)]
    return encoded(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=40)


def many_scans() -> bytes:
    """A progressive JPEG whose last scan is there a thousand times over: minutes of work a megabyte."""
    data = jpeg(progressive=True)
    last = data[data.rfind(b"\xff\xda") : -2]
    return data[:-2] + last * 1000 + data[-2:]


def megapixels_100() -> bytes:
    return encoded(Image.new("1", (10_000, 10_000)), "PNG")


FILES: Mapping[str, tuple[Callable[[], bytes], str]] = {
    "whole.jpg": (jpeg, "ok"),
    "truncated.jpg": (lambda: jpeg()[:900], "truncated"),
    "empty.jpg": (lambda: b"", "empty"),
    "html.jpg": (lambda: b"<html>404</html>", "not-an-image"),
    "cmyk.jpg": (lambda: encoded(Image.fromarray(NOISE).convert("CMYK"), "JPEG"), "ok"),
    "deep.png": (lambda: encoded(Image.fromarray(NOISE[..., 0].astype(np.uint16) << 8), "PNG"), "ok"),
    "palette.png": (palette_with_alpha, "ok"),
    "animated.gif": (animated, "ok"),
    "turned.jpg": (exif_six, "ok"),
    "xmp.png": (bad_xmp, "ok"),
    "exif.jpg": (bad_exif, "ok"),
    "huge.png": (megapixels_100, "too-large"),
    "scans.jpg": (many_scans, "too-large"),
    "a.b.jpg": (lambda: encoded(Image.fromarray(NOISE[:20, :30]), "JPEG"), "ok"),
    "really-a-png.jpg": (lambda: encoded(Image.fromarray(NOISE), "PNG"), "ok"),
    "float.tif": (lambda: encoded(Image.fromarray(NOISE[..., 0].astype(np.float32)), "TIFF"), "unreadable"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bad") / "photos"
    (path / "class").mkdir(parents=True)
    for name, (make, _) in FILES.items():
        (path / "class" / name).write_bytes(make())
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTIVAULT_CACHE", str(tmp_path / "cache"))


MAKE: Mapping[str, Callable[[Path, Path], Path]] = {
    "folder": lambda folder, out: folder,
    "tar": lambda folder, out: as_tar(open_source(folder), out / "x.tar"),
    "parquet": lambda folder, out: as_parquet(open_source(folder), out / "x.parquet"),
    "table": lambda folder, out: as_csv(open_source(folder), folder.parent / "photos" / "list.csv"),
}


@pytest.mark.parametrize("kind", MAKE)
def test_each_keeps_its_row_with_a_status(
    folder: Path, tmp_path: Path, options: ExtractOptions, cache: None, kind: str
) -> None:
    path = MAKE[kind](folder, tmp_path)
    store_path = tmp_path / "s.zarr"
    began = time.monotonic()
    extract(path, store_path, changed(options, layers="6"))
    assert time.monotonic() - began < 60, "nothing hangs"
    store = open_store(store_path)
    found = {row["key"].rpartition("/")[2]: row for row in store.samples.to_pylist()}
    # In a tar a key ends at the first dot of the name, which is a.b.jpg's as well.
    named = {name if kind != "tar" else name.partition(".")[0]: name for name in FILES}
    assert {named[key]: row["status"] for key, row in found.items()} == {
        name: status for name, (_, status) in FILES.items()
    }
    for row in found.values():
        assert (row["reason"] is None) == (row["status"] == "ok")
        assert row["label"] == "class"
    assert verify_store(store_path, deep=True).ok
    values = store.read(slice(0, store.num_rows), [6])
    good = np.array([status == "ok" for status in store.samples["status"].to_pylist()])
    assert np.isfinite(values[good]).all()
    assert np.isnan(values[~good]).all()


def test_the_same_store_from_every_source(
    folder: Path, tmp_path: Path, options: ExtractOptions, cache: None
) -> None:
    digests = set()
    for kind, make in MAKE.items():
        store_path = tmp_path / f"{kind}.zarr"
        extract(make(folder, tmp_path), store_path, options)
        store = open_store(store_path)
        records = [json.loads(path.read_text()) for path in sorted((store_path / "shards").glob("*.json"))]
        digests.add((store.arrays_digest, *(record["images"] for record in records)))
    assert len(digests) == 1


def test_a_cap_on_pixels_is_part_of_the_store(folder: Path, tmp_path: Path, options: ExtractOptions) -> None:
    extract(folder, tmp_path / "s.zarr", changed(options, max_pixels=2399, max_bad="100%"))
    store = open_store(tmp_path / "s.zarr")
    assert dict(store.manifest.details)["max_pixels"] == 2399
    status = dict(zip(store.samples["key"].to_pylist(), store.samples["status"].to_pylist(), strict=True))
    assert (status["class/whole.jpg"], status["class/a.b.jpg"]) == ("too-large", "ok")


def orientations() -> list[np.ndarray]:
    """NOISE as each of EXIF's eight orientations asks it to be shown."""
    turned = NOISE.swapaxes(0, 1)
    return [
        *(NOISE, NOISE[:, ::-1], NOISE[::-1, ::-1], NOISE[::-1]),
        *(turned, turned[:, ::-1], turned[::-1, ::-1], turned[::-1]),
    ]


@pytest.mark.parametrize("number", range(1, 9))
def test_exif_orientation_on_request(number: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = number
    data = encoded(Image.fromarray(NOISE), "PNG", exif=exif)
    result = decode_image(data, orientation="exif")
    assert isinstance(result, GoodImage)
    assert np.array_equal(np.asarray(result.image), orientations()[number - 1])
    assert result.image.size == (result.width, result.height)
    stored = decode_image(data)
    assert isinstance(stored, GoodImage)
    assert np.array_equal(np.asarray(stored.image), NOISE)


@pytest.mark.parametrize("make", [jpeg, bad_exif, bad_xmp], ids=["none", "broken", "xmp"])
def test_an_image_without_a_sound_orientation_stays_as_it_is(make: Callable[[], bytes]) -> None:
    first, second = decode_image(make()), decode_image(make(), orientation="exif")
    assert isinstance(first, GoodImage)
    assert isinstance(second, GoodImage)
    assert np.array_equal(np.asarray(first.image), np.asarray(second.image))


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_an_orientation_that_is_none(value: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = value
    result = decode_image(encoded(Image.fromarray(NOISE), "PNG", exif=exif), orientation="exif")
    assert isinstance(result, GoodImage)
    assert (result.width, result.height) == (60, 40)


def test_the_orientation_is_part_of_the_store(folder: Path, tmp_path: Path, options: ExtractOptions) -> None:
    extract(folder, tmp_path / "s.zarr", changed(options, orientation="exif"))
    store = open_store(tmp_path / "s.zarr")
    assert store.manifest.preprocessing is not None
    assert store.manifest.preprocessing.orientation == "exif"
    sizes = {row["key"]: (row["width"], row["height"]) for row in store.samples.to_pylist()}
    assert (sizes["class/turned.jpg"], sizes["class/whole.jpg"]) == ((40, 60), (60, 40))


def test_scans_are_counted_before_they_are_decoded() -> None:
    began = time.monotonic()
    result = decode_image(many_scans())
    assert time.monotonic() - began < 5
    assert isinstance(result, BadImage)
    assert (result.status, result.width, result.height) == ("too-large", 60, 40)
    assert result.reason.endswith(f"scans, more than the cap of {MAX_SCANS}")
    assert isinstance(decode_image(jpeg(progressive=True)), GoodImage)
