"""The loader of a stage: what it hands to a device, and whose memory its rows wait in.

    stage, store, rows, device, processes  ->  an ActivationLoader of this process's part of every batch

16-bit values cross to a device as they are stored, half the bytes of float32 and without a copy on the way,
and are cast there; on CUDA from page-locked memory. On a CPU the loader's own thread makes them float32.
Memory is that of all processes together, each of which holds its part.
"""

from __future__ import annotations

import socket
import warnings

import numpy as np
import torch

from activault.store import ActivationLoader, Store
from activault.store.errors import ConfigError
from activault.store.mixing import most_pool_bytes

from .distributed import Peers
from .stages import Stage

__all__ = ["crossing_type", "stage_loader"]

SHORT_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
MIXED_ROWS = 64
"""Rows that are mixed as by a full shuffle even where a batch has fewer."""


def stage_loader(
    stage: Stage,
    store: Store,
    rows: np.ndarray,
    *,
    seed: int,
    device: torch.device,
    peers: Peers,
    pool_bytes: int | None = None,
) -> ActivationLoader:
    """The loader of one process; `pool_bytes` is of all of them, None what the loader finds out.

    Raises:
        ConfigError: the processes cannot share out a batch.
    """
    config, world = stage.config, peers.world
    if config.batch_size % (world * config.accumulate) or (world > 1 and len(rows) < config.batch_size):
        raise ConfigError(
            "batch_size is a multiple of processes times accumulate, and several processes have that "
            f"many rows; got batch_size {config.batch_size}, {world} processes, accumulate "
            f"{config.accumulate}, {len(rows)} rows"
        )
    if len(rows) < config.batch_size:
        warnings.warn(
            f"stage {stage.name}: {len(rows)} rows make no batch of {config.batch_size}, so that every step "
            "takes all of them; set batch_size to at most that, or train from a store of more rows",
            RuntimeWarning,
            stacklevel=2,
        )
    # Asked of all processes alike: it is a word between them.
    num_here = ranks_here(peers)
    if pool_bytes is None and store.manifest.row_seed is None:
        pool_bytes = _pool_over_machines(world, num_here)
    return ActivationLoader(
        store,
        layers=stage.layers,
        batch_size=config.batch_size // world,
        seed=seed,
        rows=rows,
        drop_last=len(rows) >= config.batch_size,
        dtype=crossing_type(store, device),
        pool_bytes=pool_bytes,
        mixed_rows=max(MIXED_ROWS, config.batch_size),
        rank=peers.rank,
        world=world,
        pin_memory=device.type == "cuda",
    )


def crossing_type(store: Store, device: torch.device) -> torch.dtype:
    """Type of a batch on its way to the device: the stored one where it is a float that is shorter.

    int8 codes are decoded here, to float32: in 16 bits they would not be what `Store.read` gives.
    """
    if device.type == "cpu":
        return torch.float32
    return SHORT_TYPES.get(store.manifest.dtype, torch.float32)


def ranks_here(peers: Peers) -> int:
    """How many of the processes are on this one's machine."""
    return peers.gathered(socket.gethostname()).count(socket.gethostname())


def _pool_over_machines(world: int, num_here: int) -> int | None:
    """A pool of which the processes on this machine together hold a quarter of its memory.

    None where all are here: the loader takes such a pool by itself, and knows no other machines. Only for
    stores in their source's order, where memory has no say in the order of the rows.
    """
    if num_here == world:
        return None
    return most_pool_bytes() * world // num_here
