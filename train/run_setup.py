"""What a run starts from: its rows, the shape of its model, and the model before any step.

    recipe, store, phases, what the teacher hands over  ->  rows, RaptorConfig, Raptor

Everything here is checked before the run's folder is made.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from pydantic import ValidationError
from torch import nn

from activault.store import Store, split_rows
from activault.store.errors import ConfigError, IncompleteStoreError
from activault.store.layout import require_all_layers, require_all_tokens

from .raptor import Raptor
from .raptor_config import RaptorConfig
from .recipe import TrainRecipe
from .rotary import RotaryConfig, RotaryTables
from .teacher_init import mlp_width
from .validation import hold_out

__all__ = ["check_phases", "check_store", "cuda_devices", "initial_model", "raptor_config", "rows_of"]


def rows_of(recipe: TrainRecipe, store: Store) -> tuple[np.ndarray, np.ndarray]:
    """Rows to learn from, and rows held out for validation."""
    rows = store.valid_rows if recipe.split == "all" else split_rows(store.samples, store.valid_rows)["train"]
    if not len(rows):
        remedy = "set split = 'all'" if recipe.split == "train" else "extract images that can be read"
        raise ConfigError(f"training needs rows; the store has none in split {recipe.split!r}: {remedy}")
    return hold_out(store, rows, recipe.validation)


def check_phases(recipe: TrainRecipe, cuts: tuple[int, ...], groups: Sequence[Sequence[int]] | None) -> None:
    """Hold phases that were found or given against the recipe's own.

    Raises:
        ConfigError: the recipe gives others.
    """
    if recipe.cuts is not None and recipe.cuts != cuts:
        raise ConfigError(f"the recipe gives cuts {list(recipe.cuts)}; got {list(cuts)} to train with")
    given = None if groups is None else tuple(tuple(group) for group in groups)
    if recipe.groups is not None and recipe.groups != given:
        raise ConfigError(f"the recipe gives groups {recipe.groups}; got {given} to train with")


def raptor_config(
    recipe: TrainRecipe,
    store: Store,
    cuts: Sequence[int],
    groups: Sequence[Sequence[int]] | None = None,
    rotary: RotaryTables | None = None,
    teacher_blocks: Sequence[nn.Module] | None = None,
) -> RaptorConfig:
    """The model's shape: the recipe's kind, the store's widths, the phases, the teacher's rotary tables.

    Raises:
        ConfigError: the phases do not fit the store's layers.
    """
    teacher = store.manifest.teacher
    kind = recipe.model.model_dump()
    if teacher.num_heads is None:
        raise ConfigError(
            f"the store does not know how many attention heads its teacher ({teacher.name}) has; give them "
            "when it is imported: `activault import --heads N`"
        )
    width = None
    if recipe.teacher_block is not None and teacher_blocks is not None and recipe.model.mlp != "swiglu_iso":
        width = mlp_width(teacher_blocks, gated=recipe.model.mlp == "swiglu")
    prefix = store.layout.num_tokens - store.layout.num_patches
    try:
        return RaptorConfig(
            dim=teacher.dim,
            num_heads=teacher.num_heads,
            num_layers=teacher.num_blocks,
            cuts=tuple(cuts),
            groups=None if groups is None else tuple(tuple(group) for group in groups),
            rotary=None if rotary is None else RotaryConfig.of(rotary, prefix),
            mlp_width=width,
            **kind,
        )
    except ValidationError as exc:
        raise ConfigError(exc.errors()[0]["msg"].removeprefix("Value error, ")) from exc


def cuda_devices(device: torch.device) -> list[int]:
    """Index of the CUDA device that the run draws on, if it is one."""
    if device.type != "cuda":
        return []
    return [torch.cuda.current_device() if device.index is None else device.index]


def check_store(store: Store) -> None:
    """Training reads every layer and every token of every row."""
    if not store.complete:
        raise IncompleteStoreError(
            f"training needs a complete store and {store.path} is not; finish its extraction"
        )
    require_all_layers(store.layers, store.manifest.teacher.num_blocks, "training")
    require_all_tokens(store.layout, store.kinds, "training")


def initial_model(
    recipe: TrainRecipe,
    config: RaptorConfig,
    blocks: Sequence[nn.Module] | None,
    rotary: RotaryTables | None,
) -> Raptor:
    """The model before any step, on the CPU, from the random state as it is.

    Raises:
        ConfigError: the recipe starts from the teacher's blocks and there are none, or they do not fit.
    """
    model = Raptor(config)
    if rotary is not None:
        model.use_rotary(rotary)
    if recipe.teacher_block is not None:
        if blocks is None:
            raise ConfigError(
                f"init {recipe.init!r} needs the teacher's blocks; use init = 'random' without a teacher"
            )
        model.init_from_blocks(blocks, recipe.teacher_block)
    return model
