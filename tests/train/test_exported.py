"""The room's public names, pinned."""

from __future__ import annotations

from activault import train


def test_public_names() -> None:
    assert sorted(train.__all__) == [
        "Cost",
        "CostComparison",
        "EarlyExit",
        "Exported",
        "Identity",
        "LinearMaps",
        "ModelConfig",
        "ProbeReport",
        "ProbeScore",
        "R2Accumulator",
        "Raptor",
        "RaptorConfig",
        "RepeatedBlocks",
        "RolloutMetrics",
        "RolloutModel",
        "Run",
        "RunSummary",
        "Stage1Config",
        "Stage2Config",
        "StageConfig",
        "StageProgress",
        "StageResult",
        "TrainRecipe",
        "compare_cost",
        "cost_of",
        "early_exit",
        "evaluate_rollout",
        "export_run",
        "fit_linear_maps",
        "load_recipe",
        "load_run",
        "parse_recipe",
        "probe",
        "repeated_blocks",
        "train",
    ]
    assert all(hasattr(train, name) for name in train.__all__)
