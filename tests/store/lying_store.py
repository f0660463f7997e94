"""A store whose records say what is not so, with every checksum made to agree, as who writes them could."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors.numpy import load, save

from activault.store.completion import write_completion
from activault.store.files import xxh3
from activault.store.records import close_record, record_path, statistics_path
from activault.store.root import read_root
from activault.store.storage import Folder

Record = dict[str, Any]
Tensors = dict[str, np.ndarray]


def lie(
    store: Path,
    samples: pa.Table,
    record: Callable[[Record], object] | None = None,
    statistics: Callable[[Tensors], object] | None = None,
    shard: int = 0,
    complete: bool = True,
) -> None:
    """Change a shard's record or its statistics, and complete the store anew by them if that is asked for."""
    root = read_root(Folder(store))
    file = store / record_path(shard)
    body = json.loads(file.read_bytes())
    del body["checksum"]
    if record is not None:
        record(body)
    if statistics is not None:
        tensors = load((store / statistics_path(shard)).read_bytes())
        statistics(tensors)
        data = save(tensors)
        (store / statistics_path(shard)).write_bytes(data)
        body["statistics"] |= {"bytes": len(data), "hash": xxh3(data)}
    file.write_bytes(close_record(body, root.manifest, shard)[1])
    (store / "index.parquet").unlink(missing_ok=True)
    if complete:
        write_completion(store, root, samples)
