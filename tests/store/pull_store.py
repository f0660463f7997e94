"""Pulls a store in a process of its own, to be killed: `python pull_store.py SOURCE DESTINATION STEP`.

It kills itself when that many files have got their final names.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from write_store import kill_at

from activault.store.transfer import pull

if __name__ == "__main__":
    kill_at(int(sys.argv[3]))
    pull(sys.argv[1], sys.argv[2], num_threads=2)
