"""Observation: what the server says about itself while a cell is measured, over the same window as the client's own numbers."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from types import TracebackType
from typing import Protocol, Self

from autotuner.engines.base import Counters, Gauges
from autotuner.errors import AutotunerError
from autotuner.model.measurement import GpuReport, ServerReport

PERIOD_S = 0.5
"""Between two looks at a metrics page, which costs an engine about a millisecond."""
PERIOD_ON_HOST_S = 2.0
"""Where every look starts a program on the host."""
LAST_LOOK_S = 2.0
"""How long the end of a window waits for a last look."""
MISSED = 0.25
"""More looks than this share without an answer are told: a busy engine may miss one, and means and edges do without it."""
ASK_S = 2.0
"""The client that the page is fetched with should wait no longer than this for an answer."""
_JOIN_S = 15.0


class Observer(Protocol):
    """Watches the server of one cell. It never raises and never blocks: what it cannot see becomes a warning of its report."""

    def begin(self, window_begin_ns: int) -> None:
        """The window began at this moment (CLOCK_MONOTONIC). Called again when it begins anew: what was seen before is forgotten."""
        ...

    def tick(self) -> None:
        """Called about every 50 ms from the first request on, before the window too; returns at once."""
        ...

    def end(self) -> ServerReport:
        """The window has ended, load goes on for a moment; what was seen of it, within a few seconds.

        Called once for every attempt, also where no window began. Another attempt may follow.
        """
        ...


class GpuObserver(Protocol):
    """Watches the GPUs of a server. Its methods never raise."""

    def report(self, begin_ns: int, end_ns: int) -> tuple[tuple[GpuReport, ...], tuple[str, ...]]:
        """What was seen of each GPU between two moments of CLOCK_MONOTONIC, and a sentence for everything that spoils a measurement."""
        ...


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the metrics page, at a moment of CLOCK_MONOTONIC."""

    at_ns: int
    counters: Counters
    gauges: Gauges


