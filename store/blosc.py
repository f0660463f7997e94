"""Blosc, on the caller's thread alone.

Its own threads would put the blocks of a chunk in the order in which they finish: the same values would not
always be the same bytes. zarr-python sets the same for the whole process. Used through `Deferred`.
"""

from __future__ import annotations

from numcodecs import blosc
from numcodecs.blosc import BITSHUFFLE, NOSHUFFLE, compress, decompress

__all__ = ["BITSHUFFLE", "NOSHUFFLE", "compress", "decompress"]

blosc.use_threads = False
