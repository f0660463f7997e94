"""How a store is read, in its card: programs of a few lines for activault and for plain zarr.

A manifest in, a section of Markdown out; the programs are of the store's own layers, rows and dtype.
"""

from __future__ import annotations

from typing import Final

from .manifest import Manifest

__all__ = ["how_to_read"]

_OURS: Final = """\
## How to read it

With activault (`pip install activault`; no torch is needed). Paths, `https://` and `s3://` will do:

```python
from activault.store import open_store

store = open_store("STORE.zarr")
x = store.read(rows=slice({first}, {stop}), layers=[{layer}], tokens="{kind}")
# float32 (rows, layers, tokens, channels); store.samples is a pyarrow.Table of keys, labels and outcomes
```

`activault pull SOURCE COPY.zarr --layers {layer}` copies a part of it.

With plain zarr and NumPy:

"""
_PLAIN: Final = """\
```python
import numpy as np
import zarr

store = zarr.open_group("STORE.zarr", mode="r")
x = np.asarray(store["layer_{layer:02d}/{kind}"][{first}:{stop}], np.float32)  # (rows, tokens, channels)
```

Rows without activations read as NaN."""
_PLAIN_INT8: Final = """\
```python
import numpy as np
import zarr

store = zarr.open_group("STORE.zarr", mode="r")
manifest = store.attrs["activault"]
steps = manifest["quantisation"][manifest["layers"].index({layer})]
scale, offset = (np.array(steps[name], np.float32) for name in ("scale", "offset"))
codes = np.asarray(store["layer_{layer:02d}/{kind}"][{first}:{stop}])  # int8 (rows, tokens, channels)
x = np.where(codes == -128, np.float32(np.nan), codes.astype(np.float32) * scale + offset)
```

Rows without activations read as NaN. Tokens of other kinds are float32 as they stand."""


def how_to_read(manifest: Manifest) -> str:
    """A card's section: the last layer's patches, or whatever kind there is, of the first rows held."""
    kind = manifest.kinds[-1]
    first = 0 if manifest.shards is None else manifest.shards[0][0] * manifest.shard_rows
    stop = min(first + min(8, manifest.shard_rows), manifest.num_rows)
    plain = _PLAIN_INT8 if manifest.stored_dtype(kind) == "int8" else _PLAIN
    return (_OURS + plain).format(layer=manifest.layers[-1], kind=kind, first=first, stop=stop)
