"""One update of a stage's module: forward in pieces, gradients averaged over processes, clipped, AdamW.

    tokens (rows, layers, tokens, dim) of this process, step  ->  loss and gradient norm, on the device

The rows of a step are those of all processes and pieces together: the gradient is that of their mean, however
many there are of either. Nothing here waits for the device.
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .blocks import RecurrentBlock
from .distributed import Peers
from .ema import Ema
from .noise import seed_of
from .schedule import learning_rate_at
from .stages import Stage

__all__ = ["Updates"]

# Depths and rotary tables are the same in all processes; newer releases of torch have another word for it.
_NEW = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
KEEP_BUFFERS: Final[dict[str, Any]] = {"forward_sync_buffers" if _NEW else "broadcast_buffers": False}


class _Objective(nn.Module):
    """A stage's loss as a forward pass, which is what DDP hooks into."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.module = stage.module
        self._loss = stage.objective

    def forward(self, tokens: Tensor, step: int, generator: torch.Generator) -> Tensor:
        """The loss of one piece."""
        return self._loss(tokens, step, generator)


class Updates:
    """The optimiser of a stage, and all that an update does."""

    def __init__(self, stage: Stage, *, device: torch.device, seed: int, peers: Peers) -> None:
        self.stage, self.device, self.peers = stage, device, peers
        self._seed = seed
        self._parameters = list(stage.module.parameters())
        self.optimizer = torch.optim.AdamW(
            self._parameters,
            lr=stage.config.learning_rate,
            betas=(0.9, stage.config.beta2),
            weight_decay=stage.config.weight_decay,
            fused=device.type in ("cpu", "cuda"),
        )
        self.ema = Ema(stage.module, stage.config.ema_decay) if stage.config.ema_decay else None
        self.learning_rate = 0.0
        self._generator = torch.Generator(device)
        for part in stage.module.modules():
            if isinstance(part, RecurrentBlock):
                # The blocks are shared with the stage before, which may have compiled them.
                part._compiled_call_impl = None
                if stage.config.compile:
                    part.compile()
        self._objective: nn.Module = _Objective(stage)
        if peers.world > 1:
            # Every parameter has a gradient at every step: what does not count has one of zeros.
            self._objective = DistributedDataParallel(self._objective, **KEEP_BUFFERS)

    def __call__(
        self, tokens: Float[Tensor, "rows layers tokens dim"], step: int
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Make the update of `step`, counted from 0; gives the mean loss and the norm before clipping."""
        config = self.stage.config
        self.learning_rate = learning_rate_at(
            step,
            steps=config.steps,
            peak=config.learning_rate,
            warmup_steps=config.warmup_steps,
            floor=config.floor,
            kind=config.schedule,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._backward(tokens, step)
        norm = nn.utils.clip_grad_norm_(self._parameters, config.clip)
        self.optimizer.step()
        if self.ema is not None:
            self.ema.update(step + 1)
        return loss, norm

    def _backward(self, tokens: Tensor, step: int) -> Tensor:
        """Gradients of the mean loss, piece after piece; the processes exchange theirs with the last one."""
        pieces = tokens.chunk(self.stage.config.accumulate)
        losses = []
        for number, piece in enumerate(pieces):
            place = self.peers.rank * self.stage.config.accumulate + number
            self._generator.manual_seed(seed_of(self._seed, step, place))
            last = number == len(pieces) - 1
            with nullcontext() if last else self._apart():
                with self._precision():
                    loss = self._objective(piece, step, self._generator) * (len(piece) / len(tokens))
                torch.autograd.backward(loss)
            losses.append(loss.detach())
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _apart(self) -> AbstractContextManager[None]:
        """Gradients stay with this process inside the block."""
        if isinstance(self._objective, DistributedDataParallel):
            return self._objective.no_sync()
        return nullcontext()

    def _precision(self) -> torch.autocast:
        return torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.stage.config.precision == "bfloat16"
        )
