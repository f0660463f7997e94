from __future__ import annotations

import dataclasses
import json
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from activault.analyze import ProbeRow, R2Row, ReportInputs, analyze_store, write_report
from activault.store.errors import ConfigError

RUN_SECTIONS = ["probes", "r2", "training"]
STORE_SECTIONS = ["similarity", "phases", "convergence", "speed", "rank", "facts"]


class Page(HTMLParser):
    """A page's tags with their attributes, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def sections(self) -> list[str | None]:
        return [section["id"] for section in self.all("section")]


@pytest.fixture(scope="module")
def full(report_folder) -> Page:
    return Page(report_folder / "report.html")


def test_all_sections_are_there_and_linked(full) -> None:
    assert full.sections == RUN_SECTIONS + STORE_SECTIONS
    assert [link["href"] for link in full.all("a")] == [f"#{name}" for name in full.sections]


def test_the_page_needs_nothing_from_outside(full) -> None:
    allowed = ("#", "data:,")
    for tag, attributes in full.tags:
        assert tag not in {"script", "iframe", "object", "embed", "img", "base"}
        for name in ("src", "href", "xlink:href", "srcset", "action", "data"):
            assert (attributes.get(name) or "#").startswith(allowed), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes)
    style = full.source.split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_ids_are_unique_on_the_page(full) -> None:
    names = [attributes["id"] for _, attributes in full.tags if "id" in attributes]
    assert [name for name, times in Counter(names).items() if times > 1] == []


def test_every_figure_has_a_caption_and_a_spoken_name(full) -> None:
    assert len(full.all("figure")) == len(full.all("figcaption")) == 12
    drawn = [svg for svg in full.all("svg") if svg.get("class") == "figure"]
    assert len(drawn) == 12
    assert all(svg["aria-label"] for svg in drawn)


def test_the_numbers_that_matter_come_first(full) -> None:
    head = full.text.split("What the surrogate is good for")[0]
    assert "14" in head
    assert "1 / 2.65 of float32 (2.6 MB)" in head
    assert "3 phases" in head
    assert "80 %" in head
    assert "98 %" in head
    assert "not Meta's release" in head


def test_findings_stand_beside_the_published_ones(full) -> None:
    assert full.text.count("Published") >= 7
    assert "above the best baseline (identity, 22 %)" in full.text
    assert "CLS: constant at layer 3" in full.text
    assert "constant" in full.text


def test_without_a_run_its_sections_are_left_out_and_said_to_be(store_inputs, tmp_path) -> None:
    page = Page(write_report(tmp_path, store_inputs))
    assert page.sections == STORE_SECTIONS
    assert "Left out, because no results were given: training losses; R2 of the roll-out; probes" in page.text


def test_another_teacher_brings_no_note_about_the_demo(store_inputs, tmp_path) -> None:
    other = dataclasses.replace(store_inputs.store, teacher="vit_base_patch14_reg4_dinov2")
    page = Page(write_report(tmp_path, dataclasses.replace(store_inputs, store=other)))
    assert "Meta's release" not in page.text
    assert "vit_base_patch14_reg4_dinov2, layer by layer" in page.text


def test_text_from_outside_is_escaped(run_inputs, tmp_path) -> None:
    nasty = "<script>alert('x')</script>&\"quote\""
    inputs = dataclasses.replace(
        run_inputs,
        store=dataclasses.replace(run_inputs.store, teacher=nasty, source=nasty, digest=nasty),
        probes=[ProbeRow(name=nasty, head="frozen", accuracy=0.1, retention=0.1)],
        losses=[dataclasses.replace(run_inputs.losses[0], stage=nasty, name=nasty)],
        notes={nasty: nasty},
    )
    page = Page(write_report(tmp_path, inputs))
    assert page.all("script") == []
    assert "<script" not in page.source
    assert nasty in page.text


def test_the_same_inputs_give_the_same_bytes(run_inputs, report_folder, tmp_path) -> None:
    write_report(tmp_path / "new" / "folder", run_inputs)
    for name in ("report.html", "numbers.json", "layers.parquet"):
        assert (tmp_path / "new" / "folder" / name).read_bytes() == (report_folder / name).read_bytes()


def test_numbers_are_there_for_programs(report_folder) -> None:
    numbers = json.loads((report_folder / "numbers.json").read_text())
    assert numbers["cuts"] == [2, 4]
    assert numbers["store"]["digest"] == "0123abcd"
    assert len(numbers["similarity"]["surrogate"]) == 9
    assert [phases["k"] for phases in numbers["phases"]] == [2, 3, 4]
    assert {"layer": 3, "kind": "cls", "value": None} in numbers["r2"]
    assert numbers["losses"][2]["steps"][-1] == 499


def test_the_layer_table_has_one_row_a_layer_and_kind(run_inputs, report_folder) -> None:
    rows = pq.read_table(report_folder / "layers.parquet").to_pylist()
    keys = [(row["model"], row["measure"], row["kind"], row["layer"]) for row in rows]
    assert len(set(keys)) == len(keys)
    curve = run_inputs.analysis.teacher.dynamics.curve("speed", "patches")
    found = [row for row in rows if row["model"] == "teacher" and row["measure"] == "speed"]
    patches = [row for row in found if row["kind"] == "patches"]
    assert [row["layer"] for row in patches] == list(curve.layers)
    assert [row["value"] for row in patches] == list(curve.mean)
    assert {row["unit"] for row in patches} == {"radian"}
    r2 = {(row["kind"], row["layer"]): row["value"] for row in rows if row["measure"] == "r2"}
    assert (r2["cls", 1], r2["cls", 3]) == (-18.0, None)


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({"rows": 1}, {}),
        ({"layers": 3}, {}),
        ({}, {"kinds": ("patches",)}),
        ({}, {"layers": (1, 2, 3, 4, 5, 6)}),
    ],
    ids=["one row", "two blocks", "patches alone", "no layer 0"],
)
def test_small_and_partial_stores_get_the_report_that_fits(
    make_source, store_inputs, tmp_path, options, change
):
    source = make_source(**options)
    for name, value in change.items():
        setattr(source, name, value)
    analysis = analyze_store(source, num_resamples=5)
    cuts = analysis.phases[0].cuts if analysis.phases else ()
    inputs = ReportInputs(store=store_inputs.store, analysis=analysis, cuts=cuts)
    page = Page(write_report(tmp_path, inputs))
    assert ("phases" in page.sections) == bool(analysis.phases)
    assert {"similarity", "convergence", "speed", "rank"} <= set(page.sections)


@pytest.mark.parametrize("cuts", [(4, 2), (2, 2), (8,), (0,), (11,)], ids=str)
def test_cuts_that_divide_nothing_are_refused(store_inputs, cuts) -> None:
    with pytest.raises(ConfigError, match="cuts ascend within the analysed layers"):
        dataclasses.replace(store_inputs, cuts=cuts)


def test_results_are_read_back_from_json() -> None:
    metrics = {"layers": [1, 2], "num_rows": 3, "r2": {"cls": ["constant", 0.5], "all": [0.1, 0.2]}}
    assert R2Row.from_metrics(metrics)[:2] == (
        R2Row(layer=1, kind="cls", value=None),
        R2Row(layer=2, kind="cls", value=0.5),
    )
    score = {
        "frozen_accuracy": 0.5,
        "refitted_accuracy": 0.8,
        "frozen_retention": 0.6,
        "refitted_retention": 0.9,
    }
    assert ProbeRow.from_report({"scores": {"surrogate": score}}) == (
        ProbeRow(name="surrogate", head="frozen", accuracy=0.5, retention=0.6),
        ProbeRow(name="surrogate", head="refitted", accuracy=0.8, retention=0.9),
    )
