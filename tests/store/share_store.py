"""Shares the writing of the tests' store with others: `python share_store.py PATH NUM_ROWS SHARD_ROWS`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from conftest import Plan, make_manifest


def share(plan: Plan) -> None:
    """Publish every shard that nobody else has, until all are finished; then complete the store."""
    with plan.open() as writer:
        while shards := writer.unfinished:
            for shard in shards:
                if writer.claim(shard):
                    plan.publish(writer, shard)
            time.sleep(0.01)
        writer.complete()


if __name__ == "__main__":
    num_rows, shard_rows = map(int, sys.argv[2:])
    share(Plan(Path(sys.argv[1]), make_manifest(num_rows=num_rows, shard_rows=shard_rows)))
