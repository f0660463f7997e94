"""How long a disk makes whoever writes small files wait, beside their bytes.

    seconds_a_file(24) * num_files

A store's file counts when it is on disk, and its name too: for small shards that is most of the time.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from activault.store.errors import StoreError
from activault.store.files import new_file, sync_folder

__all__ = ["seconds_a_file"]


def seconds_a_file(count: int = 8) -> float:
    """Mean of so many small files, one after the other, in the folder for temporary files (`TMPDIR`).

    Where the store will be nothing may be written yet; that disk may be quicker or slower.

    Raises:
        StoreError: no file can be written there.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="activault-trial-") as name:
            start = time.perf_counter()
            for number in range(count):
                with new_file(Path(name) / str(number)) as file:
                    file.write(bytes(4096))
                sync_folder(Path(name))
            return (time.perf_counter() - start) / count
    except OSError as exc:
        raise StoreError(
            f"a trial writes into {tempfile.gettempdir()}, which failed ({exc.strerror}); free space there, "
            "or set TMPDIR to another folder"
        ) from exc
