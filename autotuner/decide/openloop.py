"""What an open loop says about itself: how late requests were sent, and whether the server kept up with their arrival."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotuner.decide.cells import Window
from autotuner.decide.statistics import percentile
from autotuner.model.measurement import CellResult, RequestRecord

POINTS = 60
"""Moments of the window at which requests in flight are counted."""
GROWN_SHARE = 0.1
"""A backlog that takes up more than this share of all arrivals grows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoopReport:
    """An open loop over its window; lateness in milliseconds."""

    due: int
    """Requests that were due in the window."""
    offered_rate: float
    """The same per second."""
    late_p50_ms: float | None
    """From when a request was due to when it was sent, without the time that it waited for a place; ``None`` when none was sent."""
    late_p99_ms: float | None
    late_max_ms: float | None
    held: int
    """Requests that waited because so many others were in flight."""
    held_max_ms: float
    in_flight_first: float
    """Mean number of requests that were due and not answered, over the first third of the window."""
    in_flight_last: float
    """The same over the last third."""
    growing: bool
    """The server did not keep up: what it gives under this rate depends on how long one looks."""


def open_loop_report(records: Sequence[RequestRecord], window: Window) -> OpenLoopReport:
    """What the records of an open loop, all that did not end before the window, say about it."""
    due = [record for record in records if window.holds(record.start_s)]
    late = sorted((record.sent_s - record.start_s - record.held_s) * 1000 for record in due if record.sent_s is not None)
    waits = [window.end_s - record.start_s if record.sent_s is None else record.held_s for record in due]
    held = [wait_s * 1000 for wait_s in waits if wait_s > 0]
    step_s = window.length_s / POINTS
    counts = [_in_flight(records, window.begin_s + step_s * (number + 0.5)) for number in range(POINTS)]
    third = POINTS // 3
    first, last = statistics.fmean(counts[:third]), statistics.fmean(counts[-third:])
    return OpenLoopReport(
        due=len(due),
        offered_rate=len(due) / window.length_s if window.length_s > 0 else 0.0,
        late_p50_ms=percentile(late, 50) if late else None,
        late_p99_ms=percentile(late, 99) if late else None,
        late_max_ms=late[-1] if late else None,
        held=len(held),
        held_max_ms=max(held, default=0.0),
        in_flight_first=first,
        in_flight_last=last,
        # Beyond what the numbers of a server that keeps up swing by: twice their standard deviation, as arrivals are independent.
        growing=last - first > max(2.0, 2 * math.sqrt(first), GROWN_SHARE * len(due)),
    )


def judged(result: CellResult, report: OpenLoopReport, *, late_limit_ms: float, max_in_flight: int) -> CellResult:
    """The result with what its open loop says: a client that was late makes it invalid, a backlog that grows not steady.

    The rate of tokens follows the arrivals up and down, so it says nothing about that.
    """
    notes = list(result.warnings)
    client = result.client
    if report.late_p99_ms is not None and report.late_p99_ms > late_limit_ms:
        why = f"requests were sent late: p99 {report.late_p99_ms:.1f} ms after they were due, limit {late_limit_ms:g} ms"
        notes.append(f"invalid client: {why}")
        client = None if client is None else replace(client, invalid=(*client.invalid, why))
    if report.held:
        waited = f"{report.held} of {report.due} requests waited up to {report.held_max_ms:.0f} ms for a place"
        notes.append(f"{waited}: {max_in_flight} were in flight already; the wait counts as theirs")
    if report.growing:
        rise = f"from {report.in_flight_first:.0f} to {report.in_flight_last:.0f} requests in flight"
        notes.append(f"not steady: the backlog grew {rise}; the server does not keep up with {report.offered_rate:.3g} requests/s")
    return replace(result, warnings=tuple(notes), client=client, steady=not report.growing)


def _in_flight(records: Sequence[RequestRecord], at_s: float) -> int:
    return sum(1 for record in records if record.start_s <= at_s and (record.end_s is None or record.end_s > at_s))
