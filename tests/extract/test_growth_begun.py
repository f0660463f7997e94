"""An addition that was begun from one source is never finished from another."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from PIL import Image

from activault.extract.growth import append
from activault.extract.run import ExtractOptions, extract
from activault.store import StoreMismatchError, verify_store
from activault.store.growing import GROWING

from .conftest import MakeFolder, changed, colour
from .growing import RUN


def add_images(folder: Path, count: int, first_colour: int) -> Path:
    """Images of the same keys, in other colours each time."""
    (folder / "new").mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.new("RGB", (32, 32), colour(first_colour + number)).save(folder / "new" / f"{number:02d}.png")
    return folder


def begin(images: Path, store: Path) -> None:
    """Stop an addition when a shard of it is there."""

    def stop(done: int, _: int) -> None:
        until = time.monotonic() + 60
        while done >= 16 and not (store / GROWING / "shards/00001.json").exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        if done >= 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        append(images, store, stop, **RUN)


@pytest.fixture
def old(make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions) -> tuple[Path, Path]:
    """A folder of eight images, and a finished store of one full shard of them."""
    folder, path = make_folder(8), tmp_path / "s.zarr"
    extract(folder, path, changed(options, batch_size=1, order="kept"))
    return folder, path


def test_another_source_with_the_same_keys(old: tuple[Path, Path], tmp_path: Path) -> None:
    _, path = old
    begun, other = add_images(tmp_path / "begun", 20, 100), add_images(tmp_path / "other", 20, 200)
    same_name = shutil.copytree(other, tmp_path / "elsewhere" / "begun")
    begin(begun, path)
    for images, told in ((other, "from begun, which is not other"), (same_name, "which is not as it was")):
        with pytest.raises(StoreMismatchError, match=f"20 rows are being added to .* {told}; .* or remove"):
            append(images, path, **RUN)
    add_images(begun, 21, 100)  # one more is left for the next time
    grown = append(begun, path, **RUN)
    assert (grown.num_appended, grown.num_later, grown.store.num_rows) == (20, 1, 28)
    assert verify_store(path, values=True, complete=True).faults == ()
