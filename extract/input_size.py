"""The size of a teacher's input, checked before any memory is taken for it.

In: timm's architecture and what was asked for. Out: height and width in pixels.

    checked_input("vit_small_patch14_dinov2", 518)      # (518, 518)
"""

from __future__ import annotations

from typing import Final

from activault.store.cores import memory_bytes
from activault.store.errors import ConfigError

from .architectures import outline
from .preprocess import checked_size

__all__ = ["checked_input"]

_TIMES: Final = 4
"""The tokens themselves, their queries, keys and values: what a block holds of them at the very least."""
_FLOAT_BYTES: Final = 4


def checked_input(architecture: str, image_size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width of the input.

    Raises:
        ConfigError: a side is not a multiple of the patch, or one image alone would take more memory than
            there is.
    """
    vit = outline(architecture)
    patch: tuple[int, int] = tuple(vit.patch_embed.patch_size)
    height, width = size = checked_size(image_size, patch)
    num_tokens = (height // patch[0]) * (width // patch[1]) + vit.num_prefix_tokens
    needed = _FLOAT_BYTES * (3 * height * width + _TIMES * num_tokens * vit.embed_dim)
    if needed > (there := memory_bytes()):
        raise ConfigError(
            f"one image is computed in the memory of one machine; {height} x {width} pixels are "
            f"{num_tokens:,} tokens, which take at least {needed / 1e9:,.1f} GB, and there are "
            f"{there / 1e9:,.1f} GB; choose a smaller --image-size"
        )
    return size
