"""pyarrow, imported at its first use.

    from .arrow import pa, pc, pq

To open a store takes it, to import this room does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .deferred import Deferred

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
else:
    pa, pc, pq = Deferred("pyarrow"), Deferred("pyarrow.compute"), Deferred("pyarrow.parquet")

__all__ = ["pa", "pc", "pq"]
