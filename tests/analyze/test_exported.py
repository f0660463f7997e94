from __future__ import annotations

import subprocess
import sys

import pytest

import activault.analyze as analyze

NAMES = [
    *("LayerSimilarity", "layer_similarity"),
    *("Cost", "Phases", "max_cut_phases", "max_num_phases", "cost_curve", "cut_stability"),
    *("Curve", "Dynamics", "Measure"),
    *("ModelAnalysis", "Rollout", "StoreAnalysis", "analyze_store"),
    *("StoreFacts", "store_facts", "R2Row", "ProbeRow", "LossCurve", "ReportInputs", "write_report"),
]


def test_public_names_are_pinned() -> None:
    assert analyze.__all__ == NAMES
    for name in NAMES:
        assert getattr(analyze, name) is not None


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'plot'"):
        analyze.plot  # noqa: B018


def test_numbers_need_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys, activault.analyze; "
        "assert not {'torch', 'matplotlib', 'timm'} & set(sys.modules); activault.analyze.write_report; "
        "assert 'matplotlib' in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
