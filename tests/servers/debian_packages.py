"""Programs that Debian has packages of: where they are absent, root installs them.

Two processes of the tests may want that at once, and `apt-get` does not wait for another one: a lock does.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

__all__ = ["need"]

_LOCK = Path(tempfile.gettempdir()) / "activault-tests-apt-get.lock"


def need(missing: Callable[[], str], packages: Sequence[str]) -> None:
    """Install the packages while something is missing; where that fails, skip the test, or fail it in CI.

    Args:
        missing: names of the programs that are not there, as a message says them; empty when all are.
        packages: Debian's packages that have them.
    """
    if not missing():
        return
    if os.geteuid() != 0:
        pytest.skip(f"no {missing()} here, and only root can install Debian's packages")
    reason = _install(missing, packages)
    if not missing():
        return
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def _install(missing: Callable[[], str], packages: Sequence[str]) -> str:
    """Why something may be missing still."""
    if not shutil.which("apt-get"):
        return f"no {missing()} here, and no apt-get to install Debian's packages"
    reason = "apt-get installed nothing that is missing"
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not missing():  # another process has installed them meanwhile
            return ""
        for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            done = subprocess.run(
                ["apt-get", "-qq", *command],
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
            reason = f"apt-get {command[0]} failed: {done.stderr.strip()[-300:]}"
    return reason
