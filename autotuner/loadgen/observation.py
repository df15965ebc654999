"""Observation: what the server says about itself while a cell is measured, over the same window as the client."""

from __future__ import annotations

from typing import Protocol

from autotuner.model.measurement import ServerReport


class Observer(Protocol):
    """Watches the server of one cell. It never raises and never blocks: what it cannot see becomes a warning of its report."""

    def begin(self, window_begin_ns: int) -> None:
        """The steady window began at this moment (CLOCK_MONOTONIC); what was seen of an earlier window is forgotten."""
        ...

    def tick(self) -> None:
        """Called about every 50 ms from the first request on; returns at once."""
        ...

    def end(self) -> ServerReport:
        """The window has ended, load goes on for a moment; what was seen of it. Returns within two seconds. Called once."""
        ...
