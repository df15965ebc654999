"""Measures one cell: drives the closed loop, reads the counters at both edges of the window, derives the result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from autotuner.decide.cells import Window, derive
from autotuner.engines.base import Counters
from autotuner.errors import Interrupted, TransportError
from autotuner.loadgen.crew import Crew, shares_of
from autotuner.loadgen.fleet import Fleet, fleet
from autotuner.loadgen.observation import Observer
from autotuner.loadgen.plan import CellPlan, Share, cell_seconds
from autotuner.loadgen.prompts import PromptSource
from autotuner.loadgen.steering import Steering
from autotuner.model.measurement import CellResult, RequestRecord
from autotuner.model.workload import Cell, Sampling

POLL_S = 0.05
EDGE_S = 0.1
"""How long lanes go on after the window, so that tokens can be interpolated at its end."""

__all__ = ["CellMeasurement", "CellPlan", "measure_cell"]


@dataclass(frozen=True, slots=True)
class CellMeasurement:
    """The result of a cell and the requests behind it. ``result.requests`` is 0 when all of them failed."""

    result: CellResult
    records: tuple[RequestRecord, ...]


def measure_cell(
    base_url: str,
    *,
    model: str,
    chat_path: str,
    cell: Cell,
    prompts: PromptSource,
    sampling: Sampling,
    plan: CellPlan,
    read_counters: Callable[[], Counters] | None,
    should_stop: Callable[[], bool],
    workers: Fleet | None = None,
    observe: Observer | None = None,
    before_attempt: Callable[[], None] | None = None,
) -> CellMeasurement:
    """Measure ``cell`` on the server at ``base_url``.

    ``workers`` drive the load, those of this machine by default; ``base_url`` is how they reach the server. ``observe`` watches the server
    over the same window; what it reports becomes ``result.server``. ``before_attempt`` is called before every attempt, the first included:
    emptying the prefix cache is the caller's business.
    Failures of requests are counted, not raised. Raises ``Interrupted`` within a second of ``should_stop``, and ``RetryTrial`` when a load
    worker fails or the way to it is lost.
    """
    if before_attempt is not None:
        before_attempt()
    workers = workers or fleet()
    count = workers.size(cell.concurrency)
    counters = _Counting(read_counters)
    with workers.crew(count) as crew:
        template = Share(
            base_url=base_url.rstrip("/"),
            model=model,
            chat_path=chat_path,
            cell=cell,
            lanes=(),
            prompts=prompts,
            sampling=sampling,
            warmup_s=plan.warmup_s,
            request_timeout_s=plan.request_timeout_s,
            seed=plan.seed,
        )
        cell_begin_ns = crew.start(shares_of(template, count))
        steering = Steering(plan, concurrency=cell.concurrency, domains=len(prompts.domains), begin_ns=cell_begin_ns)
        begin_ns, end_ns = _steer(crew, steering, counters, observe, should_stop)
        counters.read_after()
        server = observe.end() if observe is not None else None
        time.sleep(EDGE_S)
        found = crew.stop(begin_ns)
    window = Window(cell_seconds(begin_ns, cell_begin_ns), cell_seconds(end_ns, cell_begin_ns))
    records, estimated = _counted(found)
    clock = [] if crew.clock == "kernel" else ["times are the client's own: the kernel did not stamp every read"]
    warnings = [*steering.warnings, *counters.warnings, *estimated, *clock, *crew.warnings]
    result = derive(cell, records, window, before=counters.before, after=counters.after, warnings=warnings)
    return CellMeasurement(replace(result, server=server), records)


def _steer(
    crew: Crew, steering: Steering, counters: _Counting, observe: Observer | None, should_stop: Callable[[], bool]
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