@dataclass(frozen=True, slots=True)
class PageReader:
    """Where the page comes from and how it is read. ``fetch`` raises ``AutotunerError`` when there is no answer."""

    fetch: Callable[[], str]
    counters: Callable[[str], Counters]
    gauges: Callable[[str], Gauges]

    def look(self) -> Look:
        """The page as it is now; its moment is halfway between question and answer. Raises as ``fetch`` does."""
        asked_ns = time.monotonic_ns()
        page = self.fetch()
        return Look((asked_ns + time.monotonic_ns()) // 2, self.counters(page), self.gauges(page))


class ServerWatch:
    """Looks at the server's metrics page from a thread of its own while a cell is measured. Use it as a context manager.

    ``reader`` is ``None`` for a server without such a page, ``gpus`` for a host without GPUs. The page is asked for over the control side,
    one question at a time, so that the load never waits for it.
    """

    def __init__(self, reader: PageReader | None, *, gpus: GpuObserver | None = None, period_s: float = PERIOD_S) -> None:
        self._reader = reader
        self._gpus = gpus
        self._period_s = period_s
        self._changed = threading.Condition()
        self._looks: list[Look] = []
        self._begin_ns: int | None = None
        self._tries = self._failures = 0
        self._why = ""
        self._due = False
        self._thread: threading.Thread | None = None
        self._started: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Look no more; a question that is under way is waited for."""
        self._stop()
        for thread in self._started:
            thread.join(_JOIN_S)

    def begin(self, window_begin_ns: int) -> None:
        """The window began; looks before it stay only as far as they tell how the counters stood then."""
        self.tick()
        with self._changed:
            self._begin_ns = window_begin_ns
            before = [look for look in self._looks if look.at_ns <= window_begin_ns]
            self._looks = [*before[-1:], *(look for look in self._looks if look.at_ns > window_begin_ns)]
            self._tries = self._failures = 0
            self._look_now()

    def tick(self) -> None:
        """Begin to look, when that has not begun yet."""
        if self._thread is None and self._reader is not None:
            self._thread = threading.Thread(target=self._run, args=(self._reader,), name="server-watch", daemon=True)
            self._started.append(self._thread)
            self._thread.start()

    def end(self) -> ServerReport:
        """One last look, and what all of them say. The next attempt begins with nothing seen."""
        end_ns = time.monotonic_ns()
        with self._changed:
            if self._thread is not None and self._begin_ns is not None:
                self._look_now()
                self._changed.wait_for(lambda: self._answered_after(end_ns), timeout=LAST_LOOK_S)
            looks, begin_ns = tuple(self._looks), self._begin_ns
            tries, failures, why = self._tries, self._failures, self._why
        self._stop()
        if begin_ns is None:
            return ServerReport()
        found = summarize(looks, begin_ns, end_ns)
        if failures > tries * MISSED:
            missed = f"{failures} of {tries} looks at the server's metrics page had no answer: {why}"
            found = replace(found, warnings=(*found.warnings, missed))
        if self._gpus is None:
            return found
        gpus, spoilt = self._gpus.report(begin_ns, end_ns)
        return replace(found, gpus=gpus, warnings=(*found.warnings, *spoilt))

    def _answered_after(self, at_ns: int) -> bool:
        return bool(self._looks and self._looks[-1].at_ns >= at_ns) or not self._due

    def _look_now(self) -> None:
        self._due = True
        self._changed.notify_all()

    def _stop(self) -> None:
        with self._changed:
            self._thread, self._due = None, False
            self._looks, self._begin_ns, self._tries, self._failures = [], None, 0, 0
            self._changed.notify_all()

    def _run(self, reader: PageReader) -> None:
        mine = threading.current_thread()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._due or self._thread is not mine, timeout=self._period_s)
                if self._thread is not mine:
                    return
                wanted, self._due = self._due, False
            try:
                look, why = reader.look(), ""
            except AutotunerError as error:
                look, why = None, error.message
            with self._changed:
                if self._thread is not mine:
                    return
                self._note(look, why)
                if wanted:
                    self._changed.notify_all()

    def _note(self, look: Look | None, why: str) -> None:
        self._tries += 1
        if look is not None:
            self._looks.append(look)
        else:
            self._failures, self._why = self._failures + 1, why


def summarize(looks: Sequence[Look], begin_ns: int, end_ns: int) -> ServerReport:
    """What the looks say about the window between two moments. Pure.

    Counters are taken at its edges, between the looks before and after each; gauges from the looks inside of it.
    """
    inside = [look.gauges for look in looks if begin_ns <= look.at_ns <= end_ns] or [look.gauges for look in looks[-1:]]
    warnings: list[str] = []

    def change(name: str) -> float | None:
        first, last = _at(looks, begin_ns, name), _at(looks, end_ns, name)
        if first is None or last is None or len(looks) < 2:
            return None
        if last < first:
            warnings.append(f"the server's count of {name.replace('_', ' ')} fell from {first:.0f} to {last:.0f}: did it start anew?")
            return None
        return last - first

    running, queued = _known(inside, "running"), _known(inside, "queued")
    decoded = change("decoded_tokens")
    return ServerReport(
        generation_tokens=change("generation_tokens") if decoded is None else decoded,
        running_mean=fmean(running) if running else None,
        running_max=max(running, default=None),
        queued_mean=fmean(queued) if queued else None,
        queued_max=max(queued, default=None),
        retractions=change("retractions"),
        cached_tokens=change("cached_tokens"),
        kv_usage_max=max(_known(inside, "kv_usage"), default=None),
        samples=sum(begin_ns <= look.at_ns <= end_ns for look in looks),
        warnings=tuple(warnings),
    )


def _known(gauges: Sequence[Gauges], name: str) -> list[float]:
    found = [getattr(each, name) for each in gauges]
    return [value for value in found if value is not None]


def _at(looks: Sequence[Look], at_ns: int, name: str) -> float | None:
    """A counter at a moment, linear between the looks around it; that of the nearest look outside of all of them."""
    known = [(look.at_ns, value) for look in looks if (value := _counter(look, name)) is not None]
    if not known:
        return None
    index = bisect_left(known, at_ns, key=lambda look: look[0])
    if index in (0, len(known)):
        return known[min(index, len(known) - 1)][1]
    (before_ns, before), (after_ns, after) = known[index - 1], known[index]
    return after if after < before else before + (after - before) * (at_ns - before_ns) / (after_ns - before_ns)


def _counter(look: Look, name: str) -> float | None:
    value: float | None = getattr(look.counters, name)
    return value
