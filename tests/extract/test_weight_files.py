"""Folders and indices of weights that are damaged, incomplete, or reach for files elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from activault.extract.backbone import load_backbone
from activault.extract.weight_files import read_config, read_tensors
from activault.store import WeightsError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files and an index, one tensor in each."""
    place = tmp_path / "model"
    place.mkdir()
    for name in "ab":
        save_file({name: torch.full((2,), float(ord(name)))}, place / f"{name}.safetensors")
    write_index(place, {name: f"{name}.safetensors" for name in "ab"})
    return place


def write_index(place: Path, places: object) -> None:
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_a_sharded_folder(folder: Path) -> None:
    for path in (folder, folder / "model.safetensors.index.json"):
        assert {name: tensor[0].item() for name, tensor in read_tensors(path).items()} == {"a": 97, "b": 98}


@pytest.mark.parametrize("file", ["../other.safetensors", "/etc/passwd", "..", "", "sub/a.safetensors"])
def test_an_index_cannot_reach_out_of_its_folder(file: str, folder: Path) -> None:
    save_file({"a": torch.zeros(2)}, folder.parent / "other.safetensors")
    write_index(folder, {"a": file})
    with pytest.raises(WeightsError, match="may name files of its own folder alone"):
        read_tensors(folder)


@pytest.mark.parametrize("places", [{}, [], None, "a.safetensors"], ids=str)
def test_an_index_without_weights(places: object, folder: Path) -> None:
    write_index(folder, places)
    with pytest.raises(WeightsError, match="lists no weights"):
        read_tensors(folder)


def test_an_index_of_itself_ends(folder: Path) -> None:
    write_index(folder, {"a": "model.safetensors.index.json"})
    with pytest.raises(WeightsError, match=r"is not a file of tensors|may name files"):
        read_tensors(folder)


def test_weights_that_an_index_lists_and_no_file_holds(folder: Path) -> None:
    write_index(folder, {"a": "a.safetensors", "c": "a.safetensors"})
    with pytest.raises(WeightsError, match="lists weights that its files do not hold: c"):
        read_tensors(folder)
    (folder / "a.safetensors").unlink()
    with pytest.raises(WeightsError, match="there is no weights file at"):
        read_tensors(folder)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, "\xff"], ids=["cut", "list", "deep", "bytes"])
def test_an_index_that_is_no_json_object(text: str, folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(text, encoding="latin-1")
    with pytest.raises(WeightsError, match=r"is not JSON that can be read|holds no JSON object"):
        read_tensors(folder)


def test_an_empty_folder_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        read_tensors(tmp_path)


def test_a_config_is_transformers_own_or_none(folder: Path) -> None:
    assert read_config(folder) == {}
    (folder / "config.json").write_text('{"info": {}}')
    assert read_config(folder / "a.safetensors") == {}
    (folder / "config.json").write_text('{"model_type": "dinov2"}')
    assert read_config(folder / "a.safetensors") == {"model_type": "dinov2"}


@pytest.mark.usefixtures("small_models")
@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "training"])
@pytest.mark.parametrize(
    "name",
    ["vit_base_patch16_siglip_224", "eva02_base_patch16_clip_224", "vit_base_patch16_clip_224"],
)
def test_the_vision_half_of_an_open_clip_file(name: str, wrapped: bool, tmp_path: Path) -> None:
    """OpenCLIP keeps timm's models as `visual.trunk`, and its training wraps what it saves."""
    teacher = load_backbone(name, image_size=32, random_seed=0)
    held = {f"visual.trunk.{part}": tensor for part, tensor in teacher.tensors().items()}
    held |= {"text.token_embedding.weight": torch.zeros(4, 4), "logit_scale": torch.zeros(())}
    found: dict[str, Tensor] | dict[str, dict[str, Tensor]] = held
    if wrapped:
        found = {"state_dict": {f"module.{part}": tensor for part, tensor in held.items()}}
    torch.save(found, tmp_path / "open_clip_pytorch_model.bin")
    loaded = load_backbone(name, image_size=32, weights=tmp_path / "open_clip_pytorch_model.bin")
    assert loaded.info.weights_sha256 == teacher.info.weights_sha256
