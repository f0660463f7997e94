"""What `activault.extract` offers, and what it says where its libraries are not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

import activault.extract
from activault.store import MissingExtraError


def test_public_names() -> None:
    assert sorted(activault.extract.__all__) == [
        "Backbone",
        "Estimate",
        "ExtractOptions",
        "ExtractSummary",
        "GrowthSummary",
        "ImageFolder",
        "ImageSource",
        "SourceOptions",
        "append",
        "estimate",
        "extend",
        "extract",
        "load_backbone",
        "load_teacher",
        "open_source",
        "repair",
        "save_teacher",
    ]
    for name in activault.extract.__all__:
        assert getattr(activault.extract, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = activault.extract.nothing


def test_importing_the_room_imports_neither_torch_nor_timm() -> None:
    code = "import sys, activault.extract; print([m for m in ('torch', 'timm', 'PIL') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'timm'", name="timm")

    monkeypatch.setattr(activault.extract.importlib, "import_module", absent)
    monkeypatch.delattr(activault.extract, "load_backbone", raising=False)
    with pytest.raises(MissingExtraError, match=r"extraction needs timm; pip install 'activault\[all\]'"):
        _ = activault.extract.load_backbone
