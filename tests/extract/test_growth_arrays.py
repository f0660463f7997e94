"""A finished store takes in more layers and token kinds of its images as if it had always had them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from activault.extract.growth import append, extend
from activault.extract.run import ExtractOptions, extract
from activault.store import (
    ConfigError,
    StoreMismatchError,
    open_store,
    pull,
    verify_store,
)

from .conftest import MakeFolder, changed
from .growing import RUN, add


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_layers_one_after_the_other_are_those_of_one_run(
    make_folder: MakeFolder, tmp_path: Path, single: ExtractOptions, dtype: Any
) -> None:
    folder, path = make_folder(11), tmp_path / "s.zarr"
    add(folder, "class0/bad.png", b"no image")
    whole = extract(folder, tmp_path / "whole.zarr", changed(single, dtype=dtype, layers="0-2"))
    extract(folder, path, changed(single, dtype=dtype, layers="1"))
    extend(folder, path, layers="0", **RUN)
    assert extend(folder, path, layers="2", **RUN).store.digest == whole.digest
    assert verify_store(path, values=True, complete=True).faults == ()


def test_layers_and_tokens_at_once_and_patches_chosen_late(
    make_folder: MakeFolder, tmp_path: Path, single: ExtractOptions
) -> None:
    folder, path = make_folder(5), tmp_path / "s.zarr"
    asked = changed(single, layers="0,3", patches="mean", shard_rows=4)
    whole = extract(folder, tmp_path / "whole.zarr", asked)
    extract(folder, path, changed(asked, layers="3", tokens="cls", patches="all"))
    grown = extend(folder, path, layers="0", tokens="all", patches="mean", **RUN)
    assert (grown.layers, grown.kinds, grown.store.digest) == ((0,), ("patches",), whole.digest)
    again = extend(folder, path, layers="0,3", tokens="cls", **RUN)
    assert (again.layers, again.kinds, again.store.num_new) == ((), (), 0)


def test_layers_of_a_pulled_part(make_folder: MakeFolder, tmp_path: Path, single: ExtractOptions) -> None:
    folder = make_folder(20)
    extract(folder, tmp_path / "whole.zarr", single)
    asked = pull(tmp_path / "whole.zarr", tmp_path / "asked.zarr", rows="8:16")
    path = pull(tmp_path / "whole.zarr", tmp_path / "part.zarr", rows="8:16", layers="6")
    assert extend(folder, path, layers="2", **RUN).store.num_new == 8
    assert open_store(path).digest == open_store(asked).digest
    with pytest.raises(ConfigError, match="is a partial copy; add them to the whole store"):
        append(make_folder(22), path, **RUN)


def test_an_image_that_is_another_now(
    make_folder: MakeFolder, tmp_path: Path, single: ExtractOptions
) -> None:
    folder, path = make_folder(12), tmp_path / "s.zarr"
    digest = extract(folder, path, changed(single, order="kept")).digest
    image, other = folder / "class0/000.png", folder / "class1/001.png"
    content = image.read_bytes()
    image.write_bytes(other.read_bytes())
    message = r"rows 0 to 7 \(shard 0: class0/000.png to class1/.*are not those that .* was made from"
    with pytest.raises(StoreMismatchError, match=message):
        extend(folder, path, layers="0", **RUN)
    image.write_bytes(b"cut")
    with pytest.raises(StoreMismatchError, match=r"status of row 0 \(class0/000.png, shard 0\) is 'ok'"):
        extend(folder, path, layers="0", **RUN)
    assert open_store(path).digest == digest
    image.write_bytes(content)
    assert extend(folder, path, layers="0", **RUN).layers == (0,)
