"""The import law: images -> extract -> store -> train / analyze, jobs on top; third parties in rooms."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("analyze", "extract", "jobs", "store", "train")
FILES = sorted(path for room in ROOMS for path in (ROOT / room).glob("*.py"))

# What each room may import from the others, as prefixes of the dotted name.
ALLOWED = {
    "store": (),
    "extract": ("activault.store",),
    "train": ("activault.store",),
    "analyze": ("activault.store", "activault.train", "activault.extract.backbone"),
    "jobs": ("activault.store", "activault.extract", "activault.train", "activault.analyze"),
}

# Third parties that live in named places only; the other ones in EVERYWHERE.
PLACES = {
    "cyclopts": ("jobs/cli.py",),
    "dask": ("store/dask_arrays.py", "store/reader.py"),
    "huggingface_hub": ("store/hub.py",),
    "matplotlib": ("analyze/figures.py",),
    "numcodecs": ("store/",),
    "obstore": ("store/",),
    "onnx": ("extract/onnx_teacher.py",),
    "PIL": ("extract/",),
    "google_crc32c": ("store/",),
    "rich": ("jobs/",),
    "simplejpeg": ("extract/fast_jpeg.py",),
    "tensorboard": (),
    "timm": ("extract/architectures.py", "extract/backbone.py", "extract/fitting.py"),
    "wandb": ("train/wandb_watcher.py",),
    "xxhash": ("store/",),
    "zarr": ("store/",),
}
EVERYWHERE = {"jaxtyping", "numpy", "pyarrow", "pydantic", "safetensors", "torch"}


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every dotted name a file imports, relative ones spelled out, with the line."""
    room = path.parent.name
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield f"activault.{room}.{node.module or ''}".rstrip("."), node.lineno
            elif node.module == "activault":
                for alias in node.names:
                    yield f"activault.{alias.name}", node.lineno
            else:
                yield node.module or "", node.lineno


def covers(prefix: str, name: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_import_only_what_the_flow_allows(path: Path) -> None:
    room = path.parent.name
    allowed = (f"activault.{room}", *ALLOWED[room])
    broken = [
        f"{path.name}:{line} imports {name}"
        for name, line in imports(path)
        if covers("activault", name) and not any(covers(prefix, name) for prefix in allowed)
    ]
    assert not broken


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_third_parties_keep_to_their_place(path: Path) -> None:
    place = str(path.relative_to(ROOT))
    broken = []
    for name, line in imports(path):
        top = name.split(".")[0]
        if top in sys.stdlib_module_names or top in {"activault", ""}:
            continue
        rooms = PLACES.get(top, ("",) if top in EVERYWHERE else ())
        if not any(place.startswith(room) for room in rooms):
            broken.append(f"{path.name}:{line} imports {name}")
    assert not broken


def test_torch_enters_the_store_through_the_loader_alone() -> None:
    """The reader installs without torch; the others are the loader's own."""
    users = {
        path.name
        for path in (ROOT / "store").glob("*.py")
        for name, _ in imports(path)
        if covers("torch", name)
    }
    assert users == {"batches.py", "loader.py", "pools.py", "prefetch.py"}


def siblings(path: Path) -> set[str]:
    """Files of its own room that a file imports, wherever the import stands."""
    used: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            used |= {node.module} if node.module else {alias.name for alias in node.names}
    return used


@pytest.mark.parametrize("room", ROOMS)
def test_no_files_of_a_room_import_one_another_in_a_circle(room: str) -> None:
    """Also where an import stands in a function or is for types alone: such files are one idea in two."""
    left = {path.stem: siblings(path) for path in (ROOT / room).glob("*.py") if path.stem != "__init__"}
    while free := [name for name, used in left.items() if not used & left.keys()]:
        for name in free:
            del left[name]
    assert not left


def test_every_folder_is_flat_and_typed() -> None:
    """`packages` in pyproject.toml is explicit: a nested package would be left out of the wheel."""
    for room in ROOMS:
        assert (ROOT / room / "py.typed").is_file()
        assert not list((ROOT / room).glob("*/__init__.py"))
    assert not (ROOT / "activault").exists()


def test_the_law_catches_a_breach(tmp_path: Path) -> None:
    room = tmp_path / "train"
    room.mkdir()
    (room / "bad.py").write_text(
        "from activault.extract import backbone\nfrom . import raptor\nimport timm.layers\n"
    )
    found = [name for name, _ in imports(room / "bad.py")]
    assert found == ["activault.extract", "activault.train", "timm.layers"]
    assert not any(covers(prefix, found[0]) for prefix in ALLOWED["train"])
