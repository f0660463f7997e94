"""How long and how hard a place behind a URL is asked: time-outs, retries, requests at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .storage import NUM_REQUESTS

__all__ = ["DEFAULTS", "RemoteSettings"]


@dataclass(frozen=True, kw_only=True)
class RemoteSettings:
    """How long and how often a place is asked, and how hard."""

    connect_timeout_s: float = 10.0
    """Seconds until a connection stands."""
    read_timeout_s: float = 30.0
    """Seconds without a single byte after which a request counts as lost."""
    num_retries: int = 8
    """Times that a request is tried again."""
    retry_for_s: float = 120.0
    """Seconds after which a request is not tried again; twice that where its body keeps ending early."""
    first_wait_s: float = 0.2
    """Seconds before the second try; they double, with jitter."""
    longest_wait_s: float = 15.0
    """Seconds between tries at most."""
    num_requests: int = NUM_REQUESTS
    """Requests under way at once."""


DEFAULTS: Final = RemoteSettings()
