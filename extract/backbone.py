"""A frozen timm ViT whose every layer can be read.

In: images as (B, 3, H, W) float32, or pixels (B, H, W, 3) uint8 through `prepare`.
Out: layer 0 (embedded tokens, after positions, registers and any norm before the blocks) and the output of
every block, each (B, tokens, dim) in the order CLS, registers, patches; and the blocks and the final norm.

    backbone = load_backbone("demo", image_size=98)
    for layer, tokens in backbone.layers(backbone.prepare(pixels), layers=range(13)): ...

Which of timm's models these are stands in `architectures.py`, how files of other makers become one in
`fitting.py`, what blocks with rotary positions need in `rotary.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import cast

import timm
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from activault.store.errors import ConfigError, WeightsError
from activault.store.layout import TokenLayout
from activault.store.provenance import Preprocessing, TeacherInfo

from .architectures import (
    Vit,
    activation_of,
    architecture_of,
    build,
    build_random,
    embedded,
    fill_buffers,
    from_hub,
    license_of,
    num_heads_of,
    rotary_tables,
    teacher_rules,
)
from .fitting import fitted, fitted_from
from .input_size import checked_input
from .preprocess import PreprocessingRequest, plan_preprocessing
from .rotary import RotaryTables, rotary_blocks
from .teacher_files import TeacherFiles, read_teacher, write_teacher
from .weights import DEMO_ARCHITECTURE, DEMO_SOURCE, assign, demo_tensors, hub_source, tensors_sha256

__all__ = ["Backbone", "load_backbone", "load_teacher", "save_teacher"]

_Blocks = Sequence[Callable[[Tensor], Tensor]]


class Backbone(nn.Module):
    """A frozen teacher: eval mode, no gradients, one input size.

    Built by `load_backbone` and `load_teacher`, which hand it a timm model at its native position grid.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        vit: Vit,
        info: TeacherInfo,
        preprocessing: Preprocessing,
        rotary: RotaryTables | None = None,
    ) -> None:
        super().__init__()
        self.info = info
        self.preprocessing = preprocessing
        self.native_size: tuple[int, int] = tuple(vit.patch_embed.img_size)
        """Height and width in pixels that the weights' own position grid stands for."""
        # The native positions are kept so that the teacher's files are the same at every input size.
        self._native_positions = None if vit.pos_embed is None else vit.pos_embed.detach().cpu().clone()
        if self.native_size != preprocessing.image_size:
            vit.set_input_size(img_size=preprocessing.image_size)
        self.vit = vit.requires_grad_(False)
        for name, values in (("mean", preprocessing.mean), ("std", preprocessing.std)):
            self.register_buffer(name, torch.tensor(values).view(1, 3, 1, 1), persistent=False)
        self.rotary = _rotary_of(vit.eval(), info.name, rotary)
        """What a block needs beside the tokens; None where they are all."""
        if self.rotary is not None:
            self.rotary_blocks = rotary_blocks(vit.blocks, self.rotary)
        self.eval()

    @property
    def layout(self) -> TokenLayout:
        """The tokens of one layer at this input size."""
        num_cls = int(self.vit.cls_token is not None)
        return TokenLayout(
            num_cls=num_cls,
            num_registers=self.vit.num_prefix_tokens - num_cls,
            grid=self.vit.patch_embed.grid_size,
        )

    @property
    def num_blocks(self) -> int:
        """Blocks; layers are 0 to this number."""
        return len(self.vit.blocks)

    @property
    def dim(self) -> int:
        """Width of a token."""
        return int(self.vit.embed_dim)

    @property
    def num_heads(self) -> int:
        """Attention heads of a block."""
        return num_heads_of(self.vit)

    @property
    def blocks(self) -> nn.Sequential | nn.ModuleList:
        """The blocks; each maps (B, tokens, dim) to the same shape, by itself."""
        return self.vit.blocks if self.rotary is None else self.rotary_blocks

    @property
    def norm(self) -> nn.Module:
        """The final norm, for whoever reads out: of (B, tokens, dim), token by token.

        It is timm's `norm`; where timm pools before it normalises, as in EVA-02, that is an identity and the
        weights' own norm is `fc_norm`, which is the one that the makers' pre-training puts on every token.
        """
        pooled_first = isinstance(self.vit.norm, nn.Identity)
        return cast(nn.Module, self.vit.fc_norm if pooled_first else self.vit.norm)

    def prepare(self, pixels: UInt8[Tensor, "batch height width 3"]) -> Float[Tensor, "batch 3 height width"]:
        """Pixels in 0-255 as the teacher's float32 input, on this module's device."""
        # Contiguous, so that the arithmetic is that of any other NCHW input.
        images = pixels.to(self.mean.device).permute(0, 3, 1, 2).contiguous().float()
        return images.div_(255).sub_(self.mean).div_(self.std)

    def embed(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch token dim"]:
        """Layer 0: the tokens that enter the first block."""
        return cast(Tensor, self.vit.norm_pre(embedded(self.vit, images)[0]))

    def layers(
        self, images: Float[Tensor, "batch 3 height width"], layers: Collection[int], blocks: _Blocks = ()
    ) -> Iterator[tuple[int, Float[Tensor, "batch token dim"]]]:
        """The asked layers in ascending order, each as soon as it is computed; no block runs after the last.
        `blocks` compute instead of the teacher's own, such as compiled ones.

        Raises:
            ConfigError: a layer is not in 0 to `num_blocks`.
        """
        if outside := sorted(set(layers) - set(range(self.num_blocks + 1))):
            raise ConfigError(f"layers of {self.info.name} are 0-{self.num_blocks}; got {outside}")
        return self._layers(images, set(layers), blocks or tuple(self.blocks))

    def _layers(self, images: Tensor, wanted: set[int], blocks: _Blocks) -> Iterator[tuple[int, Tensor]]:
        tokens = self.embed(images)
        if 0 in wanted:
            yield 0, tokens
        for layer in range(1, max(wanted, default=0) + 1):
            tokens = blocks[layer - 1](tokens)
            if layer in wanted:
                yield layer, tokens

    def tensors(self) -> dict[str, Tensor]:
        """The weights under timm's names, at the native position grid."""
        tensors = {name: tensor.cpu().contiguous() for name, tensor in self.vit.state_dict().items()}
        if self._native_positions is not None:
            tensors["pos_embed"] = self._native_positions
        return tensors


def _rotary_of(vit: Vit, name: str, stored: RotaryTables | None) -> RotaryTables | None:
    """The tables of this input size: those that are stored, if they are timm's own up to rounding.

    Raises:
        WeightsError: they are not, or are there without need, or lack.
    """
    own = rotary_tables(vit)
    if own is None and stored is not None:
        raise WeightsError(f"there are rotary tables, and {name} has learned positions alone")
    if own is not None and stored is not None and not stored.agrees_with(own):
        height, width = vit.patch_embed.img_size
        raise WeightsError(
            f"the rotary tables are not those of {name} at {height} x {width} pixels; restore the teacher's "
            "files from a copy of the store"
        )
    return stored or own


def load_backbone(
    name: str,
    *,
    weights: Path | None = None,
    image_size: int | tuple[int, int] = 224,
    resize: int | None = None,
    request: PreprocessingRequest | None = None,
    random_seed: int | None = None,
) -> Backbone:
    """A teacher by timm's name (a `.tag` picks timm's weights and their mean and std), or `demo`.

    Args:
        name: timm's name of a ViT, or `demo`.
        weights: a `.safetensors`, `.pth` or `.bin` file, or a folder of transformers, in the naming of timm,
            Meta, OpenCLIP or transformers; without it timm's hub is asked.
        image_size: side of the input in pixels, or its height and width; multiples of the patch.
        resize: shorter side before the crop; None follows from the rules.
        request: whose rules prepare an image, and what else is asked for; None is the reference's rules.
        random_seed: random weights instead of any file.

    Raises:
        ConfigError: the name, the size or the combination of arguments cannot be used.
        WeightsError: the weights are absent or do not fit.
    """
    if name == "demo" and (weights is not None or random_seed is not None):
        raise ConfigError("the teacher 'demo' has its own weights; to give others, name a timm architecture")
    if weights is not None and random_seed is not None:
        raise ConfigError("give either a weights file or a random seed, not both")
    architecture = architecture_of(DEMO_ARCHITECTURE if name == "demo" else name)
    size = checked_input(architecture, image_size)
    if request is not None and resize is not None:
        raise ConfigError("a resize is said once: beside the request or in it")
    request = request or PreprocessingRequest(resize=resize)
    plan = plan_preprocessing(size, teacher_rules(architecture if name == "demo" else name), request)
    license_ = "unknown"
    if random_seed is not None:
        vit, source = build_random(architecture, random_seed), f"random, seed {random_seed}"
    elif name == "demo":
        vit, source, license_ = fitted(architecture, demo_tensors(), "the demo teacher"), DEMO_SOURCE, "MIT"
    elif weights is not None:
        vit, source = fitted_from(architecture, weights), "file"
    else:
        vit, source, license_ = from_hub(name), hub_source(name), license_of(name)
    return Backbone(vit, _info(vit, name, architecture, source, license_), plan)


def _info(vit: Vit, name: str, architecture: str, source: str, license_: str) -> TeacherInfo:
    return TeacherInfo(
        name=name,
        architecture=architecture,
        weights=source,
        weights_sha256=tensors_sha256(vit.state_dict()),
        license=license_,
        num_blocks=len(vit.blocks),
        dim=vit.embed_dim,
        num_heads=num_heads_of(vit),
        timm_version=timm.__version__,
        torch_version=torch.__version__,
    )


def save_teacher(backbone: Backbone, folder: Path, *, weights: bool = True) -> None:
    """Write all that `load_teacher` needs into an existing folder; without `weights`, all but those."""
    files = TeacherFiles(
        info=backbone.info,
        preprocessing=backbone.preprocessing,
        native_size=backbone.native_size,
        tensors=backbone.tensors() if weights else None,
        activation=activation_of(backbone.vit),
        rotary=backbone.rotary,
    )
    write_teacher(files, folder)


def load_teacher(folder: Path, *, weights: Path | None = None) -> Backbone:
    """The teacher out of a store's `teacher/` folder, at the size it was extracted at; no hub is asked.

    Args:
        folder: with its files.
        weights: a file or folder for `load_backbone`, where the store was made without them.

    Raises:
        WeightsError: the files are absent, damaged, altered or do not fit together, or the weights were left
            out and are not given, or other ones are.
        ConfigError: they name an architecture that timm does not have.
    """
    files = read_teacher(folder)
    architecture = architecture_of(files.info.architecture)
    if files.tensors is None:
        vit = _given(files.info, architecture, weights, folder)
    else:
        # Built without memory, so that a false architecture is found out before anything is allocated.
        vit = build(architecture, files.native_size, files.activation)
        assign(vit, files.tensors, f"the teacher in {folder} does not fit {files.info.architecture}")
        fill_buffers(vit, architecture)
    backbone = Backbone(vit, files.info, files.preprocessing, files.rotary)
    found, named = (backbone.num_blocks, backbone.dim, backbone.num_heads), files.info
    if found != (named.num_blocks, named.dim, named.num_heads):
        raise WeightsError(f"config.json in {folder} names other blocks, width or heads than {found}")
    return backbone


def _given(info: TeacherInfo, architecture: str, weights: Path | None, folder: Path) -> Vit:
    """The model with weights that are kept elsewhere, if they are those that the store was made with."""
    wanted = f"{info.name} ({info.weights}; hash {info.weights_sha256})"
    if weights is None:
        raise WeightsError(
            f"the store was made without its teacher's weights, so {folder} has none; give those of {wanted} "
            "with --weights, or load_teacher(folder, weights=FILE)"
        )
    vit = fitted_from(architecture, weights)
    if (found := tensors_sha256(vit.state_dict())) != info.weights_sha256:
        raise WeightsError(f"{weights} holds other weights (hash {found}) than the store's, {wanted}")
    return vit
