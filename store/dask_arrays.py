"""An array of a store as a dask array, one block a shard, which is read when it is computed.

A layer and a kind in, (num_rows, tokens, dim) float32 out. Blocks are read by `Store.read`, so that all its
checks hold; a task carries where the store lies, not its values, and opens it once a process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from .errors import ConfigError, MissingExtraError
from .layout import TokenKind, layer_name
from .manifest import Manifest
from .records import MOST_ASKED
from .selection import check_layers

if TYPE_CHECKING:
    import dask.array

__all__ = ["Readable", "dask_array"]


class Readable(Protocol):
    """What a task needs of a `Store`; pickled as where it lies."""

    @property
    def path(self) -> str:
        """The path or URL."""

    @property
    def digest(self) -> str:
        """Name of the content."""

    @property
    def manifest(self) -> Manifest:
        """All that was planned."""

    def read(self, rows: range, layers: Sequence[int], tokens: TokenKind) -> npt.NDArray[Any]:
        """Values (rows, layers, tokens, dim) float32."""

    def __reduce__(self) -> tuple[Any, ...]: ...


_MOST_OPENED: Final = 8
_opened: dict[tuple[str, str], Readable] = {}


class _Source:
    """A store that is opened again at most once in a process that it is sent to."""

    def __init__(self, store: Readable) -> None:
        self.store = store

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.store.path, self.store.digest, *self.store.__reduce__())


def _arrived(path: str, digest: str, opener: Callable[..., Readable], arguments: tuple[Any, ...]) -> _Source:
    if (path, digest) not in _opened:
        if len(_opened) == _MOST_OPENED:
            _opened.clear()
        _opened[path, digest] = opener(*arguments)
    return _Source(_opened[path, digest])


def dask_array(store: Readable, kind: TokenKind, layer: int) -> dask.array.Array:
    """See `Store.dask`."""
    manifest = store.manifest
    check_layers([layer], manifest.layers)
    if kind not in manifest.kinds:
        raise ConfigError(f"token kinds here are {', '.join(manifest.kinds)}; got {kind!r}")
    try:
        import dask.array as da
    except ModuleNotFoundError as exc:
        raise MissingExtraError("Store.dask needs dask; pip install 'activault[all]'") from exc
    if manifest.num_shards > MOST_ASKED:
        raise ConfigError(
            f"a dask array has a task for each of at most {MOST_ASKED} shards; this store has "
            f"{manifest.num_shards}; read its rows with Store.read"
        )
    name = f"{layer_name(layer)}-{kind}-{store.digest}"
    source, num_shards = _Source(store), manifest.num_shards
    graph = {
        (name, shard, 0, 0): (_block, source, manifest.shard_range(shard), layer, kind)
        for shard in range(num_shards)
    }
    rows = tuple(len(manifest.shard_range(shard)) for shard in range(num_shards))
    chunks = (rows, *((size,) for size in manifest.array_shape(kind)[1:]))
    array: Any = da.Array  # its constructor has no annotations
    made: dask.array.Array = array(graph, name, chunks, dtype=np.float32)
    return made


def _block(source: _Source, rows: range, layer: int, kind: TokenKind) -> npt.NDArray[np.float32]:
    return source.store.read(rows, [layer], kind)[:, 0]
