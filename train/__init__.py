"""Training of block-recurrent surrogates from a store: phases, closed loop, metrics and probes.

from activault.train import Raptor, RaptorConfig, load_run, load_recipe, train
"""

from __future__ import annotations

from .cost import Cost, CostComparison, compare_cost, cost_of
from .early_exit import EarlyExit, early_exit
from .exporting import Exported, export_run
from .finished import Run, load_run
from .linear_maps import LinearMaps, fit_linear_maps
from .metrics import R2Accumulator, RolloutMetrics, evaluate_rollout
from .probes import ProbeReport, ProbeScore, probe
from .raptor import ModelConfig, Raptor, RaptorConfig
from .recipe import Stage1Config, Stage2Config, StageConfig, TrainRecipe, load_recipe, parse_recipe
from .repeated import RepeatedBlocks, repeated_blocks
from .rollout import Identity, RolloutModel
from .runs import RunSummary, train
from .stages import StageProgress, StageResult

__all__ = [
    "Raptor",
    "RaptorConfig",
    "ModelConfig",
    "RolloutModel",
    "Identity",
    "LinearMaps",
    "fit_linear_maps",
    "RepeatedBlocks",
    "repeated_blocks",
    "Cost",
    "CostComparison",
    "cost_of",
    "compare_cost",
    "EarlyExit",
    "early_exit",
    "Exported",
    "export_run",
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
