"""How many bad images a run puts up with, and what it says when there are more."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from activault.extract.budget import Budget, ErrorBudget, parse_budget
from activault.extract.options import ExtractOptions
from activault.extract.run import extract
from activault.extract.sources import open_source
from activault.store import ConfigError, ImageSourceError, Outcome, open_store, verify_store

from .conftest import MakeFolder, changed
from .make_sources import picture, write_samples

BAD = Outcome(status="truncated", reason="the data ends early")


def budget(text: str, num_rows: int = 100, before: int = 0, faults: tuple[str, ...] = ()) -> ErrorBudget:
    return ErrorBudget(parse_budget(text, num_rows), lambda row: f"{row}.jpg", before, faults)


@pytest.mark.parametrize(
    ("text", "num_rows", "most"),
    [
        ("0", 100, 0),
        ("250", 100, 250),
        ("5%", 1000, 50),
        ("0.1 %", 1_280_000, 1280),
        ("5%", 20, 10),
        ("0%", 1000, 0),
        ("100%", 1000, 1000),
    ],
)
def test_counts_and_shares(text: str, num_rows: int, most: int) -> None:
    assert parse_budget(text, num_rows) == Budget(text, most, text == "100%")


@pytest.mark.parametrize("text", ["", "-1", "101%", "many", "1.5", "%"])
def test_what_is_neither(text: str) -> None:
    with pytest.raises(ConfigError, match="max_bad is a number of rows or a share of them such as 5%"):
        ExtractOptions(teacher="demo", max_bad=text)


def test_the_one_that_is_too_many_is_told_with_the_first_reasons() -> None:
    counted = budget("3")
    for row in (9, 4, 7):
        counted.add(row, BAD)
    counted.add(1, Outcome(status="ok"))
    with pytest.raises(
        ImageSourceError,
        match=r"4 images are bad, and max_bad allows 3 \(3\): 1 empty, 3 truncated; first "
        r"2\.jpg \(empty: no bytes\), 4\.jpg \(truncated: the data ends early\), .* with a higher --max-bad",
    ):
        counted.add(2, Outcome(status="empty", reason="no bytes"))


def test_a_row_that_is_decoded_twice_counts_once() -> None:
    counted = budget("1")
    for _ in range(5):
        counted.add(3, BAD)


def test_what_was_bad_before_and_faults_of_the_source_count() -> None:
    budget("3", before=2, faults=("x.tar is cut off",)).check()
    with pytest.raises(
        ImageSourceError, match=r"3 images .* 2 in shards that were finished before; x\.tar is cut off; look"
    ):
        budget("2", before=2, faults=("x.tar is cut off",)).check()


def test_a_wrong_source_is_noticed_after_a_thousand_images() -> None:
    counted = budget("50%", 1_000_000)
    for row in range(999):
        counted.add(row, BAD)
    with pytest.raises(
        ImageSourceError, match=r"none of the first 1000 .*go on all the same with --max-bad 100%"
    ):
        counted.add(999, BAD)
    other = budget("50%", 1_000_000)
    other.add(0, Outcome(status="ok"))
    for row in range(1, 3000):
        other.add(row, BAD)


def test_all_may_be_bad_where_that_is_said() -> None:
    counted = budget("100%", 10)
    for row in range(5000):
        counted.add(row, BAD)


def test_threads_do_not_lose_count() -> None:
    counted, raised = budget("499", 1000), threading.Event()

    def add(row: int) -> None:
        try:
            counted.add(row, BAD)
        except ImageSourceError:
            raised.set()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(499)))
        assert not raised.is_set()
        list(threads.map(add, range(499, 500)))
    assert raised.is_set()


def damaged(folder: Path, numbers: list[int]) -> Path:
    for number in numbers:
        (folder / f"class{number % 3}" / f"{number:03d}.png").write_bytes(b"")
    return folder


def test_a_run_stops_keeps_what_is_finished_and_goes_on_with_a_higher_budget(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    kept = changed(options, order="kept", batch_size=2, workers=1)
    keys = open_source(make_folder(32)).keys
    bad = [int(Path(keys[row]).stem) for row in (3, 9, 21, 22)]
    folder, store = damaged(tmp_path / "photos", bad), tmp_path / "s.zarr"
    with pytest.raises(ImageSourceError, match=r"allows 2 \(2\): 3 empty|allows 2 \(2\): .*finished before"):
        extract(folder, store, changed(kept, max_bad="2"))
    half = open_store(store)
    assert not half.complete
    finished = [*(store / "shards").glob("*.json")]
    assert verify_store(store, deep=True).ok
    with pytest.raises(ImageSourceError, match="max_bad allows 3"):
        extract(folder, store, changed(kept, max_bad="3"))
    summary = extract(folder, store, changed(kept, max_bad="4"))
    assert summary.bad == {"empty": 4}
    assert summary.num_new == 32 - 8 * len(finished) < 32
    extract(folder, tmp_path / "t.zarr", kept)
    assert open_store(tmp_path / "t.zarr").digest == summary.digest


def test_bad_rows_of_a_shard_that_is_computed_again_count_once(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    keys = open_source(make_folder(24)).keys
    folder = damaged(tmp_path / "photos", [int(Path(keys[row]).stem) for row in (1, 4, 9, 10)])
    store, allowed = tmp_path / "s.zarr", changed(options, order="kept", max_bad="4")
    digest = extract(folder, store, allowed).digest
    lost = store / "layer_06" / "patches" / "c" / "0" / "0" / "0"
    lost.unlink()
    again = extract(folder, store, allowed)
    assert (again.num_new, again.bad, again.digest) == (8, {"empty": 4}, digest)
    lost.unlink()
    with pytest.raises(
        ImageSourceError, match=r"[34] images are bad, and max_bad allows 2 .*2 in shards that were"
    ):
        extract(folder, store, changed(allowed, max_bad="2"))


def test_the_default_allows_few_and_refuses_a_share(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    folder = damaged(make_folder(24), list(range(10)))
    assert extract(folder, tmp_path / "s.zarr", options).bad == {"empty": 10}
    damaged(folder, [10])
    with pytest.raises(ImageSourceError, match=r"11 images are bad, and max_bad allows 10 \(5%\)"):
        extract(folder, tmp_path / "t.zarr", options)


def test_a_cut_tar_counts(tmp_path: Path, options: ExtractOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTIVAULT_CACHE", str(tmp_path / "cache"))
    path = write_samples(tmp_path / "x.tar", [(f"{n}", {"png": picture(n)}) for n in range(6)])
    data = path.read_bytes()
    path.write_bytes(data[: data.rfind(picture(5)) + 10])
    with pytest.raises(ImageSourceError, match=r"1 image is bad, and max_bad allows 0 .*x\.tar is cut off"):
        extract(path, tmp_path / "s.zarr", changed(options, max_bad="0"))
    summary = extract(path, tmp_path / "s.zarr", changed(options, max_bad="2"))
    assert (summary.num_rows, summary.bad) == (6, {"truncated": 1})
