"""The plain install, `pip install activault`: a reader without torch, which imports quickly.

The project alone is installed into a fresh environment from the package index (about 40 s on two cores; pip
keeps the wheels), and everything that the plain install promises is run in it, in processes of its own.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "assets" / "format1"
LEFT_OUT = ("torch", "timm", "PIL", "matplotlib", "dask", "pandas", "jaxtyping", "sklearn", "onnx")
LATER = ("zarr", "obstore", "numcodecs", "pyarrow", "rich", "asyncio", "importlib.metadata")
NOT_ON_IMPORT = (
    *LEFT_OUT,
    "activault.store.writer",
    "activault.store.verify",
    "activault.store.copying",
    "activault.store.publishing",
    *LATER,
)
READER = """
from activault.store import open_store, verify_store, Store
from activault.store.transfer import pull
from activault.store.merging import merge
Store.info
"""
"""The names of the promise: open_store, info, verify, pull and merge import in under half a second."""
IMPORT_SECONDS = 0.5
YARDSTICK = "import numpy, pyarrow, pydantic\nclass Model(pydantic.BaseModel): x: int"
"""How fast the machine is at importing; it has nothing of ours and takes as long as `READER` within 5 %."""
YARDSTICK_SECONDS = 0.4
"""Most on a machine of normal speed; on a slower or busier one `READER` may take a quarter more than it."""


def run(*command: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True, text=True, check=False, cwd=folder, env=environment, timeout=280,
    )  # fmt: skip


@pytest.fixture(scope="session")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the programs of an environment that has the project without any extra."""
    folder = tmp_path_factory.mktemp("light")
    source = folder / "source"
    source.mkdir()
    for name in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
    ):  # a copy: building leaves files beside the sources
        shutil.copy(ROOT / name, source / name)
    for name in ("analyze", "extract", "jobs", "store", "train"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    venv.create(folder / "venv")
    programs = folder / "venv" / "bin"
    # This environment's pip does it, and only what is imported is compiled later: half the time.
    pip = (sys.executable, "-m", "pip", "--python", programs / "python", "--disable-pip-version-check")
    answer = run(*pip, "install", "--quiet", "--no-compile", source)
    assert answer.returncode == 0, answer.stderr[-2000:]
    return programs


def activault(light: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run(light / "activault", *arguments)


def test_torch_is_not_there(light: Path) -> None:
    code = f"import importlib.util as u; print([n for n in {LEFT_OUT} if u.find_spec(n)])"
    assert run(light / "python", "-c", code).stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("imports", "names"),
    [("import activault.store", NOT_ON_IMPORT), (READER, LATER)],
    ids=["the room", "the reader"],
)
def test_importing_imports_little(light: Path, imports: str, names: tuple[str, ...]) -> None:
    code = f"{imports}\nimport sys; print([n for n in {names} if n in sys.modules])"
    answer = run(light / "python", "-c", code)
    assert answer.stdout.strip() == "[]", answer.stderr


def test_importing_the_reader_takes_little(light: Path) -> None:
    """Processor time, the best of several fresh processes, in turn: a busy machine stretches both."""
    taken: dict[str, list[float]] = {YARDSTICK: [], READER: []}
    for _ in range(8):
        for code, seconds in taken.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            assert run(light / "python", "-c", code).returncode == 0
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    yardstick, ours = (min(seconds[1:]) for seconds in taken.values())  # the first compiles
    print(f"the reader's imports: {ours:.2f} s of processor time; yardstick {yardstick:.2f} s")
    assert ours < IMPORT_SECONDS * max(1.0, yardstick / YARDSTICK_SECONDS)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "int8"])
def test_every_dtype_is_read(light: Path, tmp_path: Path, name: str) -> None:
    code = (
        "import sys, numpy; from activault.store import open_store; s = open_store(sys.argv[1]); "
        "numpy.save(sys.argv[2], s.read(slice(0, s.num_rows), s.layers)); assert 'torch' not in sys.modules"
    )
    answer = run(light / "python", "-c", code, GOLDEN / f"{name}.zarr", tmp_path / "x.npy")
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "x.npy").read_bytes() == (GOLDEN / f"{name}.npy").read_bytes()


def test_info_and_verify(light: Path) -> None:
    expected = json.loads((GOLDEN / "expected.json").read_text())["int8"]
    facts = json.loads(activault(light, "info", GOLDEN / "int8.zarr", "--json").stdout)
    assert (facts["digest"], facts["complete"]) == (expected["digest"], True)
    answer = activault(light, "verify", GOLDEN / "int8.zarr", "--deep", "--complete", "--json")
    assert answer.returncode == 0
    assert json.loads(answer.stdout)["faults"] == []


def test_pull_and_merge(light: Path, tmp_path: Path) -> None:
    """Two halves of the layers are pulled and merged again into the very store."""
    whole = GOLDEN / "bfloat16.zarr"
    for name, layers in (("a", "0"), ("b", "2-3")):
        answer = activault(light, "pull", whole, tmp_path / name, "--layers", layers)
        assert answer.returncode == 0, answer.stderr
    answer = activault(light, "merge", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "c", "--json")
    assert answer.returncode == 0, answer.stderr
    assert (
        json.loads(answer.stdout)["digest"]
        == json.loads((GOLDEN / "expected.json").read_text())["bfloat16"]["digest"]
    )


def test_import_needs_no_torch(light: Path, tmp_path: Path) -> None:
    array = tmp_path / "reference.zarr"
    array.mkdir()
    values = np.random.default_rng(0).standard_normal((4, 3, 5, 8), dtype=np.float32)
    metadata = {
        "zarr_format": 2, "shape": [4, 3, 5, 8], "chunks": [4, 3, 5, 8], "dtype": "<f4", "order": "C",
        "compressor": None, "filters": None, "fill_value": 0.0,
    }  # fmt: skip
    (array / ".zarray").write_text(json.dumps(metadata))
    (array / "0.0.0.0").write_bytes(values.tobytes())
    answer = activault(light, "import", array, tmp_path / "s.zarr", "--json")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["num_rows"] == 4


@pytest.mark.parametrize(
    "arguments",
    [
        ("extract", "images", "s.zarr", "--teacher", "demo"),
        ("train", "r.toml", "--out", "run"),
        ("probe", "s.zarr", "--run", "run"),
        ("analyze", "s.zarr", "--out", "report"),
        ("demo", "out"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_that_lacks_its_extra_says_which(
    light: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    answer = run(light / "activault", *arguments, folder=tmp_path)
    assert answer.returncode == 2
    assert "pip install 'activault[all]'" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_the_loader_says_which_extra_it_needs(light: Path) -> None:
    answer = run(light / "python", "-c", "from activault.store import ActivationLoader")
    assert "MissingExtraError" in answer.stderr
    assert "activault[all]" in answer.stderr


def test_help_lists_every_command(light: Path) -> None:
    answer = activault(light, "--help")
    assert answer.returncode == 0
    for command in ("info", "verify", "pull", "merge", "import", "publish", "extract", "train"):
        assert f" {command} " in answer.stdout
