"""An exported run is run by PyTorch alone, in a process that has no activault, and gives the same layers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from activault.store import Store
from activault.store.errors import ConfigError
from activault.store.layout import TokenLayout
from activault.train.exporting import export_run
from activault.train.finished import Run, load_run
from activault.train.raptor import Raptor, RaptorConfig
from activault.train.recipe import TrainRecipe
from activault.train.rotary import RotaryConfig

LAYOUT = TokenLayout(num_cls=1, num_registers=1, grid=(2, 2))
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "raw-swiglu": {"mlp": "swiglu", "depth": "raw"},
    "iso-autonomous": {"mlp": "swiglu_iso", "depth": "none", "qkv_bias": False},
    "lora-groups": {"lora_rank": 2, "cuts": (), "groups": ((1, 3), (2, 4)), "eps": 1e-5},
    "rotary-halves": {"rotary": {"pairs": "halves", "num_prefix": 2, "num_patches": 4}},
    "rotary-mixed": {
        "rotary": {
            "pairs": "neighbours", "num_prefix": 2, "num_patches": 4, "per_layer": True, "per_head": True
        }
    },
}  # fmt: skip
SCRIPT = """
import importlib.util, sys
from pathlib import Path
FOREIGN = ("activault", "jaxtyping", "safetensors", "pydantic", "timm")
sys.modules.update(dict.fromkeys(FOREIGN))  # as if they were not installed
import torch

folder = Path(sys.argv[1])
x, made = torch.load(folder / "x.pt", weights_only=True), {}
for code in sorted(folder.glob("*/exported.py")):
    spec = importlib.util.spec_from_file_location("exported", code)
    exported = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(exported)
    model = exported.load(code.with_suffix(".json"))
    with torch.no_grad():
        made[code.parent.name] = [model(x), model(x, 1, 3), model.last(x), model.last(x, stop=2)]
torch.save(made, folder / "made.pt")
assert not any(sys.modules[name] for name in FOREIGN)
"""
MakeRecipe = Callable[..., TrainRecipe]


def run_of(recipe: TrainRecipe, **changes: Any) -> Run:
    """A run with a random model in which nothing is small."""
    torch.manual_seed(1)
    rotary = changes.pop("rotary", None)
    if rotary:
        changes["rotary"] = RotaryConfig(**rotary)
    given = {"dim": 16, "num_heads": 2, "num_layers": 4, "cuts": (1,), "layer_scale": 0.5, **changes}
    model = Raptor(RaptorConfig(**given)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    if model.rotary_sin is not None:
        angles = torch.randn(model.rotary_sin.shape)
        pairs = model.config.rotary.pairs
        model.use_rotary(SimpleNamespace(sin=angles.sin(), cos=angles.cos(), pairs=pairs))
    return Run(
        path=Path("run"),
        model=model,
        recipe=recipe,
        cuts=model.config.cuts,
        layout=LAYOUT,
        store_digest="0" * 64,
        teacher_sha256="1" * 64,
    )


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory, recipe: MakeRecipe) -> tuple[torch.Tensor, Any]:
    """Layer 0, and what a process without activault makes of it: for every kind, some roll-outs."""
    folder = tmp_path_factory.mktemp("exports")
    for kind, changes in KINDS.items():
        export_run(run_of(recipe(), **changes), folder / kind / "exported")
    x = torch.randn(3, 6, 16)
    torch.save(x, folder / "x.pt")
    # -I: no PYTHONPATH, no working directory on the path.
    given = [sys.executable, "-I", "-c", SCRIPT, str(folder)]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return x, torch.load(folder / "made.pt", weights_only=True)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_one_file_and_pytorch_give_the_same_layers(
    foreign: tuple[torch.Tensor, Any], recipe: MakeRecipe, kind: str
) -> None:
    x, made = foreign
    model = run_of(recipe(), **KINDS[kind]).model
    expected = [model(x), model(x, 1, 3), model.last(x), model.last(x, stop=2)]
    for theirs, ours in zip(made[kind], expected, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)


def test_files_say_what_they_are(tmp_path: Path, recipe: MakeRecipe) -> None:
    run = run_of(recipe())
    exported = export_run(run, tmp_path / "new" / "k2.safetensors")
    assert [path.name for path in exported.paths] == ["k2.safetensors", "k2.json", "k2.py"]
    assert {path.name for path in (tmp_path / "new").iterdir()} == {path.name for path in exported.paths}
    record = json.loads(exported.config.read_text())
    assert record["tensors"] == "k2.safetensors"
    assert (record["model"]["phases"], record["model"]["mlp_hidden"]) == ([[1], [2, 3, 4]], 64)
    assert (record["teacher_sha256"], record["layout"]["num_registers"]) == ("1" * 64, 1)
    for name, tensor in load_file(exported.tensors).items():
        assert torch.equal(tensor, run.model.state_dict()[name])


def test_a_trained_run_is_exported(store: Store, tmp_path: Path, run: Callable[..., Any]) -> None:
    run(tmp_path / "run", store)
    trained = load_run(tmp_path / "run")
    exported = export_run(trained, tmp_path / "exported")
    namespace: dict[str, Any] = {"__name__": "exported"}
    exec(compile(exported.code.read_text(), str(exported.code), "exec"), namespace)
    x = torch.randn(1, 6, 16)
    with torch.no_grad():
        torch.testing.assert_close(namespace["load"](exported.config)(x), trained.model(x))
    with pytest.raises(ValueError, match=r"a roll-out goes from a layer to a later one in 0-4; got 2, 9"):
        namespace["load"](exported.config)(x, 2, 9)
    save_file({"a": x}, exported.tensors)
    with pytest.raises(ValueError, match=r"exported.safetensors is not what .*json names; export it again"):
        namespace["load"](exported.config)


def test_nothing_is_overwritten_unasked(tmp_path: Path, recipe: MakeRecipe) -> None:
    (tmp_path / "mine.py").write_text("mine")
    with pytest.raises(ConfigError, match=r"mine\.py exists; choose another name, or overwrite it"):
        export_run(run_of(recipe()), tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]
    export_run(run_of(recipe()), tmp_path / "mine", overwrite=True)
    assert "class Raptor" in (tmp_path / "mine.py").read_text()


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("model.pt", "got model.pt: take another, such as run_model_pt$"),
        ("k=3.safetensors", "got k=3: take another, such as run_k_3$"),
        ("3", "no digit first, .* got 3: take another, such as run_3$"),
        ("class", "no word of the language and .*; got class: take another, such as run_class$"),
        ("torch", "no module that it needs itself; got torch: take another, such as run_torch$"),
        ("json", "no module that it needs itself; got json: take another, such as run_json$"),
        ("__main__", "got __main__: take another, such as run_main$"),
        ("re\N{COMBINING ACUTE ACCENT}seau", "take another, such as run_re_seau$"),
        ("folder", "an export is named by a file, such as .*folder/raptor; got the folder"),
    ],
)
def test_other_names_are_refused(tmp_path: Path, recipe: MakeRecipe, name: str, remedy: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=remedy):
        export_run(run_of(recipe()), tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
