"""All formats under test by name: ours in every dtype, and the peers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from activations import Activations
from formats import Format
from ours import Activault, variants
from peer_arrays import Hdf5, MemoryMap, Safetensors
from peer_arrow import Arrow
from peer_records import LitData, WebDataset
from peer_reference import Reference

PEERS: tuple[type[Format], ...] = (Reference, MemoryMap, Hdf5, Safetensors, WebDataset, Arrow, LitData)
OURS = "activault bfloat16"
"""The default, which ratios are against."""


@dataclass(frozen=True)
class Candidate:
    """A format and where it lies; made again in the process that measures it."""

    name: str
    work: Path
    source: Activations
    checkout: Path | None

    @property
    def folder(self) -> Path:
        """Its own folder."""
        return self.work / self.name.replace(" ", "-").replace(",", "").replace("(", "").replace(")", "")

    def open(self, suffix: str = "") -> Format:
        """The format, in its folder or in one beside it."""
        folder = self.folder.with_name(self.folder.name + suffix)
        Reference.checkout = self.checkout
        makers = {peer.name: peer for peer in PEERS} | {
            name: partial(Activault, dtype=dtype, compression=compression)
            for name, dtype, compression in variants()
        }
        return makers[self.name](folder, self.source)

    @property
    def label(self) -> str:
        """What the table calls it."""
        if self.name != Reference.name:
            return self.name
        reader = "its own loader" if self.checkout else "plain zarr-python instead of its loader"
        return f"{self.name} ({reader} when shuffled)"


def all_candidates(work: Path, source: Activations, checkout: Path | None) -> list[Candidate]:
    """Ours first."""
    names = [name for name, *_ in variants()] + [peer.name for peer in PEERS]
    return [Candidate(name, work, source, checkout) for name in names]
