"""The addition of layers, or else of token kinds: which arrays, of the images that the rows are of.

An opened store, a source and what was asked for in; a finished new part out.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from activault.store import ConfigError, Manifest, Store, TokenKind
from activault.store.cores import memory_bytes
from activault.store.grid import shard_bytes
from activault.store.growing import growing_root
from activault.store.growing_plan import extended_manifest, new_part
from activault.store.layout import KINDS
from activault.store.manifest import Quantisation
from activault.store.parts import part_samples

from .backbone import Backbone
from .calibration import calibration_for
from .capture import Decode, Progress, StallTimes
from .growth_part import another_growth, compute_part, create_part, planned_part
from .growth_request import Asked, asked_kinds, asked_layers, settled, teacher_of, versions
from .growth_rows import places_of, refuse_missing
from .listing import ImageSource
from .machine import choose_device
from .planning import planned_layout
from .run import row_decoder

__all__ = ["AddedArrays"]


class AddedArrays:
    """The addition of layers, or else of kinds."""

    def __init__(self, there: Store, source: ImageSource, asked: Asked) -> None:
        self.there, self.source = there, source
        free = ("layers", "tokens") + (() if "patches" in there.kinds else ("patches",))
        self.options = settled(there, asked, free)
        wanted = asked_layers(there, self.options.layers) if "layers" in asked else there.layers
        self.layers = tuple(sorted({*there.layers, *wanted}))
        kinds = asked_kinds(there, self.options.tokens) if "tokens" in asked else there.kinds
        self.kinds = tuple(kind for kind in KINDS if kind in {*there.kinds, *kinds})
        self.grown = self._grown()

    def _grown(self) -> tuple[tuple[int, ...], tuple[TokenKind, ...]] | None:
        """Layers and kinds after the next addition: first all layers, then all kinds."""
        if self.layers != self.there.layers:
            return self.layers, self.there.kinds
        return (self.layers, self.kinds) if self.kinds != self.there.kinds else None

    def compute(self, path: Path, progress: Progress | None) -> tuple[StallTimes, int]:
        """Plan the new arrays, or find them planned, and compute them."""
        there, options = self.there, self.options
        places = places_of(there.samples, self.source)
        held = there.finished_rows if there.manifest.dtype != "int8" else np.arange(there.num_rows)
        refuse_missing(there.samples, places, held, self.source, "what comes is of all rows' images")
        backbone = teacher_of(there, options).to(choose_device(options.device))
        decode = row_decoder(self.source, places, backbone, options)
        if growing_root(path) is None:
            part = new_part(there.manifest, self._manifest(backbone, decode))
            _refuse_too_large(part)
            create_part(path, there.manifest, part, part_samples(there.samples, part))
        found = planned_part(path, there)
        assert found is not None, "nobody joins while this process is at work"
        self._refuse_another(path, found.manifest)
        return compute_part(path, there, found, backbone, decode, options, progress)

    def _manifest(self, backbone: Backbone, decode: Decode) -> Manifest:
        assert self.grown is not None
        (layers, kinds), there = self.grown, self.there.manifest
        layout = there.layout
        if "patches" in kinds and "patches" not in there.kinds:
            layout = planned_layout(backbone, self.options)
        new, steps = [layer for layer in layers if layer not in there.layers], dict[int, Quantisation]()
        if there.dtype == "int8" and new:
            found = calibration_for(backbone, decode, there.num_rows, self.options)(new, layout)
            steps = dict(zip(new, found, strict=True))
        return extended_manifest(there, layers, kinds, layout, steps, versions(there))

    def _refuse_another(self, path: Path, part: Manifest) -> None:
        assert self.grown is not None
        layers, kinds = self.grown
        new_layers = tuple(layer for layer in layers if layer not in self.there.layers) or layers
        new_kinds = tuple(kind for kind in kinds if kind not in self.there.kinds) or kinds
        if (part.num_rows, part.layers, part.kinds) != (self.there.num_rows, new_layers, new_kinds):
            raise another_growth(path, part)


def _refuse_too_large(part: Manifest) -> None:
    """Rows a shard were chosen for the arrays that were there; patches may need far more memory."""
    needed, there = 2 * shard_bytes(part), memory_bytes()
    if needed > there:
        raise ConfigError(
            f"two shards of what is to come are held at once, and take {needed / 1e9:.1f} GB with "
            f"{part.shard_rows} rows a shard; this machine has {there / 1e9:.1f} GB; extract to another "
            "path, with fewer --shard-rows"
        )
