"""Values that a dtype cannot hold, rows that keep their labels: from the teacher's weights to the store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from activault.extract.backbone import Backbone, load_backbone
from activault.extract.run import ExtractOptions, extract
from activault.store import ActivationLoader, NonFiniteError, StoreError, open_store, verify_store

from .conftest import MakeFolder, changed, colour


def altered(weights: Path, to: Path, **values: float) -> Path:
    """The tiny teacher's weights with every number of some tensors (dots as `__`) another one."""
    tensors = load_file(weights)
    for name, value in values.items():
        tensors[name.replace("__", ".")].fill_(value)
    save_file(tensors, to)
    return to


def test_a_layer_scaled_to_70_000_is_an_error_in_float16_alone(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions, tiny_weights: Path
) -> None:
    weights = altered(tiny_weights, tmp_path / "large.safetensors", blocks__2__mlp__fc2__bias=70_000.0)
    images, asked = make_folder(9), changed(options, weights=weights, layers="all")
    with pytest.raises(StoreError, match=r"row \d+ \(class\d/\d+\.png\) .*7\d,?\d{3}.* layer 3, cls"):
        extract(images, tmp_path / "half.zarr", changed(asked, dtype="float16"))
    assert open_store(tmp_path / "half.zarr").finished_rows.tolist() == []
    for dtype in ("bfloat16", "float32", "int8"):
        path = tmp_path / f"{dtype}.zarr"
        extract(images, path, changed(asked, dtype=dtype))
        read = open_store(path).read(slice(0, 9), [2, 3])
        assert np.abs(read[:, 0]).max() < 100
        assert 69_000 < read[:, 1].min() <= read[:, 1].max() < 71_000
        assert verify_store(path, deep=True, complete=True).ok


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=["nan", "inf"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8"])
def test_weights_that_are_not_finite_are_told_by_row_and_layer(
    make_folder: MakeFolder,
    tmp_path: Path,
    options: ExtractOptions,
    tiny_weights: Path,
    dtype: str,
    value: float,
) -> None:
    weights = altered(tiny_weights, tmp_path / "bad.safetensors", blocks__3__mlp__fc2__bias=value)
    images, asked = make_folder(9), changed(options, weights=weights, dtype=dtype)
    where = r"layer 4" if dtype == "int8" else r"row 0 \(class\d/\d+\.png\) holds (nan|inf) in layer 4"
    with pytest.raises(NonFiniteError, match=where):
        extract(images, tmp_path / "s.zarr", changed(asked, layers="all"))
    sound = extract(images, tmp_path / "before.zarr", changed(asked, layers="0-3"))
    assert sound.bad == {}


@torch.inference_mode()
def test_labels_and_keys_follow_their_rows_through_a_shuffled_extraction_and_a_shuffled_epoch(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions, tiny: Backbone
) -> None:
    """Every image has a colour of its own, so that layer 0 tells which one a row really is.

    Defect of the reference: neither sample ids nor labels nor the order of the rows are stored.
    """
    folder = make_folder(30)
    (folder / "class1" / "031.png").write_bytes(b"")
    extract(folder, tmp_path / "s.zarr", changed(options, layers="0", dtype="float32", seed=3, workers=4))
    store = open_store(tmp_path / "s.zarr")
    keys = store.samples["key"].to_pylist()
    assert store.samples["row"].to_pylist() == list(range(31))
    assert keys != sorted(keys)

    def layer0(number: int) -> np.ndarray:
        pixels = np.full((1, 32, 32, 3), colour(number), np.uint8)
        return tiny.embed(tiny.prepare(torch.from_numpy(pixels)))[0].numpy()

    seen = []
    for batch in ActivationLoader(store, layers=[0], batch_size=7, seed=5, drop_last=False):
        for tokens, row, label in zip(batch.tokens, batch.rows.tolist(), batch.labels.tolist(), strict=True):
            number = int(Path(keys[row]).stem)
            np.testing.assert_allclose(tokens[0].numpy(), layer0(number), atol=1e-5)
            assert store.classes[label] == f"class{number % 3}"
            seen.append(number)
    assert sorted(seen) == list(range(30)), "each good image once, the bad one never"


@pytest.mark.usefixtures("small_models")
@pytest.mark.parametrize("size", [546, (518, 546), (98, 154)], ids=str)
@pytest.mark.parametrize("name", ["vit_base_patch14_dinov2", "vit_base_patch14_reg4_dinov2"])
@torch.inference_mode()
def test_positions_beyond_the_native_518_pixels(name: str, size: int | tuple[int, int]) -> None:
    """39 x 39 patches out of a grid of 37 x 37, by timm's own model of any size and the same weights."""
    import timm

    teacher = load_backbone(name, image_size=size, random_seed=0)
    height, width = (size, size) if isinstance(size, int) else size
    assert teacher.layout.grid == (height // 14, width // 14)
    theirs = timm.create_model(name, num_classes=0, dynamic_img_size=True).eval()
    theirs.load_state_dict(load_backbone(name, image_size=518, random_seed=0).vit.state_dict())
    batch = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(0))
    ours = dict(teacher.layers(batch, [teacher.num_blocks]))[teacher.num_blocks]
    torch.testing.assert_close(teacher.norm(ours), theirs.forward_features(batch), rtol=1e-4, atol=1e-5)
