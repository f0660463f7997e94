"""Where values came from: the manifest's parts on the teacher, the images and what was done to them."""

from __future__ import annotations

from typing import Final

from pydantic import ConfigDict, Field, model_validator

from .models import Model

__all__ = ["UNKNOWN", "Preprocessing", "SourceInfo", "StrictModel", "TeacherInfo"]

UNKNOWN: Final = "unknown"
"""What text says where nobody has said anything."""
_WORD = r"^[a-z0-9][a-z0-9-]{0,31}$"


class StrictModel(Model):
    """A frozen part of what is stored, without a field more or less."""

    model_config = ConfigDict(allow_inf_nan=False)


class TeacherInfo(StrictModel):
    """The frozen model whose activations these are."""

    name: str
    """timm's name of the architecture, or `demo`."""
    architecture: str
    """timm's name of the architecture that was built."""
    weights: str
    """Where the weights came from, in words, without paths."""
    weights_sha256: str
    """Hash of the weights' tensors in name order, so that the same weights in another container agree."""
    license: str
    """Licence of the weights, or `unknown`."""
    num_blocks: int = Field(ge=1, le=4096)
    """Blocks of the teacher; layers are 0 to this number."""
    dim: int = Field(ge=1, le=1 << 20)
    """Width of a token."""
    num_heads: int | None = Field(ge=1)
    """Attention heads of a block; None where unknown."""
    timm_version: str
    torch_version: str


class Preprocessing(StrictModel):
    """How an image became the teacher's input."""

    image_size: tuple[int, int]
    """Height and width of the input in pixels."""
    resize: int | None
    """Shorter side after resizing, before the centre crop; None where `crop_mode` has no such thing."""
    interpolation: str = Field(pattern=_WORD)
    """`bicubic` or `bilinear`; later writers may know others."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    crop_mode: str = Field(default="center", pattern=_WORD)
    """timm's word: `center` cuts from the centre, `squash` scales both sides to the input's."""
    orientation: str = Field(default="stored", pattern=_WORD)
    """`stored` takes pixels as they stand, `exif` turns them as the file's EXIF block asks."""

    @model_validator(mode="after")
    def _consistent(self) -> Preprocessing:
        if self.crop_mode == "center" and self.resize is None:
            raise ValueError("a preprocessing that cuts from the centre has a resize")
        return self


class SourceInfo(StrictModel):
    """Where the images came from."""

    kind: str = Field(pattern=_WORD)
    """`folder` or `arrays`; later writers may know others."""
    name: str
    """Last part of the source's path: a name, never a path."""
    fingerprint: str
    """Hash over the keys and sizes of all its images."""
