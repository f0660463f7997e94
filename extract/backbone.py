"""A frozen timm ViT whose every layer can be read: the only file that knows timm.

In: images as (B, 3, H, W) float32, or pixels (B, H, W, 3) uint8 through `prepare`.
Out: layer 0 (embedded tokens, after positions, registers and any norm before the blocks) and the output of
every block, each (B, tokens, dim) in the order CLS, registers, patches; and the blocks and the final norm.

    backbone = load_backbone("demo", image_size=98)
    for layer, tokens in backbone.layers(backbone.prepare(pixels), layers=range(13)): ...
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import timm
import torch
from jaxtyping import Float, UInt8
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

from activault.store.errors import ConfigError, WeightsError
from activault.store.layout import TokenLayout
from activault.store.provenance import Preprocessing, TeacherInfo

from .preprocess import checked_size, plan_preprocessing
from .teacher_files import TeacherFiles, read_teacher, write_teacher
from .weights import (
    DEMO_ARCHITECTURE,
    DEMO_SOURCE,
    assign,
    demo_tensors,
    hub_source,
    position_side,
    read_tensors,
    tensors_sha256,
)

__all__ = ["Backbone", "load_backbone", "load_teacher", "save_teacher"]

_MODULES = ("vision_transformer", "deit")
_LICENSES = {"apache-2.0": "Apache-2.0", "mit": "MIT", "cc-by-nc-4.0": "CC-BY-NC-4.0"}


class Backbone(nn.Module):
    """A frozen teacher: eval mode, no gradients, one input size.

    Built by `load_backbone` and `load_teacher`, which hand it a timm model at its native position grid.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, vit: VisionTransformer, info: TeacherInfo, preprocessing: Preprocessing) -> None:
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
        self.eval()

    @property
    def layout(self) -> TokenLayout:
        """The tokens of one layer at this input size."""
        return TokenLayout(
            num_cls=int(self.vit.has_class_token),
            num_registers=self.vit.num_reg_tokens,
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
        return int(cast(Any, self.vit.blocks[0]).attn.num_heads)

    @property
    def blocks(self) -> nn.Sequential:
        """The blocks; each maps (B, tokens, dim) to the same shape."""
        return self.vit.blocks

    @property
    def norm(self) -> nn.Module:
        """The final norm, for whoever reads out; an identity where timm pools before it normalises."""
        return cast(nn.Module, self.vit.norm)

    def prepare(self, pixels: UInt8[Tensor, "batch height width 3"]) -> Float[Tensor, "batch 3 height width"]:
        """Pixels in 0-255 as the teacher's float32 input, on this module's device."""
        # Contiguous, so that the arithmetic is that of any other NCHW input.
        images = pixels.to(self.mean.device).permute(0, 3, 1, 2).contiguous().float()
        return images.div_(255).sub_(self.mean).div_(self.std)

    def embed(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch token dim"]:
        """Layer 0: the tokens that enter the first block."""
        vit = self.vit
        return cast(Tensor, vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(images)))))

    def layers(
        self, images: Float[Tensor, "batch 3 height width"], layers: Collection[int]
    ) -> Iterator[tuple[int, Float[Tensor, "batch token dim"]]]:
        """The asked layers in ascending order, each as soon as it is computed; no block runs after the last.

        Raises:
            ConfigError: a layer is not in 0 to `num_blocks`.
        """
        if outside := sorted(set(layers) - set(range(self.num_blocks + 1))):
            raise ConfigError(f"layers of {self.info.name} are 0-{self.num_blocks}; got {outside}")
        return self._layers(images, set(layers))

    def _layers(self, images: Tensor, wanted: set[int]) -> Iterator[tuple[int, Tensor]]:
        tokens = self.embed(images)
        if 0 in wanted:
            yield 0, tokens
        for layer in range(1, max(wanted, default=0) + 1):
            tokens = self.vit.blocks[layer - 1](tokens)
            if layer in wanted:
                yield layer, tokens

    def tensors(self) -> dict[str, Tensor]:
        """The weights under timm's names, at the native position grid."""
        tensors = {name: tensor.cpu().contiguous() for name, tensor in self.vit.state_dict().items()}
        if self._native_positions is not None:
            tensors["pos_embed"] = self._native_positions
        return tensors


def load_backbone(
    name: str,
    *,
    weights: Path | None = None,
    image_size: int | tuple[int, int] = 224,
    resize: int | None = None,
    random_seed: int | None = None,
) -> Backbone:
    """A teacher by timm's name (a `.tag` picks timm's weights and their mean and std), or `demo`.

    Args:
        name: timm's name of a ViT, or `demo`.
        weights: a `.safetensors` or `.pth` file in timm's or Meta's naming; without it timm's hub is asked.
        image_size: side of the input in pixels, or its height and width; multiples of the patch.
        resize: recorded in `preprocessing`; the reference's 256 for 224 if None.
        random_seed: random weights instead of any file.

    Raises:
        ConfigError: the name, the size or the combination of arguments cannot be used.
        WeightsError: the weights are absent or do not fit.
    """
    if name == "demo" and (weights is not None or random_seed is not None):
        raise ConfigError("the teacher 'demo' has its own weights; to give others, name a timm architecture")
    if weights is not None and random_seed is not None:
        raise ConfigError("give either a weights file or a random seed, not both")
    architecture = _architecture(DEMO_ARCHITECTURE if name == "demo" else name)
    config = _pretrained_config(architecture if name == "demo" else name)
    size = checked_size(image_size, tuple(_build(architecture).patch_embed.patch_size))
    preprocessing = plan_preprocessing(size, resize, config.mean, config.std)
    if random_seed is not None:
        vit, source, license_ = _random(architecture, random_seed), f"random, seed {random_seed}", "unknown"
    elif name == "demo":
        vit, source, license_ = _fitted(architecture, demo_tensors(), "the demo teacher"), DEMO_SOURCE, "MIT"
    elif weights is not None:
        vit, source, license_ = _fitted(architecture, read_tensors(weights), str(weights)), "file", "unknown"
    else:
        license_ = _LICENSES.get(config.license, config.license or "unknown")
        vit, source = _from_hub(name), hub_source(name)
    return Backbone(vit, _info(vit, name, architecture, source, license_), preprocessing)


