"""When the steady window of a closed loop begins and ends. Pure: told the time and the progress, it decides."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median

from autotuner.decide.cells import STALL, stalled
from autotuner.loadgen.lanes import Progress
from autotuner.loadgen.plan import CellPlan
from autotuner.loadgen.precision import Precision

LONGEST_SLICE_S = 0.4
RATE_TOLERANCE = 0.2
STALL_SLICE_S = 0.4
PATIENCE = 4
"""How many times its cap a window may last while not a single answer has ended in it."""


class Steering:
    """Follows one cell, which began at ``begin_ns``; the bounds of its window are ``None`` until decided. All are ns of CLOCK_MONOTONIC.

    With one lane, the window begins and ends where an answer does, so that prefill and decode stand in it in their true proportion.
    """

    def __init__(self, plan: CellPlan, *, concurrency: int, domains: int, begin_ns: int) -> None:
        self._plan = plan
        self._concurrency = concurrency
        self._answers_needed = max(plan.min_answers, domains, concurrency)
        self.begin_ns = begin_ns
        self._precision = None if plan.precision is None else Precision(plan.precision, one_lane=concurrency == 1)
        self._rates = _Rates(min(LONGEST_SLICE_S, plan.warmup_s / 3), begin_ns)
        self._answered_before = 0
        self._track: list[tuple[int, int, int]] = []
        """(time, reads, answers) since the window began."""
        self.window_begin_ns: int | None = None
        self.window_end_ns: int | None = None
        self.warnings: list[str] = []

    def observe(self, now_ns: int, progress: Progress) -> None:
        """Take note of how it stands and move on."""
        self._rates.observe(now_ns, progress.reads)
        if progress.dead >= self._concurrency:
            self._give_up(now_ns)
        elif self.window_begin_ns is None:
            self._open(now_ns, progress)
        elif self.window_end_ns is None:
            self._track.append((now_ns, progress.reads, progress.answered))
            self._close(now_ns, progress, self.window_begin_ns)

    def _open(self, now_ns: int, progress: Progress) -> None:
        elapsed_s = (now_ns - self.begin_ns) / 1e9
        plan = self._plan
        if self._concurrency == 1:
            if progress.last_end_ns >= self.begin_ns + plan.warmup_s * 1e9:
                self.window_begin_ns = progress.last_end_ns
        elif self._warm(elapsed_s, progress):
            self.window_begin_ns = now_ns
        if self.window_begin_ns is None and elapsed_s >= max(plan.max_warmup_s, plan.warmup_s):
            self.window_begin_ns = now_ns
            waiting = self._concurrency - progress.first
            if waiting > 0:
                self.warnings.append(f"{waiting} of {self._concurrency} lanes had no token after {elapsed_s:.0f} s of warm-up")
        self._answered_before = progress.answered
        # Counters are read right after, which can take long: a stall meanwhile must show against this very moment.
        self._track = [(now_ns, progress.reads, progress.answered)]

    def _warm(self, elapsed_s: float, progress: Progress) -> bool:
        """Whether every lane has had a token and the rate has settled, or had its time to."""
        plan = self._plan
        all_started = progress.first >= self._concurrency and elapsed_s >= plan.warmup_s
        return all_started and (self._rates.settled or elapsed_s >= plan.longest_warmup_s)

    def _close(self, now_ns: int, progress: Progress, begin_ns: int) -> None:
        answered = progress.answered - self._answered_before
        at_ns = progress.last_end_ns if self._concurrency == 1 and answered > 0 else now_ns
        longest_s = self._plan.longest_window_s * (1 if answered else PATIENCE)
        if answered >= self._answers_needed and at_ns - begin_ns >= self._plan.window_s * 1e9:
            if self._begun_again(now_ns):
                return
            if self._precision is None or self._precision.reached(self._track):
                self.window_end_ns = at_ns
                return
        if now_ns - begin_ns >= longest_s * 1e9:
            self.window_end_ns = at_ns
            if self._precision is not None:
                self.warnings.append(f"the rate is not known to within {self._plan.precision or 0:.1%} after {longest_s:g} s, the cap")
            if answered < self._plan.min_answers:
                self.warnings.append(f"only {answered} answers ended in a window of {(at_ns - begin_ns) / 1e9:.1f} s")

    def _begun_again(self, now_ns: int) -> bool:
        """Whether the window held a stall and so begins again after it: the first batch at a new size pays for compilation.

        Only while the cell is young: a server that stalls again and again is measured with its stalls, and the result is unsteady.
        """
        young = now_ns - self.begin_ns < (self._plan.longest_warmup_s + self._plan.longest_window_s / 2) * 1e9
        stall = _last_stall(self._track) if young and self._concurrency > 1 else None
        if stall is None:
            return False
        at_ns, answered, stalled_s = stall
        self.window_begin_ns, self._answered_before = at_ns, answered
        self._track = [point for point in self._track if point[0] >= at_ns]
        self.warnings.append(f"the answers stalled for {stalled_s:.1f} s; the window begins after that")
        return True

    def _give_up(self, now_ns: int) -> None:
        if self.window_begin_ns is None:
            self.window_begin_ns = self.begin_ns
        self.window_end_ns = now_ns
        self.warnings.append("every lane failed several times in a row; the cell was cut short")


def _last_stall(track: list[tuple[int, int, int]]) -> tuple[int, int, float] | None:
    """End of the last stalled slice, the answers by then, and the seconds that stalled; ``None`` when no slice did."""
    edges = track[:1]
    for point in track:
        if point[0] - edges[-1][0] >= STALL_SLICE_S * 1e9:
            edges.append(point)
    slices = [(later, (later[1] - earlier[1]) / (later[0] - earlier[0])) for earlier, later in pairwise(edges)]
    if not stalled([rate for _, rate in slices]):
        return None
    limit = STALL * median(rate for _, rate in slices)
    slow = [point for point, rate in slices if rate < limit]
    return slow[-1][0], slow[-1][2], len(slow) * STALL_SLICE_S


class _Rates:
    """Reads per second in equal slices of time."""

    def __init__(self, slice_s: float, begin_ns: int) -> None:
        self._slice_ns = slice_s * 1e9
        self._since = (begin_ns, 0)
        self._last: list[tuple[float, int]] = []

    def observe(self, now_ns: int, reads: int) -> None:
        at_ns, before = self._since
        if now_ns - at_ns < self._slice_ns or now_ns == at_ns:
            return
        self._last = [*self._last[-1:], ((reads - before) / (now_ns - at_ns), reads - before)]
        self._since = (now_ns, reads)

    @property
    def settled(self) -> bool:
        """Whether the last two slices agree, as far as so few reads can tell."""
        if len(self._last) < 2:
            return False
        (first, first_n), (second, second_n) = self._last
        fewest = min(first_n, second_n)
        return fewest > 0 and abs(first - second) <= max(RATE_TOLERANCE, 2 / math.sqrt(fewest)) * max(first, second)
