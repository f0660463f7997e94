"""Training of block-recurrent surrogates from a store: phases, closed loop, metrics and probes.

from activault.train import Raptor, RaptorConfig, load_run, load_recipe, train
"""

from __future__ import annotations

from .finished import Run, load_run
from .metrics import R2Accumulator, RolloutMetrics, evaluate_rollout
from .probes import ProbeReport, ProbeScore, probe
from .raptor import ModelConfig, Raptor, RaptorConfig
from .recipe import Stage1Config, Stage2Config, StageConfig, TrainRecipe, load_recipe, parse_recipe
from .repeated import RepeatedBlocks, repeated_blocks
from .runs import RunSummary, train
from .stages import StageProgress, StageResult

__all__ = [
    "Raptor",
    "RaptorConfig",
    "ModelConfig",
    "RepeatedBlocks",
    "repeated_blocks",
    "TrainRecipe",
    "StageConfig",
    "Stage1Config",
    "Stage2Config",
    "load_recipe",
    "parse_recipe",
    "train",
    "load_run",
    "Run",
    "RunSummary",
    "StageProgress",
    "StageResult",
    "R2Accumulator",
    "RolloutMetrics",
    "evaluate_rollout",
    "probe",
    "ProbeReport",
    "ProbeScore",
]
