"""Measures one cell: drives the closed loop, reads the counters at both edges of the window, derives the result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autotuner.decide.cells import Window, coalesced_share, derive
from autotuner.decide.openloop import OpenLoopReport, judged, open_loop_report
from autotuner.decide.serverside import with_server
from autotuner.engines.base import Counters
from autotuner.errors import Interrupted, TransportError
from autotuner.loadgen.arrivals import Arrivals
from autotuner.loadgen.crew import Crew, shares_of
from autotuner.loadgen.fleet import Fleet, fleet
from autotuner.loadgen.observation import Observer
from autotuner.loadgen.open_steering import OpenSteering
from autotuner.loadgen.plan import CellPlan, Share, cell_seconds
from autotuner.loadgen.prompts import PromptSource
from autotuner.loadgen.steering import Steering
from autotuner.loadgen.userprompts import UserPrompts
from autotuner.loadgen.validity import client_report
from autotuner.model.measurement import CellResult, RequestRecord
from autotuner.model.workload import Cell, Sampling, Slo

POLL_S = 0.05
THROWN_AWAY = "the load generator spoiled attempt"
"""How a warning about an attempt begins that was measured again."""
SEED_STEP = 1_000_003
"""Between the seeds of the attempts at one cell."""
EDGE_S = 0.1
"""How long lanes go on after the window, so that tokens can be interpolated at its end."""

__all__ = ["THROWN_AWAY", "CellMeasurement", "CellPlan", "measure_cell"]


@dataclass(frozen=True, slots=True)
class CellMeasurement:
    """The result of a cell and the requests behind it. ``result.requests`` is 0 when all of them failed."""

    result: CellResult
    records: tuple[RequestRecord, ...]
    window: Window
    """The steady window that the result is about, on the clock of the cell."""
    open_loop: OpenLoopReport | None = None
    """How punctual an open loop was; ``None`` in a closed one."""


def measure_cell(
    base_url: str,
    *,
    model: str,
    chat_path: str,
    cell: Cell,
    prompts: PromptSource | UserPrompts,
    sampling: Sampling,
    plan: CellPlan,
    read_counters: Callable[[], Counters] | None,
    should_stop: Callable[[], bool],
    workers: Fleet | None = None,
    observe: Observer | None = None,
    before_attempt: Callable[[], None] | None = None,
    headers: Sequence[tuple[str, str]] = (),
    slos: Sequence[Slo] = (),
) -> CellMeasurement:
    """Measure ``cell`` on the server at ``base_url``.

    ``workers`` drive the load, those of this machine by default; ``base_url`` is how they reach the server. ``observe`` watches the server
    over the same window; what it reports becomes ``result.server``. ``before_attempt`` is called before every attempt, the first included:
    emptying the prefix cache is the caller's business. ``headers`` go with every request. ``slos`` are the limits
    that goodput is about.
    An attempt in which the load generator broke one of the limits of ``plan`` is measured again, ``plan.repeats`` times at most, and its
    reasons become warnings of the result. If the last attempt is no better it is returned as it is, with ``result.client.invalid``: nobody
    may score it.
    Failures of requests are counted, not raised. Raises ``Interrupted`` within a second of ``should_stop``, and ``RetryTrial`` when a load
    worker fails or the way to it is lost.
    """
    workers = workers or fleet()
    discarded: list[str] = []
    before: CellMeasurement | None = None
    while True:
        if before_attempt is not None:
            before_attempt()
        found = _attempt(
            Share(
                base_url=base_url.rstrip("/"),
                model=model,
                chat_path=chat_path,
                cell=cell,
                lanes=(),
                prompts=prompts,
                sampling=sampling,
                warmup_s=plan.warmup_s,
                request_timeout_s=plan.request_timeout_s,
                # Where the prefix cache cannot be emptied, the prompts of the attempt before are in it.
                seed=plan.seed + SEED_STEP * len(discarded),
                arrivals=plan.arrivals,
                headers=tuple(headers),
                details=plan.details,
            ),
            plan,
            workers=workers,
            counters=_Counting(read_counters),
            observe=observe,
            should_stop=should_stop,
            slos=slos,
        )
        broken = found.result.client.invalid if found.result.client is not None else ()
        if found.result.requests == 0 and before is not None:
            # The server has died meanwhile. How it did stands in the attempt before.
            return _with_history(before, discarded[:-1])
        # Where nothing was answered there is no measurement that the client could have spoiled.
        if not broken or found.result.requests == 0 or len(discarded) >= plan.repeats:
            return _with_history(found, discarded)
        discarded.append("; ".join(broken))
        before = found


def _attempt(
    template: Share,
    plan: CellPlan,
    *,
    workers: Fleet,
    counters: _Counting,
    observe: Observer | None,
    should_stop: Callable[[], bool],
    slos: Sequence[Slo],
) -> CellMeasurement:
    cell, prompts = template.cell, template.prompts
    # An open loop gets a worker for every 32 arrivals a second, whatever it may have in flight.
    count = workers.size(cell.concurrency if plan.arrivals is None else math.ceil(plan.arrivals.mean_rate))
    with workers.crew(count) as crew:
        cell_begin_ns = crew.start(shares_of(template, count))
        steering: Steering | OpenSteering
        if plan.arrivals is None:
            steering = Steering(plan, concurrency=cell.concurrency, domains=len(prompts.domains), begin_ns=cell_begin_ns)
        else:
            steering = OpenSteering(plan, plan.arrivals, workers=count, begin_ns=cell_begin_ns)
        begin_ns, end_ns = _steer(crew, steering, counters, observe, should_stop)
        counters.read_after()
        server = observe.end() if observe is not None else None
        time.sleep(EDGE_S)
        found = crew.stop(begin_ns, end_ns)
    window = Window(cell_seconds(begin_ns, cell_begin_ns), cell_seconds(end_ns, cell_begin_ns))
    records, estimated = _counted(found)
    clock = [] if crew.clock == "kernel" else ["times are the client's own: the kernel did not stamp every read"]
    warnings = [*steering.warnings, *counters.warnings, *estimated, *clock, *crew.warnings]
    result = derive(cell, records, window, before=counters.before, after=counters.after, slos=slos, warnings=warnings)
    client = client_report(crew.clock, crew.checks, coalesced=coalesced_share(records, window), limits=plan)
    result = replace(result if server is None else with_server(result, server), client=client)
    measured = CellMeasurement(result, records, window)
    return measured if plan.arrivals is None else _judged(measured, plan.arrivals)


def _with_history(found: CellMeasurement, discarded: Sequence[str]) -> CellMeasurement:
    """The measurement, with a warning for every attempt that was thrown away before it."""
    told = tuple(f"{THROWN_AWAY} {number} of {len(discarded) + 1}: {why}" for number, why in enumerate(discarded, start=1))
    return replace(found, result=replace(found.result, warnings=(*found.result.warnings, *told)))


def _judged(measured: CellMeasurement, arrivals: Arrivals) -> CellMeasurement:
    """An open loop with what it says about itself."""
    report = open_loop_report(measured.records, measured.window)
    result = judged(measured.result, report, late_limit_ms=arrivals.late_p99_ms, max_in_flight=arrivals.max_in_flight)
    return replace(measured, result=result, open_loop=report)


def _steer(
    crew: Crew, steering: Steering | OpenSteering, counters: _Counting, observe: Observer | None, should_stop: Callable[[], bool]
) -> tuple[int, int]:
    """Follow the lanes until the window has been; its bounds."""
    begun_ns: int | None = None
    while steering.window_begin_ns is None or steering.window_end_ns is None:
        if should_stop():
            raise Interrupted("the measurement was stopped before its window had ended")
        progress = crew.progress(POLL_S)
        steering.observe(time.monotonic_ns(), progress)
        if steering.window_begin_ns is not None and steering.window_begin_ns != begun_ns:
            begun_ns = steering.window_begin_ns
            counters.read_before()
            if observe is not None:
                observe.begin(begun_ns)
        if observe is not None:
            observe.tick()
    return steering.window_begin_ns, steering.window_end_ns


class _Counting:
    """The server's counters before and after the window; a server that does not answer costs a warning."""

    def __init__(self, read: Callable[[], Counters] | None) -> None:
        self._read = read
        self.before: Counters | None = None
        self.after: Counters | None = None
        self.warnings: list[str] = []

    def read_before(self) -> None:
        self.before = self._ask()

    def read_after(self) -> None:
        self.after = self._ask()

    def _ask(self) -> Counters | None:
        if self._read is None:
            return None
        try:
            return self._read()
        except TransportError as error:
            self._read = None
            self.warnings.append(f"no counters from the server: {error.message}")
            return None


def _counted(found: list[tuple[RequestRecord, bool]]) -> tuple[tuple[RequestRecord, ...], list[str]]:
    """Records whose chunks carry token counts, estimated where the server gave only totals or an answer was abandoned without one."""
    if all(counted for _, counted in found):
        return tuple(record for record, _ in found), []
    totals = [record for record, counted in found if not counted and record.completion_tokens and record.valid]
    chunks = sum(len(record.chunks) for record in totals)
    ratio = sum(record.completion_tokens or 0 for record in totals) / chunks if chunks else 1.0
    records = tuple(record if counted or record.valid else _scaled(record, ratio) for record, counted in found)
    return records, ["the server does not count tokens chunk by chunk: its totals were spread evenly over the chunks"]


def _scaled(record: RequestRecord, ratio: float) -> RequestRecord:
    return replace(record, chunks=tuple((at, round(number * ratio)) for at, number in record.chunks))
