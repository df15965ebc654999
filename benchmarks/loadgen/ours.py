"""The product's own measuring path against the mock, with each of its records beside the truth about it.

``python -m benchmarks.loadgen.ours JOB`` measures one point and prints JSON, as the drivers of the peers do; JOB is JSON, see ``jobs.Job``.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from autotuner.engines.base import Counters
from autotuner.loadgen.cells import CellMeasurement, measure_cell
from autotuner.loadgen.fleet import Fleet, Worker
from autotuner.loadgen.plan import CellPlan
from autotuner.loadgen.prompts import PromptSource
from autotuner.model.measurement import RequestRecord
from autotuner.model.workload import Cell, Sampling
from benchmarks.loadgen.handle import MockServer, Truth
from benchmarks.loadgen.jobs import Job, chunk_error_us
from benchmarks.loadgen.scripts import serial_of

PATH = "/v1/chat/completions"
EARLY_NS = 200_000
"""How far the clocks of the two sides may disagree about who was first."""
LATE_NS = 200_000_000
"""How long a request may be on its way to the server on a machine that is busy."""


class _Clock:
    """A fleet that remembers when the last cell began, on CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self.begin_ns = 0
        clock = self

        class Clocked(Worker):
            def begin(self, begin_ns: int) -> None:
                clock.begin_ns = begin_ns
                super().begin(begin_ns)

        self.fleet = Fleet(Clocked, lambda: os.cpu_count() or 1)
        atexit.register(self.fleet.close)


@dataclass(frozen=True, slots=True)
class Measured:
    """A cell, and what the server knows about it."""

    measurement: CellMeasurement
    begin_ns: int
    """CLOCK_MONOTONIC at which the cell began."""
    truths: tuple[Truth, ...]
    """Of the attempt that counts."""

    def at_ns(self, seconds: float) -> int:
        """A moment of the cell on CLOCK_MONOTONIC."""
        return self.begin_ns + round(seconds * 1e9)

    def pairs(self) -> list[tuple[RequestRecord, Truth]]:
        """Each record and its truth; of several lanes, requests that have not had a token are left out: nothing tells them apart."""
        free = {truth.serial: truth for truth in self.truths}
        alone = self.measurement.result.concurrency == 1
        found, unnumbered = [], []
        for record in self.measurement.records:
            serial = serial_of([n for _, n in record.chunks])
            if serial in free:
                found.append((record, free.pop(serial)))
            elif alone or record.chunks:
                unnumbered.append(record)
        for record in unnumbered:
            truth = self._nearest(record, free.values())
            if truth is not None:
                found.append((record, free.pop(truth.serial)))
        return sorted(found, key=lambda pair: pair[1].serial)

    def _nearest(self, record: RequestRecord, truths: Iterable[Truth]) -> Truth | None:
        """The request that was sent when this one was and had the same counts; of several, the one whose first chunk came nearest."""
        start_ns = self.at_ns(record.start_s)
        counts = [n for _, n in record.chunks]
        candidates = [
            truth
            for truth in truths
            if -EARLY_NS <= truth.begin_ns - start_ns <= LATE_NS
            and (self.measurement.result.concurrency == 1 or counts == [n for _, _, n in truth.chunks[: len(counts)]])
        ]
        return min(candidates, key=lambda truth: self._apart_ns(record, truth), default=None)

    def _apart_ns(self, record: RequestRecord, truth: Truth) -> int:
        if record.chunks and truth.chunks:
            return abs(self.at_ns(record.chunks[0][0]) - truth.chunks[0][0])
        return abs(self.at_ns(record.start_s) - truth.begin_ns)

    def chunk_errors_us(self) -> list[float]:
        """How far each chunk's time lies from the moment in which the server sent it."""
        return [
            chunk_error_us(self.at_ns(at_s), before_ns, after_ns)
            for record, truth in self.pairs()
            for (at_s, _), (before_ns, after_ns, _) in zip(record.chunks, truth.chunks, strict=False)
        ]


class Client:
    """Measures cells of one mock with workers that are kept from cell to cell."""

    def __init__(self, server: MockServer) -> None:
        self._server = server
        self._clock = _Clock()

    def measure(
        self,
        model: str,
        plan: CellPlan,
        *,
        concurrency: int = 1,
        output_tokens: int = 40,
        context: int = 60,
        counters: Callable[[], Counters] | None = None,
    ) -> Measured:
        """One cell. Only the truth of its last attempt is kept."""
        found = measure_cell(
            self._server.url,
            model=model,
            chat_path=PATH,
            cell=Cell(context=context, concurrency=concurrency, output_tokens=output_tokens),
            prompts=PromptSource(("code",), seed=1),
            sampling=Sampling(),
            plan=plan,
            read_counters=counters,
            should_stop=lambda: False,
            workers=self._clock.fleet,
            before_attempt=lambda: self._server.truth() and None,
        )
        return Measured(found, self._clock.begin_ns, tuple(self._server.truth()))

    def close(self) -> None:
        """End the workers."""
        self._clock.fleet.close()


class _Elsewhere(MockServer):
    """A mock that another process started."""

    def __init__(self, url: str) -> None:
        self.url = url


def _row(record: RequestRecord) -> dict[str, object]:
    return {
        "ok": record.valid,
        "ttft_s": record.ttft_s,
        "tpot_s": record.tpot_s,
        "e2e_s": record.e2e_s,
        "tokens": record.completion_tokens,
    }


def measure_job(job: Job) -> dict[str, object]:
    """One point, as the peers' drivers report it."""
    client = Client(_Elsewhere(job.url))
    seconds = job.seconds
    plan = CellPlan(window_s=seconds, warmup_s=0.0, max_window_s=4 * seconds, settle_s=0.0, min_answers=job.requests, max_warmup_s=60)
    rows = []
    for _ in range(job.points):
        begun = time.monotonic()
        found = client.measure(job.model, plan, concurrency=job.concurrency, output_tokens=job.output_tokens, context=job.context)
        report = found.measurement.result.client
        pairs = found.pairs()
        first = [(record, truth) for record, truth in pairs if record.lane == record.index]
        rows.append(
            {
                "wall_s": time.monotonic() - begun,
                "requests": [_row(record) for record, _ in pairs if record.end_s is not None],
                "chunks": sum(len(record.chunks) for record in found.measurement.records),
                "chunk_errors_us": found.chunk_errors_us(),
                "ttft_bias_ms": [1e3 * ((record.ttft_s or 0) - truth.ttft_s) for record, truth in first if record.chunks and truth.chunks],
                "client": None if report is None else {name: getattr(report, name) for name in report.__slots__},
                "warnings": list(found.measurement.result.warnings),
            }
        )
    client.close()
    return rows[-1]


def main(arguments: Sequence[str]) -> int:
    """Measure the job that the first argument says."""
    print(json.dumps(measure_job(Job.of(arguments[0]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
