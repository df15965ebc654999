"""When the window of an open loop begins and ends. Pure: told the time and the progress, it decides."""

from __future__ import annotations

import math

from autotuner.loadgen.arrivals import Arrivals
from autotuner.loadgen.lanes import Progress
from autotuner.loadgen.open_loop import LEAD_S
from autotuner.loadgen.plan import CellPlan


class OpenSteering:
    """Follows one cell, which began at ``begin_ns``; the bounds of its window are ``None`` until decided. All are ns of CLOCK_MONOTONIC.

    The window begins after the warm-up and is ``window_s`` long, whatever the server does. That of a replay is the log's whole length, and
    goes on until its last request has ended, or has had ``request_timeout_s`` to.
    """

    def __init__(self, plan: CellPlan, arrivals: Arrivals, *, workers: int, begin_ns: int) -> None:
        self._plan = plan
        self._arrivals = arrivals
        self._workers = workers
        self.begin_ns = begin_ns
        self.window_begin_ns: int | None = None
        self.window_end_ns: int | None = None
        self.warnings: list[str] = []

    def observe(self, now_ns: int, progress: Progress) -> None:
        """Take note of how it stands and move on."""
        elapsed_s = (now_ns - self.begin_ns) / 1e9 - LEAD_S
        replay = self._arrivals.kind == "replay"
        if progress.dead >= self._workers:
            self.window_begin_ns = self.begin_ns if self.window_begin_ns is None else self.window_begin_ns
            self.window_end_ns = now_ns
            self.warnings.append("every request failed many times in a row; the cell was cut short")
        elif self.window_begin_ns is None:
            if replay:
                self.window_begin_ns = self.begin_ns
            elif elapsed_s >= self._plan.warmup_s:
                self.window_begin_ns = now_ns
        elif replay:
            self._close_replay(now_ns, elapsed_s, progress)
        elif now_ns - self.window_begin_ns >= self._plan.window_s * 1e9:
            self.window_end_ns = now_ns

    def _close_replay(self, now_ns: int, elapsed_s: float, progress: Progress) -> None:
        ended = progress.answered + progress.failed
        count = self._arrivals.count or math.inf
        if ended >= count:
            self.window_end_ns = now_ns
        elif elapsed_s >= self._arrivals.last_s + self._plan.request_timeout_s:
            self.window_end_ns = now_ns
            left = f"{count - ended:.0f} of {count:.0f}"
            self.warnings.append(f"{left} requests had not ended {self._plan.request_timeout_s:g} s after the last one was due")
