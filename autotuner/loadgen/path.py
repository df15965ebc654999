"""Where load comes from, and by which address it reaches the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPath:
    """The way of the load to the server under test."""

    source: Literal["controller", "host"]
    """This machine, or the one that serves."""
    base_url: str
    """Root of the served API as the source reaches it, without a trailing slash."""
    rtt_s: float | None = None
    """Round-trip time between controller and host in seconds; ``None`` where there is no network between, or it was not measured.

    First tokens measured from the controller include it, those measured on the host do not."""