def _architecture(name: str) -> str:
    """timm's architecture of a name, if it is a plain ViT; nothing is looked up outside timm's own table."""
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture) or (tag and name not in timm.list_models(pretrained=True)):
        known = [*timm.list_models(module="vision_transformer"), *timm.list_models(module="deit"), "demo"]
        known += timm.list_models(f"{architecture}.*", pretrained=True) if tag else []
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        raise ConfigError(f"timm has no model {name!r}; nearest names: {', '.join(near) or 'none'}")
    if timm.models.is_model_in_modules(architecture, ("eva",)):
        raise ConfigError(
            f"the blocks of {name!r} take rotary positions beside the tokens, which is not supported yet; "
            "choose a ViT with learned positions, such as vit_base_patch14_reg4_dinov2"
        )
    if not timm.models.is_model_in_modules(architecture, _MODULES):
        raise ConfigError(f"{name!r} is not a plain ViT; choose one, such as vit_base_patch14_reg4_dinov2")
    return architecture


def _pretrained_config(name: str) -> Any:
    """timm's record of the weights of a name: their mean, standard deviation and licence."""
    config = timm.get_pretrained_cfg(name)
    if config is None:
        raise ConfigError(f"timm does not record the mean and standard deviation of {name!r}; choose another")
    return config


def _create(name: str, **options: Any) -> VisionTransformer:
    vit = timm.create_model(name, num_classes=0, **options)
    if type(vit) is not VisionTransformer:
        raise ConfigError(f"{name!r} is a {type(vit).__name__}, not a plain ViT, and is not supported yet")
    return vit


def _build(architecture: str, image_size: tuple[int, int] | None = None) -> VisionTransformer:
    """The empty model (no memory, no random numbers) at the given or the architecture's own size."""
    with torch.device("meta"):
        return _create(architecture, img_size=image_size)


def _random(architecture: str, seed: int) -> VisionTransformer:
    """The architecture as timm initialises it, without touching the caller's random numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _create(architecture)


def _from_hub(name: str) -> VisionTransformer:
    try:
        return _create(name, pretrained=True)
    except (OSError, RuntimeError) as exc:
        reason = str(exc).splitlines()[0] if str(exc) else type(exc).__name__
        raise WeightsError(
            f"timm's hub gave no weights for {name!r} ({reason}); "
            "give a file with --weights, or take --teacher demo"
        ) from exc


def _fitted(architecture: str, tensors: Mapping[str, Tensor], source: str) -> VisionTransformer:
    """The architecture with a file's tensors, which go through timm's own mapping of names."""
    tensors = dict(tensors)
    if "register_tokens" in tensors:
        # timm knows Meta's naming by this key, which some copies of the files leave out.
        tensors.setdefault("mask_token", torch.zeros(0))
    vit = _build(architecture)
    if (side := position_side(tensors, vit.num_prefix_tokens)) is not None:
        # At the file's own grid: positions that are resampled twice are blurred.
        patch = vit.patch_embed.patch_size
        vit = _build(architecture, (side * patch[0], side * patch[1]))
    try:
        tensors = checkpoint_filter_fn(tensors, vit, adapt_layer_scale=True)
    except (RuntimeError, KeyError, AttributeError, ValueError) as exc:
        raise WeightsError(f"{source} does not fit {architecture}: timm cannot map it ({exc})") from exc
    # The classifier is no part of a teacher whose tokens are read.
    tensors = {name: t.float().contiguous() for name, t in tensors.items() if not name.startswith("head")}
    assign(vit, tensors, f"{source} does not fit {architecture}")
    return vit


def _info(vit: VisionTransformer, name: str, architecture: str, source: str, license_: str) -> TeacherInfo:
    return TeacherInfo(
        name=name,
        architecture=architecture,
        weights=source,
        weights_sha256=tensors_sha256(vit.state_dict()),
        license=license_,
        num_blocks=len(vit.blocks),
        dim=vit.embed_dim,
        num_heads=cast(Any, vit.blocks[0]).attn.num_heads,
        timm_version=timm.__version__,
        torch_version=torch.__version__,
    )


def save_teacher(backbone: Backbone, folder: Path) -> None:
    """Write all that `load_teacher` needs into an existing folder."""
    info, preprocessing = backbone.info, backbone.preprocessing
    write_teacher(TeacherFiles(info, preprocessing, backbone.native_size, backbone.tensors()), folder)


def load_teacher(folder: Path) -> Backbone:
    """The teacher out of a store's `teacher/` folder, at the size it was extracted at; no hub is asked.

    Raises:
        WeightsError: the files are absent, damaged, altered or do not fit together.
        ConfigError: they name an architecture that timm does not have.
    """
    files = read_teacher(folder)
    # Built without memory, so that a false architecture is found out before anything is allocated.
    vit = _build(_architecture(files.info.architecture), files.native_size)
    assign(vit, files.tensors, f"the teacher in {folder} does not fit {files.info.architecture}")
    backbone = Backbone(vit, files.info, files.preprocessing)
    found, named = (backbone.num_blocks, backbone.dim, backbone.num_heads), files.info
    if found != (named.num_blocks, named.dim, named.num_heads):
        raise WeightsError(f"config.json in {folder} names other blocks, width or heads than {found}")
    return backbone
