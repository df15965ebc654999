"""Facts of a host: one command and one pure parser for each, and the checks before anything is touched."""

from __future__ import annotations

from autotuner.discover.discovery import discover
from autotuner.discover.preflight import examine

__all__ = ["discover", "examine"]
