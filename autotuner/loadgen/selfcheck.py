"""What a load worker finds out about itself while its lanes run: whether it was there when the answers came.

Standard library only, Python 3.10 on, and free of other modules of the project but those of ``lanes``: it travels to hosts with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotuner.loadgen.lanes import Exchange
from autotuner.loadgen.wire import realtime_offset_ns

TICK_S = 0.01
LATE_NS = 3_000_000
"""A timer that comes later than this shows that the process stood still, or was too busy to look."""
TICKS_PER_SAMPLE = 10
SAMPLES_PER_STEAL = 10
"""The kernel works out all of /proc/stat for its first line, which takes milliseconds on a big machine: once a second is enough."""
NICENESS = -5

Series = list[tuple[int, float]]
"""(ns of CLOCK_MONOTONIC, a number that only grows)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCheck:
    """One worker over one window."""

    reads: int
    lag_p50_ms: float | None
    """From the kernel's receive stamp to the read in user space; ``None`` without kernel stamps."""
    lag_p99_ms: float | None
    lag_max_ms: float | None
    cpu: float
    """CPU seconds of the process per second."""
    steal: float | None
    """Share of the machine's CPU time that its hypervisor took; ``None`` where it is not told."""
    stalled: float
    """Share of the window in which the process did not come to run although a timer was due."""
    gc_pause_max_ms: float
    clock_step_ms: float
    """The farthest that CLOCK_REALTIME moved against CLOCK_MONOTONIC from where it was when the window began."""


class SelfCheck:
    """Watches its own process; ``watch`` runs beside the lanes, ``report`` sums up afterwards."""

    def __init__(self) -> None:
        self._cpu: Series = []
        self._stolen: Series = []
        self._all: Series = []
        self._offsets: list[tuple[int, int]] = []
        self._stalls: list[tuple[int, int]] = []
        self._pauses: list[tuple[int, int]] = []
        self._pause_begin_ns = 0

    async def watch(self) -> None:
        """Until it is cancelled."""
        gc.callbacks.append(self._on_gc)
        try:
            self._sample(with_steal=True)
            while True:
                for number in range(SAMPLES_PER_STEAL):
                    for _ in range(TICKS_PER_SAMPLE):
                        await self._tick()
                    self._sample(with_steal=number == SAMPLES_PER_STEAL - 1)
        finally:
            self._sample(with_steal=True)
            gc.callbacks.remove(self._on_gc)

    def report(self, exchanges: Sequence[Exchange], begin_ns: int, end_ns: int) -> LoadCheck:
        """Over a window of CLOCK_MONOTONIC. ``exchanges`` are those that were in flight in it."""
        logs = [exchange.log for exchange in exchanges]
        seen = [
            (at_ns - stamp if at_ns else None)
            for log in logs
            for (stamp, _), at_ns in zip(log.reads, log.seen)  # noqa: B905 - both grow together
            if begin_ns < stamp <= end_ns
        ]
        lags = sorted(max(0, lag) / 1e6 for lag in seen if lag is not None)
        length_ns = max(1, end_ns - begin_ns)
        total = _grown(self._all, begin_ns, end_ns)
        return LoadCheck(
            reads=len(seen),
            lag_p50_ms=_rank(lags, 0.50),
            lag_p99_ms=_rank(lags, 0.99),
            lag_max_ms=_rank(lags, 1.0),
            cpu=_grown(self._cpu, begin_ns, end_ns) / length_ns,
            steal=_grown(self._stolen, begin_ns, end_ns) / total if total > 0 else None,
            stalled=sum(max(0, min(ran, end_ns) - max(due, begin_ns)) for due, ran in self._stalls) / length_ns,
            gc_pause_max_ms=max((took for at, took in self._pauses if begin_ns < at <= end_ns), default=0) / 1e6,
            clock_step_ms=_farthest(self._offsets, begin_ns, end_ns) / 1e6,
        )

    async def _tick(self) -> None:
        due_ns = time.monotonic_ns() + round(TICK_S * 1e9)
        await asyncio.sleep(TICK_S)
        ran_ns = time.monotonic_ns()
        if ran_ns - due_ns > LATE_NS:
            self._stalls.append((due_ns, ran_ns))

    def _sample(self, *, with_steal: bool) -> None:
        now_ns = time.monotonic_ns()
        self._cpu.append((now_ns, float(time.process_time_ns())))
        self._offsets.append((now_ns, realtime_offset_ns()))
        ticks = cpu_ticks() if with_steal else None
        if ticks is not None:
            self._stolen.append((now_ns, float(ticks[0])))
            self._all.append((now_ns, float(ticks[1])))

    def _on_gc(self, phase: str, info: dict[str, Any]) -> None:
        now_ns = time.monotonic_ns()
        if phase == "start":
            self._pause_begin_ns = now_ns
        else:
            self._pauses.append((now_ns, now_ns - self._pause_begin_ns))


def cpu_ticks() -> tuple[int, int] | None:
    """(stolen by the hypervisor, all) CPU time of this machine since it started, in the kernel's ticks; ``None`` where it is not told."""
    try:
        with open("/proc/stat", "rb") as file:  # noqa: PTH123 - nothing more is needed for one line
            numbers = [int(field) for field in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return (numbers[7], sum(numbers)) if len(numbers) == 8 else None


def hurry() -> None:
    """Come before ordinary processes, where that is allowed: a client that waits for a CPU measures its own waiting."""
    with contextlib.suppress(OSError):
        os.nice(NICENESS)


def _rank(ordered: Sequence[float], share: float) -> float | None:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def _grown(series: Series, begin_ns: int, end_ns: int) -> float:
    """By how much it grew in the window, linear between samples."""
    return _at(series, end_ns) - _at(series, begin_ns)


def _at(series: Series, at_ns: int) -> float:
    before = [point for point in series if point[0] <= at_ns]
    after = [point for point in series if point[0] > at_ns]
    if not before or not after:
        nearest = before[-1:] or after[:1]
        return nearest[0][1] if nearest else 0.0
    (first_ns, first), (second_ns, second) = before[-1], after[0]
    return first + (second - first) * (at_ns - first_ns) / (second_ns - first_ns)


def _farthest(offsets: Sequence[tuple[int, int]], begin_ns: int, end_ns: int) -> int:
    """How far a clock was from where it stood at the begin, at worst; with its sign."""
    before = [offset for at_ns, offset in offsets if at_ns <= begin_ns]
    within = [offset for at_ns, offset in offsets if begin_ns < at_ns <= end_ns]
    after = [offset for at_ns, offset in offsets if at_ns > end_ns]
    seen = [*before[-1:], *within, *after[:1]]
    return max((offset - seen[0] for offset in seen), key=abs, default=0)
