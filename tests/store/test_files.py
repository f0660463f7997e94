"""Files that are there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from activault.store.files import atomic_write, new_file


def test_a_new_file_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    with new_file(tmp_path / "a") as file:
        file.write(b"one")
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a").read_bytes() == b"one"
    atomic_write(tmp_path / "a", b"two")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("a", b"two")]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_file_that_fails_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    def fail() -> None:
        with new_file(tmp_path / "a") as file:
            file.write(b"half")
            raise error

    atomic_write(tmp_path / "a", b"old")
    with pytest.raises(error):
        fail()
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("a", b"old")]
