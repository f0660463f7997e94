"""What the teacher computes in: exact float32, autocast, compiled blocks, forwards of one fixed shape.

Pixels (B, H, W, 3) uint8 in; layers (B, tokens, dim) out, one after the other.

    forward = Forward(backbone, Arithmetic(autocast="bfloat16"), layers=range(13))
    for layer, tokens in forward(pixels): ...

How many images go through a matrix product at once may change the last bits of its result: a library picks
its algorithm, and with it the order of the additions, by the shape. `batch_invariant` rules this out by
construction: every forward has the shape of `FIXED_BATCH` images, and row r of the store is always image
r % FIXED_BATCH of its forward, whatever the batch size, the rows a shard and the bad images around it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Final, Literal

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from activault.store.errors import ConfigError
from activault.store.manifest import Detail

from .backbone import Backbone
from .process_wide import ProcessWide

__all__ = ["FIXED_BATCH", "Arithmetic", "Autocast", "Forward", "exact_arithmetic"]

Autocast = Literal["off", "bfloat16", "float16"]
FIXED_BATCH: Final = 16
"""Images of a forward under `batch_invariant`; a part of the store's identity, so it stays what it is."""
_DTYPES: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """How the teacher's layers are computed; whatever is not the default is recorded in the store."""

    autocast: Autocast = "off"
    """What the blocks compute in; embedding and residual stream stay float32."""
    compile: bool = False
    """Whether the blocks are compiled by `torch.compile`."""
    batch_invariant: bool = False
    """Whether every forward has one shape, and a row always the same place in it."""

    @property
    def details(self) -> dict[str, Detail]:
        """What the manifest keeps of it: nothing for what is as it always was."""
        kept: dict[str, Detail] = {}
        if self.autocast != "off":
            kept["autocast"] = self.autocast
        if self.compile:
            kept["compile"] = True
        if self.batch_invariant:
            kept["batch_invariant"] = FIXED_BATCH
        return kept

    def images_of(self, batch_size: int) -> int:
        """Images of a forward."""
        return FIXED_BATCH if self.batch_invariant else batch_size

    def rows_from(self, row: int, batch_size: int) -> int:
        """Rows that go through the teacher together when `row` is the next one."""
        return FIXED_BATCH - row % FIXED_BATCH if self.batch_invariant else batch_size

    def place_of(self, row: int) -> int:
        """The place in its forward of the first row of a batch."""
        return row % FIXED_BATCH if self.batch_invariant else 0

    @property
    def is_padded(self) -> bool:
        """Whether forwards have one shape; for another one, code would be compiled anew."""
        return self.batch_invariant or self.compile


@contextmanager
def _exact() -> Iterator[None]:
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


_shared_exact: Final = ProcessWide(_exact)


def exact_arithmetic() -> AbstractContextManager[None]:
    """Full float32 on the GPU too, for the whole process.

    cuDNN would round a convolution's inputs to 10 bits (TF32) by default; matrix products are rounded so
    where a program, or TORCH_ALLOW_TF32_CUBLAS_OVERRIDE in NVIDIA's containers, has asked torch for "high".
    """
    return _shared_exact()


class Forward:
    """A teacher with its arithmetic; may be called in several threads at once.

    Raises:
        ConfigError: the device cannot autocast to this type.
    """

    def __init__(self, backbone: Backbone, arithmetic: Arithmetic, layers: Collection[int]) -> None:
        self.backbone = backbone
        self.arithmetic = arithmetic
        self._layers = layers
        self._device = backbone.mean.device
        _refuse_autocast(arithmetic.autocast, self._device.type)
        blocks: list[Callable[[Tensor], Tensor]] = list(backbone.blocks)
        if arithmetic.compile:
            # Each by itself: they share one code, and a layer is there when its block is done.
            blocks = [torch.compile(block) for block in backbone.blocks]
        self._blocks = [self._cast(block) for block in blocks]

    def _autocast(self) -> AbstractContextManager[object]:
        dtype = _DTYPES.get(self.arithmetic.autocast)
        return nullcontext() if dtype is None else torch.autocast(self._device.type, dtype)

    def _cast(self, block: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def run(tokens: Tensor) -> Tensor:
            with self._autocast():
                return block(tokens)

        return run

    def __call__(
        self, pixels: UInt8[Tensor, "batch height width 3"]
    ) -> Iterator[tuple[int, Float[Tensor, "batch token dim"]]]:
        """The layers in ascending order, each as soon as it is computed."""
        return self.backbone.layers(self.backbone.prepare(pixels), self._layers, self._blocks)

    @torch.inference_mode()
    def run_once(self, num_images: int) -> None:
        """One forward of black images."""
        height, width = self.backbone.preprocessing.image_size
        for _ in self(torch.zeros(num_images, height, width, 3, dtype=torch.uint8)):
            pass

    def warm_up(self, num_images: int) -> None:
        """A forward in which compiled blocks are compiled; nothing where none are.

        Raises:
            ConfigError: compiling failed, as where there is no compiler.
        """
        if not self.arithmetic.compile:
            return
        from torch._dynamo.exc import TorchDynamoException

        try:
            self.run_once(num_images)
        except TorchDynamoException as exc:
            first = str(exc).strip().splitlines()[0]
            raise ConfigError(
                f"compiling the teacher's blocks failed ({first}); torch.compile needs a working C++ "
                "compiler (on a GPU also triton); install one, or leave --compile out"
            ) from exc


def _refuse_autocast(autocast: Autocast, device: str) -> None:
    """Torch only warns of a type that a device cannot autocast to, and goes on in float32."""
    if autocast == "off":
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with torch.autocast(device, _DTYPES[autocast]):
                is_on = torch.is_autocast_enabled(device)
        except RuntimeError:
            is_on = False
    if not is_on:
        raise ConfigError(f"the device {device} cannot autocast to {autocast}; choose another, or off")
