"""Analyses of stored activations: layer similarity, phases, dynamics, figures and the report.

In: an open store, and for a surrogate its roll-outs. Out: typed results, and one self-contained HTML page.
Importing this needs neither torch nor matplotlib; drawing needs matplotlib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .dynamics import Curve, Dynamics, Measure
from .inputs import LossCurve, ProbeRow, R2Row, ReportInputs, StoreFacts, store_facts
from .phases import Cost, Phases, cost_curve, cut_stability, max_cut_phases, max_num_phases
from .similarity import LayerSimilarity, layer_similarity
from .study import ModelAnalysis, Rollout, StoreAnalysis, analyze_store

if TYPE_CHECKING:
    from .report import write_report

__all__ = [
    "LayerSimilarity",
    "layer_similarity",
    "Cost",
    "Phases",
    "max_cut_phases",
    "max_num_phases",
    "cost_curve",
    "cut_stability",
    "Curve",
    "Dynamics",
    "Measure",
    "ModelAnalysis",
    "Rollout",
    "StoreAnalysis",
    "analyze_store",
    "StoreFacts",
    "store_facts",
    "R2Row",
    "ProbeRow",
    "LossCurve",
    "ReportInputs",
    "write_report",
]


def __getattr__(name: str) -> Any:
    # Drawing needs matplotlib, which takes a second to import and is not needed for numbers.
    if name == "write_report":
        from .report import write_report

        return write_report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
