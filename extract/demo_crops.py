"""The demo's images: seeded square crops of the photographs that two wheels carry, as PNG files.

In: nothing but the installed `scikit-image` and `scikit-learn`. Out, at the default counts, 1,060 files:

    FOLDER/train/<photograph>/000.png ... 069.png     from one half of the photograph
    FOLDER/test/<photograph>/000.png ... 035.png      from the other half

The label is the photograph. Its halves are the two diagonal pairs of quadrants: no pixel of a test crop was
trained on, and both halves show something of the whole.
"""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from PIL import Image

from activault.store.errors import ConfigError, ImageSourceError, MissingExtraError

__all__ = ["PHOTOGRAPHS", "DemoImages", "photograph", "demo_images"]

_SKIMAGE = ("skimage", "data")
_SKLEARN = ("sklearn", "datasets/images")
PHOTOGRAPHS: dict[str, tuple[tuple[str, str], str]] = {
    "coffee": (_SKIMAGE, "coffee.png"),
    "astronaut": (_SKIMAGE, "astronaut.png"),
    "motorcycle": (_SKIMAGE, "motorcycle_left.png"),
    "hubble": (_SKIMAGE, "hubble_deep_field.jpg"),
    "retina": (_SKIMAGE, "retina.jpg"),
    "ihc": (_SKIMAGE, "ihc.png"),
    "rocket": (_SKIMAGE, "rocket.jpg"),
    "chelsea": (_SKIMAGE, "chelsea.png"),
    "flower": (_SKLEARN, "flower.jpg"),
    "china": (_SKLEARN, "china.jpg"),
}
"""Name of each photograph: the package and folder, and the file."""
_MARKER = "demo.json"


@dataclass(frozen=True, kw_only=True)
class DemoImages:
    """How the crops are made."""

    seed: int = 0
    """Seed of the crops' places and sizes."""
    num_train: int = 70
    """Crops of each photograph for training."""
    num_test: int = 36
    """Crops of each photograph for testing."""
    side: int = 84
    """Side of a crop after resizing, in pixels."""
    smallest: float = 0.5
    """Least side of a crop, as a share of a quadrant's shorter side."""

    def __post_init__(self) -> None:
        if min(self.num_train, self.num_test, self.side) < 1 or not 0 < self.smallest <= 1:
            raise ConfigError(f"counts and side are at least 1 and smallest is in (0, 1]; got {self}")


def demo_images(folder: Path, options: DemoImages | None = None) -> Path:
    """Make the crops in `folder`, whole or not at all; a finished folder of the same options is kept.

    Raises:
        MissingExtraError: a wheel that carries the photographs is not installed.
        ImageSourceError: the folder exists and holds something else, or cannot be written.
    """
    try:
        return _made(folder, options or DemoImages())
    except OSError as exc:
        raise ImageSourceError(
            f"the demo's images could not be made at {folder} ({exc.strerror or exc}); choose a folder that "
            "can be written"
        ) from exc


def _made(folder: Path, options: DemoImages) -> Path:
    wanted = json.dumps({"version": 1, **asdict(options)}, sort_keys=True) + "\n"
    if folder.exists():
        marker = folder / _MARKER
        if not marker.is_file():
            raise ImageSourceError(f"{folder} exists and is not a folder of demo images; give another place")
        expected = len(PHOTOGRAPHS) * (options.num_train + options.num_test)
        if marker.read_text() == wanted and sum(1 for _ in folder.rglob("*.png")) == expected:
            return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    for leftover in folder.parent.glob(f".{folder.name}.half-*"):
        shutil.rmtree(leftover)
    half = Path(tempfile.mkdtemp(prefix=f".{folder.name}.half-", dir=folder.parent))
    try:
        for name in PHOTOGRAPHS:
            _write_crops(name, half, options)
        (half / _MARKER).write_text(wanted)
        half.chmod(0o755)
        _put_in_place(half, folder)
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return folder


def _put_in_place(made: Path, folder: Path) -> None:
    """Rename the finished folder, after taking away crops of other options."""
    if folder.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.half-", dir=folder.parent))
        folder.rename(old / folder.name)
        made.rename(folder)
        shutil.rmtree(old)
    else:
        made.rename(folder)


def photograph(name: str) -> Image.Image:
    """One whole photograph, in RGB.

    Raises:
        MissingExtraError: the wheel that carries it is not installed.
    """
    (package, place), file = PHOTOGRAPHS[name]
    # Looked up without importing the package: that would take seconds, and only a file is wanted.
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise MissingExtraError(f"the demo's photographs are in {package}; pip install 'activault[demo]'")
    path = Path(found.submodule_search_locations[0]) / place / file
    if not path.is_file():
        raise MissingExtraError(f"{package} is installed without {place}/{file}; install its wheel again")
    with Image.open(path) as image:
        return image.convert("RGB")


def _write_crops(name: str, folder: Path, options: DemoImages) -> None:
    image = photograph(name)
    for split, half, count in zip(
        ("train", "test"), _halves(image), (options.num_train, options.num_test), strict=True
    ):
        place = folder / split / name
        place.mkdir(parents=True)
        # Python's own generator: its stream is the same in every version and on every machine.
        chance = random.Random(f"{options.seed}/{split}/{name}")  # noqa: S311
        for number in range(count):
            _crop(half[number % 2], options, chance).save(place / f"{number:03d}.png")


def _halves(image: Image.Image) -> tuple[list[Image.Image], list[Image.Image]]:
    """The quadrants of both diagonals."""
    (width, height), (middle, centre) = image.size, (image.width // 2, image.height // 2)
    boxes = (
        ((0, 0, middle, centre), (middle, centre, width, height)),
        ((middle, 0, width, centre), (0, centre, middle, height)),
    )
    falling, rising = ([image.crop(box) for box in diagonal] for diagonal in boxes)
    return falling, rising


def _crop(quadrant: Image.Image, options: DemoImages, chance: random.Random) -> Image.Image:
    shorter = min(quadrant.size)
    side = max(1, int(shorter * chance.uniform(options.smallest, 1.0)))
    left = int(chance.random() * (quadrant.width - side + 1))
    top = int(chance.random() * (quadrant.height - side + 1))
    box = (left, top, left + side, top + side)
    return quadrant.resize((options.side, options.side), Image.Resampling.BICUBIC, box=box)
