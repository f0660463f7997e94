"""`pull`, `merge` and `publish` through `main`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from http_server import StaticServer
from s3_server import S3

from activault.jobs import sharing
from activault.store import open_store, publishing, verify_store

Command = Callable[..., Any]


def test_a_pull_says_first_how_much_it_is(activault: Command, store: Path, tmp_path: Path) -> None:
    answer = activault("pull", store, tmp_path / "b.zarr", "--dry-run")
    assert answer.status == 0
    assert answer.out.startswith("pull: ")
    assert "files" in answer.out
    assert not (tmp_path / "b.zarr").exists()


def test_a_part_is_pulled_from_a_web_server(
    activault: Command, store: Path, tmp_path: Path, serve: Callable[[Path], StaticServer]
) -> None:
    url = f"{serve(store.parent).url}/{store.name}"
    answer = activault(
        "pull", url, tmp_path / "b.zarr", "--layers", "2-4", "--tokens", "cls", "--rows", "3:9"
    )
    assert answer.status == 0
    assert "rows are copied in whole shards: 3:9 became 0:16" in answer.out
    copy = open_store(tmp_path / "b.zarr")
    assert (copy.layers, copy.kinds, copy.complete) == ((2, 3, 4), ("cls",), True)
    assert copy.digest in answer.out
    assert activault("verify", tmp_path / "b.zarr", "--deep", "--complete").status == 0


def test_a_damaged_copy_is_mended_as_the_page_on_sharing_says(
    activault: Command, store: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "b.zarr"
    assert "--deep" not in activault("pull", store, copy).out
    file = copy / "layer_02/patches/c/1/0/0"
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.write_bytes(data)
    again = activault("pull", store, copy)
    assert "names and sizes alone are looked at; --deep reads it" in again.out
    told = activault("verify", copy, "--deep")
    assert told.status == 1
    assert "layer_02/patches/c/1/0/0" in told.out
    mended = activault("pull", store, copy, "--deep")
    assert (mended.status, "names and sizes" in mended.out) == (0, False)
    assert activault("verify", copy, "--deep", "--complete").status == 0
    assert file.read_bytes() == (store / "layer_02/patches/c/1/0/0").read_bytes()


def test_a_pull_as_json(activault: Command, store: Path, tmp_path: Path) -> None:
    told = activault("pull", store, tmp_path / "b.zarr", "--json").json
    assert told["digest"] == open_store(store).digest
    assert told["complete"]
    again = activault("pull", store, tmp_path / "b.zarr", "--json", "--dry-run").json
    assert 0 < again["bytes_there"] < again["num_bytes"]
    assert "digest" not in again


def test_parts_are_merged(activault: Command, store: Path, tmp_path: Path) -> None:
    for rows in ("0:8", "8:24"):
        assert activault("pull", store, tmp_path / rows, "--rows", rows).status == 0
    answer = activault("merge", tmp_path / "0:8", tmp_path / "8:24", "--out", tmp_path / "all.zarr")
    assert answer.status == 0
    assert f"complete, digest {open_store(store).digest}" in answer.out
    told = activault(
        "merge", tmp_path / "8:24", tmp_path / "0:8", "--out", tmp_path / "all.zarr", "--json"
    ).json
    assert told["digest"] == open_store(store).digest


def test_every_place_that_the_help_names_is_one(activault: Command, store: Path) -> None:
    """What the help of `publish` lists as a destination is accepted, and nothing else is listed."""
    listed = str(sharing.publish.__doc__).split("    destination\n")[1].split("\n    license\n")[0]
    places = re.split(r", | or ", listed.strip().rstrip("."))
    assert places == [
        "s3://bucket/prefix", "hf://datasets/OWNER/NAME[/path]", "hf://buckets/OWNER/NAME[/path]"
    ]  # fmt: skip
    for place in places:
        target = publishing._open_target(place.replace("[", "").replace("]", ""), store, None)
        assert target.where.startswith(place.partition("[")[0])
    assert "folder" not in activault("publish", "--help").out
    assert "folder" not in re.sub(r"\s+", " ", activault("--help").out).partition("publish")[2]


def test_a_store_is_published_and_pulled(activault: Command, store: Path, tmp_path: Path, s3: S3) -> None:
    url = f"s3://{s3.make_bucket()}/photos.zarr"
    assert activault("publish", store, url, "--dry-run").status == 0
    assert f"published: {url}" in activault("publish", store, url).out
    assert activault("publish", store, url, "--deep", "--json").json["num_bytes"] > 0
    assert activault("pull", url, tmp_path / "b.zarr", "--json").json["digest"] == open_store(store).digest


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("pull", "{store}", "{out}", "--layers", "99"), 2, "layer 99 in '99' is out of range"),
        (("pull", "{store}", "{out}", "--rows", "9"), 2, "rows are first:stop"),
        (("pull", "{store}", "{out}", "--tokens", "heads"), 2, "token kinds are"),
        (("pull", "{store}", "{out}", "--threads", "0"), 2, "takes 1 thread or more; got 0"),
        (("pull", "{store}", ""), 2, "got an empty name; for this folder, give ."),
        (("pull", "{store}", "{store}"), 2, "a copy lies outside its source"),
        (("pull", "{out}", "{out}2"), 1, "does not exist"),
        (("pull", "gopher://a/b", "{out}"), 2, "a URL that begins with"),
        (("merge", "{store}", "--out", "{out}"), 2, "two or more stores"),
        (("publish", "{store}", "{out}"), 2, "hf://datasets/OWNER/NAME"),
        (("publish", "{store}", "s3://bucket/a", "--license", "mit"), 2, "a bucket has none"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_is_told_in_one_line(
    activault: Command, store: Path, tmp_path: Path, arguments: tuple[str, ...], status: int, words: str
) -> None:
    answer = activault(*(text.format(store=store, out=tmp_path / "out.zarr") for text in arguments))
    assert answer.status == status
    assert words in answer.error_line
    assert not (tmp_path / "out.zarr").exists()


def test_the_commands_need_no_torch(store: Path, tmp_path: Path) -> None:
    code = """
import sys
sys.modules["torch"] = None
from activault.jobs.cli import main
store, out = sys.argv[1:]
assert main(["pull", store, out + "/a", "--layers", "0-3"]) == 0
assert main(["pull", store, out + "/b", "--layers", "4-6"]) == 0
assert main(["merge", out + "/a", out + "/b", "--out", out + "/c"]) == 0
"""
    subprocess.run([sys.executable, "-c", code, str(store), str(tmp_path)], check=True)
    assert verify_store(tmp_path / "c", deep=True, complete=True).ok
    assert open_store(tmp_path / "c").digest == open_store(store).digest
