"""Raptor: k recurrent blocks that stand in for a teacher's L, each tied over one phase of its layers.

    layer `start` (batch, tokens, dim)  ->  layers start+1 .. stop (batch, stop - start, tokens, dim)

Layers count as in the store: 0 is the embedded input, l the output of the teacher's block l. A phase is the
target layers of one block, which is applied once for each of them; phases are contiguous, or any groups of
layers. The embedding and the final norm stay the teacher's and are no part of the model. Any number of tokens
goes in; with rotary positions, that of the tables in use. Source: "Block-Recurrent Dynamics in Vision
Transformers", arXiv 2512.19941; groups, low-rank parts and starting from the teacher's blocks are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from activault.store.errors import ConfigError

from .blocks import RecurrentBlock
from .phases import Phase
from .raptor_config import DepthKind, ModelConfig, RaptorConfig
from .rollout import RolloutModel
from .rotary import RotaryConfig, RotaryTables, Table
from .teacher_init import BlockChoice, teacher_tensors

__all__ = ["DepthKind", "ModelConfig", "Raptor", "RaptorConfig"]


class Raptor(RolloutModel):
    """The block-recurrent surrogate of a teacher."""

    depths: Tensor
    slots: Tensor
    rotary_sin: Tensor | None
    rotary_cos: Tensor | None

    def __init__(self, config: RaptorConfig) -> None:
        super().__init__()
        self.config = config
        self.num_layers = config.num_layers
        self.checkpoint_every = 0
        """Layers between those whose inside is kept for the backward pass of a roll-out; the others are
        computed again. 0 keeps everything."""
        self.blocks = nn.ModuleList(
            RecurrentBlock(
                config.dim,
                config.num_heads,
                mlp=config.mlp,
                mlp_width=config.mlp_width,
                conditioned=config.depth != "none",
                layer_scale=config.layer_scale,
                qkv_bias=config.qkv_bias,
                eps=config.eps,
                random_init=config.random_init,
                num_layers=len(phase),
                lora_rank=config.lora_rank,
                pairs=config.rotary.pairs if config.rotary else None,
            )
            for phase in config.phases
        )
        self._phase_of = {layer: number for number, phase in enumerate(self.phases) for layer in phase}
        depths = torch.arange(config.num_layers + 1, dtype=torch.float32).unsqueeze(1)
        if config.depth == "normalised":
            depths = depths / config.num_layers
        # Buffers, so that no layer's depth is copied to the device in the middle of a step.
        self.register_buffer("depths", depths, persistent=False)
        places = {layer: place for phase in self.phases for place, layer in enumerate(phase)}
        slots = torch.tensor([0, *(places[layer] for layer in range(1, config.num_layers + 1))])
        self.register_buffer("slots", slots, persistent=False)
        sin, cos = _unset_tables(config) or (None, None)
        self.register_buffer("rotary_sin", sin)
        self.register_buffer("rotary_cos", cos)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Target layers of each block, in the blocks' order."""
        return self.config.phases

    @property
    def num_parameters(self) -> int:
        """Learned values over all blocks."""
        return sum(parameter.numel() for parameter in self.parameters())

    def phase_of(self, layer: int) -> int:
        """The phase whose block makes this layer (1 to L)."""
        return self._phase_of[layer]

    def rollout(
        self, tokens: Float[Tensor, "batch tokens dim"], start: int = 0, stop: int | None = None
    ) -> Iterator[Float[Tensor, "batch tokens dim"]]:
        """Layers start+1 .. stop one after the other, each made from the one before it.

        Raises:
            ConfigError: not 0 <= start < stop <= L, or rotary tables are of another number of tokens.
        """
        start, stop = self.checked_span(start, stop)
        self._check_tokens(tokens.shape[-2])
        stride = self.checkpoint_every if torch.is_grad_enabled() else 0
        for first in range(start + 1, stop + 1, stride or 1):
            layers = range(first, min(first + (stride or 1), stop + 1))
            made = (
                checkpoint(self._made, tokens, layers, use_reentrant=False, preserve_rng_state=False)
                if stride
                else self._made(tokens, layers)
            )
            yield from made
            tokens = made[-1]

    def predict_next(
        self, tokens: Float[Tensor, "batch layers tokens dim"], start: int = 0
    ) -> Float[Tensor, "batch layers tokens dim"]:
        """Each of the layers start .. start+n-1 applied to its own block once: layers start+1 .. start+n.

        All layers of a phase go through its block in one call.
        """
        stop = start + tokens.shape[1]
        self.checked_span(start, stop)
        self._check_tokens(tokens.shape[-2])
        made: dict[int, Tensor] = {}
        for number, phase in enumerate(self.phases):
            targets = [layer for layer in phase if start < layer <= stop]
            if not targets:
                continue
            inputs = torch.stack([tokens[:, layer - 1 - start] for layer in targets], dim=1)
            out = self._applied(number, inputs.flatten(0, 1), targets)
            layers = out.view(-1, len(targets), *out.shape[1:])
            made.update(zip(targets, layers.unbind(1), strict=True))
        return torch.stack([made[layer] for layer in range(start + 1, stop + 1)], dim=1)

    def init_from_blocks(self, blocks: Sequence[nn.Module], choice: BlockChoice = "middle") -> None:
        """Start every phase's block from the teacher's own blocks of that phase.

        `blocks[l - 1]` is the teacher's block that makes layer l; `choice` takes the phase's first, middle
        (the later of two) or last block, or the mean of all its tensors. Depth conditioning and low-rank
        parts are left as they are.

        Raises:
            ConfigError: the number of blocks, a shape, the heads, the activation or a norm's epsilon does
                not fit, or the teacher's block has tensors that this block has no place for.
        """
        if len(blocks) != self.num_layers:
            raise ConfigError(
                f"a Raptor of {self.num_layers} layers starts from as many teacher blocks; got {len(blocks)}"
            )
        for block, phase in zip(self.blocks, self.phases, strict=True):
            assert isinstance(block, RecurrentBlock)
            own = [blocks[layer - 1] for layer in phase]
            chosen = {"first": own[:1], "middle": [own[len(own) // 2]], "last": own[-1:], "mean": own}[choice]
            tensors = [teacher_tensors(teacher, block, self.config.eps) for teacher in chosen]
            mean = {name: torch.stack([part[name] for part in tensors]).mean(dim=0) for name in tensors[0]}
            block.load_state_dict(mean, strict=False)

    def use_rotary(self, tables: RotaryTables) -> None:
        """Take the teacher's tables: those of the training grid, or of another grid to roll out on.

        Raises:
            ConfigError: the model has no rotary positions, or the tables are of another kind.
        """
        config = self.config.rotary
        if config is None:
            raise ConfigError("rotary tables are for a model with rotary positions; this one has none")
        given = RotaryConfig.of(tables, config.num_prefix)
        width = self.config.dim // self.config.num_heads
        if given != config.model_copy(update={"num_patches": given.num_patches}) or (
            tables.sin.shape[-1] != width
        ):
            raise ConfigError(
                f"the model's rotary tables are {config.pairs}, per layer {config.per_layer}, per head "
                f"{config.per_head}, {width} wide; got {given.pairs}, {given.per_layer}, {given.per_head}, "
                f"{tables.sin.shape[-1]} wide; take those of the teacher that it was trained on"
            )
        self.rotary_sin = tables.sin.detach().to(self.depths).contiguous()
        self.rotary_cos = tables.cos.detach().to(self.depths).contiguous()

    def _made(self, tokens: Tensor, layers: range) -> tuple[Tensor, ...]:
        """These layers, each from the one before it."""
        made = []
        for layer in layers:
            tokens = self._applied(self.phase_of(layer), tokens, [layer])
            made.append(tokens)
        return tuple(made)

    def _applied(self, phase: int, tokens: Tensor, targets: Sequence[int]) -> Tensor:
        """A phase's block on rows (batch, targets) flattened."""
        if len(targets) == 1 or targets[-1] - targets[0] == len(targets) - 1:
            span = slice(targets[0], targets[-1] + 1)
            depths, slots, table = self.depths[span], self.slots[span], self._table(span)
        else:
            depths, slots = (
                torch.stack([values[layer] for layer in targets]) for values in (self.depths, self.slots)
            )
            parts = [self._table(slice(layer, layer + 1)) for layer in targets]
            table = _joined([part for part in parts if part is not None])
        made: Tensor = self.blocks[phase](tokens, depths, slots if self.config.lora_rank else None, table)
        return made

    def _table(self, layers: slice) -> Table | None:
        """Rotary tables of some target layers; one for all where all layers share it."""
        if self.rotary_sin is None or self.rotary_cos is None:
            return None
        if len(self.rotary_sin) == 1:
            return self.rotary_sin, self.rotary_cos
        own = slice(layers.start - 1, layers.stop - 1)
        return self.rotary_sin[own], self.rotary_cos[own]

    def _check_tokens(self, count: int) -> None:
        """Rotary tables hold for one grid, which the number of tokens has to be of."""
        config = self.config.rotary
        if config is None or self.rotary_sin is None:
            return
        wanted = config.num_prefix + self.rotary_sin.shape[-2]
        if count != wanted:
            raise ConfigError(
                f"the rotary tables in use are for {wanted} tokens and these are {count}; give the teacher's "
                "tables of that grid to use_rotary"
            )


def _unset_tables(config: RaptorConfig) -> Table | None:
    """Tables that turn nothing, of the shape of those that `use_rotary` or a file brings."""
    rotary = config.rotary
    if rotary is None:
        return None
    layers, heads = config.num_layers if rotary.per_layer else 1, config.num_heads if rotary.per_head else 1
    shape = (layers, heads, rotary.num_patches, config.dim // config.num_heads)
    return torch.zeros(shape), torch.ones(shape)


def _joined(tables: Sequence[Table]) -> Table | None:
    """Tables of several layers that do not follow one another."""
    if not tables:
        return None
    if len(tables[0][0]) == 1 and all(table[0] is tables[0][0] for table in tables):
        return tables[0]
    return torch.cat([sin for sin, _ in tables]), torch.cat([cos for _, cos in tables])
