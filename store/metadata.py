"""The `zarr.json` files below a store's own: all follow from the manifest, and can be made again from it.

A manifest in; their bytes by path out, or the files themselves.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from .codecs import array_metadata, group_metadata
from .files import atomic_write, pretty_json
from .layout import layer_name
from .manifest import Manifest
from .records import array_folder, arrays_of
from .root import ROOT

__all__ = ["planned_metadata", "restore_metadata"]


def planned_metadata(manifest: Manifest) -> dict[str, bytes]:
    """Every `zarr.json` of a layer or an array, by its path."""
    layers = {f"{layer_name(layer)}/{ROOT}": pretty_json(group_metadata({})) for layer in manifest.layers}
    kinds = {kind: pretty_json(array_metadata(manifest, kind)) for kind in manifest.kinds}
    arrays = {f"{array_folder(a.layer, a.kind)}/{ROOT}": kinds[a.kind] for a in arrays_of(manifest)}
    return layers | arrays


def restore_metadata(store: Path, manifest: Manifest, names: Collection[str] | None = None) -> None:
    """Write again those that are missing or altered, of `names` or of all, and the folder `shards`.

    Raises:
        OSError: the disk is full, read-only or gone.
    """
    (store / "shards").mkdir(exist_ok=True)
    for name, content in planned_metadata(manifest).items():
        file = store / name
        if (names is None or name in names) and not (file.is_file() and file.read_bytes() == content):
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(file, content)
