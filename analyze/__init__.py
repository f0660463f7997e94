"""Analyses of stored activations: layer similarity, phases, dynamics, figures and the report.

In: an open store, and for a surrogate its roll-outs. Out: typed results, and one self-contained HTML page.
Importing this needs neither torch nor matplotlib; drawing needs matplotlib.
"""

from __future__ import annotations

from .dynamics import Curve, Dynamics, Measure
from .phases import Cost, Phases, cost_curve, cut_stability, max_cut_phases, max_num_phases
from .similarity import LayerSimilarity, layer_similarity
from .study import ModelAnalysis, Rollout, StoreAnalysis, analyze_store

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
]
