"""What of a config makes two runs the same, in a form that stays the same when keys are added later.

    a pydantic model  ->  a table for JSON, which is hashed

A key that the first version of the program did not know is left out while it has its default: a run of then
and one of now that says nothing of it are the same run.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

__all__ = ["identity_of"]

FIRST_KEYS: Final = frozenset(
    {
        "store",
        "seed",
        "cuts",
        "num_phases",
        "cost",
        "split",
        "init",
        "model",
        "stage1",
        "stage2",
        "mlp",
        "depth",
        "layer_scale",
        "qkv_bias",
        "eps",
        "dim",
        "num_heads",
        "num_layers",
        "mlp_width",
        "steps",
        "batch_size",
        "learning_rate",
        "weight_decay",
        "beta2",
        "warmup_steps",
        "floor",
        "clip",
        "loss",
        "token_weights",
        "checkpoint_every",
        "log_every",
        "teacher_forcing",
        "last_phase_token_weights",
        "cls",
        "registers",
        "patches",
    }
)
"""Keys of the first version's recipes and models; they are always told."""


def identity_of(config: BaseModel, *, leave_out: frozenset[str] = frozenset()) -> dict[str, Any]:
    """All keys of the config and of the configs in it, but later ones at their defaults and `leave_out`."""
    told = config.model_dump(mode="json")
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        default = field.get_default(call_default_factory=True)
        if name in leave_out or (name not in FIRST_KEYS and value == default):
            del told[name]
        elif isinstance(value, BaseModel):
            told[name] = identity_of(value)
    return told
