"""CARD.md: made from the manifest, safe for any string in it, never written over what somebody edited."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from activault.store import SourceInfo, open_store
from activault.store.card import CARD, make_card, write_card
from activault.store.index import IndexSummary
from activault.store.manifest import Manifest, Quantisation

from .conftest import TEACHER, MakePlan, Plan, make_manifest

HOSTILE = [
    "plain",
    "---\nlicense: mit\n---\n# Title",
    "`a` ``b`` ```c```",
    "`",
    '"quoted" \\ back',
    "a: b, [c], {d}, !e &f *g #h | i > j % @k",
    "<!-- activault: 00000000000000000000000000000000 -->",
    "<script>alert(1)</script> ![x](http://x.invalid/y)",
    "tab\tnul\x00 nbsp\u00a0 separator\u2028 bell\x07 reversed\u202e",
    "ÄÖ 漢字 🙂",
    "{layer} {0} %s",
    "x" * 5000,
    "half \ud800 pair",
    "",
]


def summary(**changes: Any) -> IndexSummary:
    fields: dict[str, Any] = {
        "format": 1,
        "manifest": "a" * 64,
        "samples": "b" * 64,
        "samples_hash": "c" * 32,
        "num_bad": 2,
        "num_bytes": 123_456,
        "digest": "d" * 64,
        "arrays_digest": "e" * 64,
    }
    return IndexSummary(**fields | changes)


def card_of(manifest: Manifest, **changes: Any) -> str:
    return make_card(manifest, summary(**changes), {}).decode()


def front_matter(card: str) -> dict[str, Any]:
    value = yaml.safe_load(card.split("---\n")[1])
    assert isinstance(value, dict)
    return value


def hostile_manifest(text: str) -> Manifest:
    return make_manifest(
        teacher=TEACHER.model_copy(
            update={
                "name": text,
                "architecture": text,
                "weights": text,
                "license": text,
                "timm_version": text,
            }
        ),
        source=SourceInfo(kind="folder", name=text, fingerprint=text),
        license=text,
        citation=text,
    )


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_string_of_a_manifest_breaks_the_front_matter(text: str) -> None:
    found = front_matter(card_of(hostile_manifest(text)))
    assert set(found) <= {"license", "license_name", "pretty_name", "tags", "size_categories"}
    assert all(isinstance(value, str) for value in found["tags"])
    assert "\n" not in found["pretty_name"]
    assert found["license"] in {"other", "unknown"}
    assert re.fullmatch(r"[a-z0-9.-]+", found.get("license_name", "none"))


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_string_of_a_manifest_becomes_markup(text: str) -> None:
    """Outside of code there is only what the generator says itself."""
    card = card_of(hostile_manifest(text)).split("\n---\n", 1)[1]
    lines = re.sub(r"(?ms)^(`{3,})[^`\n]*\n.*?^\1$", "", card)
    lines = re.sub(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", "", lines)
    headings = [line for line in lines.splitlines() if line.startswith("#")]
    assert headings[0].startswith("# Activations of ")
    assert len(headings) == 6
    assert "<script" not in lines
    assert "](" not in lines
    assert lines.count("<!--") == 1
    assert not set("\x00\x07\u2028\u202e") & set(card)
    assert max(map(len, lines.splitlines())) < 400


def test_the_card_tells_what_the_store_is() -> None:
    card = card_of(make_manifest(license="CC-BY-4.0", citation="@misc{us,\n  title={Ours}\n}"))
    for said in (
        "tiny",
        "0, 2, 4",
        "1 cls, 2 registers, 6 patches",
        "2 x 3 grid",
        "123,456",
        "d" * 64,
        "e" * 64,
    ):
        assert said in card
    assert "shorter side to 28 pixels (bicubic), centre crop of 28 x 42" in card
    assert "title={Ours}" in card
    assert front_matter(card) == {
        "license": "cc-by-4.0",
        "pretty_name": "Activations of tiny over images",
        "tags": ["activault", "activations", "vision-transformer", "zarr"],
        "size_categories": ["n<1K"],
    }


def test_what_is_unknown_is_said_to_be() -> None:
    teacher = TEACHER.model_copy(update={"num_heads": None, "weights": "unknown", "timm_version": "unknown"})
    card = card_of(make_manifest(teacher=teacher, preprocessing=None))
    assert "**Preprocessing**: unknown." in card
    assert "an unknown number of heads" in card
    assert "**Weights**: unknown;" in card
    assert "nobody has said under which terms" in card
    assert front_matter(card)["license"] == "unknown"


def test_another_licence_is_other_with_a_name() -> None:
    found = front_matter(card_of(make_manifest(license="Our Lab's Terms 1.0")))
    assert (found["license"], found["license_name"]) == ("other", "our-lab-s-terms-1.0")


def test_a_partial_copy_says_what_it_is_of() -> None:
    card = card_of(make_manifest(shards=((1, 2), (3, 4))))
    assert "18 of 50" in card
    assert "shards 1 to 1, 3 to 3 of 16 rows" in card
    assert "slice(16, 24)" in card


@pytest.mark.parametrize(("rows", "size"), [(1, "n<1K"), (1000, "1K<n<10K"), (1_281_167, "1M<n<10M")])
def test_sizes_are_the_hubs(rows: int, size: str) -> None:
    assert front_matter(card_of(make_manifest(num_rows=rows)))["size_categories"] == [size]


def test_the_error_of_int8_is_told_by_layer() -> None:
    steps = Quantisation(scale=(1.0,) * 8, offset=(0.0,) * 8, variance=1.0)
    manifest = make_manifest(dtype="int8", quantisation=(steps,) * 3)
    card = make_card(manifest, summary(), {0: 0.9999, 2: 0.9993, 4: 0.9995}).decode()
    assert "0.99930 or more, least in layer 2" in card
    assert "codes == -128" in card


def test_a_complete_store_has_a_card(written: Plan) -> None:
    card = (written.path / CARD).read_text()
    assert open_store(written.path).digest in card
    assert str(written.path.parent) not in card


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_lines_of_the_card_read_the_store(
    make_plan: MakePlan, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan("STORE.zarr", bad_rows=(3,), dtype=dtype)
    plan.write()
    monkeypatch.chdir(plan.path.parent)
    blocks = re.findall(r"```python\n(.*?)```", (plan.path / CARD).read_text(), re.DOTALL)
    assert len(blocks) == 2
    values = []
    for block in blocks:
        names: dict[str, Any] = {}
        exec(block, names)
        values.append(names["x"])
    ours, plain = values
    assert ours.shape == (8, 1, 6, 8)
    assert ours[:, 0].tobytes() == plain.tobytes()


def test_a_card_that_somebody_edited_is_kept(tmp_path: Path) -> None:
    write_card(tmp_path, make_manifest(), summary(), {})
    edited = (tmp_path / CARD).read_text().replace("None was given.", "Cite us.")
    (tmp_path / CARD).write_text(edited)
    write_card(tmp_path, make_manifest(), summary(num_bad=3), {})
    assert (tmp_path / CARD).read_text() == edited


def test_a_card_that_nobody_edited_is_made_anew(tmp_path: Path) -> None:
    write_card(tmp_path, make_manifest(), summary(), {})
    write_card(tmp_path, make_manifest(license="mit"), summary(digest="f" * 64), {})
    assert (tmp_path / CARD).read_bytes() == make_card(
        make_manifest(license="mit"), summary(digest="f" * 64), {}
    )


@pytest.mark.parametrize("content", [b"", b"mine", b"x" * (2 << 20)], ids=["empty", "foreign", "large"])
def test_a_card_of_somebodys_own_is_kept(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CARD).write_bytes(content)
    write_card(tmp_path, make_manifest(), summary(), {})
    assert (tmp_path / CARD).read_bytes() == content


def test_a_store_is_completed_with_an_edited_card(plan: Plan) -> None:
    with plan.open() as writer:
        for shard in writer.unfinished:
            plan.publish(writer, shard)
        (plan.path / CARD).write_text("Ours.\n")
        writer.complete()
    assert (plan.path / CARD).read_text() == "Ours.\n"
    assert open_store(plan.path).complete
