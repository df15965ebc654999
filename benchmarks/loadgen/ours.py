"""The product's own measuring path against the mock, with each of its records beside the truth about it.

``python -m benchmarks.loadgen.ours JOB`` measures one point and prints JSON, as the drivers of the peers do; JOB is JSON, see ``jobs.Job``.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from autotuner.engines.base import Counters
from autotuner.loadgen.cells import CellMeasurement, measure_cell
from autotuner.loadgen.fleet import Fleet, Worker
from autotuner.loadgen.plan import CellPlan, Share
from autotuner.loadgen.prompts import PromptSource
from autotuner.model.measurement import RequestRecord
from autotuner.model.workload import Cell, Sampling
from benchmarks.loadgen.handle import MockServer, Truth
from benchmarks.loadgen.jobs import Job
from benchmarks.loadgen.mock import PROMPT_HEAD, prompt_of
from benchmarks.loadgen.rows import Row

PATH = "/v1/chat/completions"


class _Clock:
    """A fleet that remembers when the last cell began, on CLOCK_MONOTONIC, what it asked, and what its workers cost."""

    def __init__(self) -> None:
        self.begin_ns = 0
        self._share: Share | None = None
        self._pids: list[int] = []
        clock = self

        class Clocked(Worker):
            def __init__(self) -> None:
                super().__init__()
                clock._pids.append(self.pid)

            def prepare(self, share: Share) -> None:
                clock._share = share
                super().prepare(share)

            def begin(self, begin_ns: int) -> None:
                clock.begin_ns = begin_ns
                super().begin(begin_ns)

        self.fleet = Fleet(Clocked, lambda: os.cpu_count() or 1)
        atexit.register(self.fleet.close)

    def head(self, index: int) -> str:
        """How the prompt of request ``index`` of the last cell begins."""
        if self._share is None:
            return ""
        return prompt_of(json.loads(self._share.numbered(index)[0]))[:PROMPT_HEAD]

    def cpu_s(self) -> float:
        """CPU seconds so far of this process and of the workers that live."""
        return time.process_time() + sum(_cpu_s(pid) for pid in self._pids)


@dataclass(frozen=True, slots=True)
class Measured:
    """A cell, and what the server knows about it."""

    measurement: CellMeasurement
    begin_ns: int
    """CLOCK_MONOTONIC at which the cell began."""
    truths: tuple[Truth, ...]
    """Of the attempt that counts."""
    heads: Mapping[int, str]
    """How the prompt of each record's request begins, by the record's index."""

    def at_ns(self, seconds: float) -> int:
        """A moment of the cell on CLOCK_MONOTONIC."""
        return self.begin_ns + round(seconds * 1e9)

    def pairs(self) -> list[tuple[RequestRecord, Truth]]:
        """Each record and its truth, told by their prompts, of which no two are the same; as the requests came."""
        by_prompt = {truth.prompt: truth for truth in self.truths}
        found = [
            (record, by_prompt[self.heads[record.index]]) for record in self.measurement.records if self.heads[record.index] in by_prompt
        ]
        return sorted(found, key=lambda pair: pair[1].serial)

    def chunk_errors_us(self) -> list[float]:
        """Each chunk's time less the moment just before the server sent it."""
        return [
            (self.at_ns(at_s) - before_ns) / 1e3
            for record, truth in self.pairs()
            for (at_s, _), (before_ns, _, _) in zip(record.chunks, truth.chunks, strict=False)
        ]


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Client:
    """Measures cells of one mock with workers that are kept from cell to cell."""

    def __init__(self, server: MockServer) -> None:
        self._server = server
        self._clock = _Clock()
        self.chunks = 0
        """Chunks that the server has sent in all cells, those of attempts that did not count included."""

    def warm_up(self, concurrency: int) -> None:
        """Start the workers that a cell of so many lanes takes."""
        with self._clock.fleet.crew(self._clock.fleet.size(concurrency)):
            pass

    @property
    def cpu_s(self) -> float:
        """CPU seconds so far."""
        return self._clock.cpu_s()

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
            before_attempt=self._told,
        )
        heads = {record.index: self._clock.head(record.index) for record in found.records}
        return Measured(found, self._clock.begin_ns, tuple(self._told()), heads)

    def _told(self) -> list[Truth]:
        truths = self._server.truth()
        self.chunks += sum(len(truth.chunks) for truth in truths)
        return truths

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
        "tpot_s": record.tpot_s if record.valid else None,
        "e2e_s": record.e2e_s,
        "tokens": record.completion_tokens,
    }


def measure_job(job: Job) -> dict[str, object]:
    """One point, as the peers' drivers report it. Of several lanes, only the first request of each is reported, ended or not."""
    client = Client(_Elsewhere(job.url))
    # Where many begin at once, a window that began anew after a stall would leave the very answers out that it is about.
    longest_s = 120 if job.concurrency == 1 else job.seconds
    plan = CellPlan(window_s=job.seconds, warmup_s=0.0, max_window_s=longest_s, settle_s=0.0, min_answers=job.requests, max_warmup_s=60)
    client.warm_up(job.concurrency)
    for _ in range(job.points):
        cpu_s, chunks = client.cpu_s, client.chunks
        found = client.measure(job.model, plan, concurrency=job.concurrency, output_tokens=job.output_tokens, context=job.context)
    cpu_s, chunks = client.cpu_s - cpu_s, client.chunks - chunks
    client.close()
    result = found.measurement.result
    pairs = found.pairs()
    if job.concurrency > 1:
        pairs = [(record, truth) for record, truth in pairs if record.index == record.lane and record.chunks]
    else:
        pairs = [(record, truth) for record, truth in pairs if record.end_s is not None]
    report = result.client
    return {
        "requests": [_row(record) for record, _ in pairs],
        "truth": [asdict(Row.true(truth)) for _, truth in pairs],
        "chunks": chunks,
        "point_cpu_s": cpu_s,
        "chunk_errors_us": found.chunk_errors_us(),
        "held_up": [] if report is None else list(report.invalid),
    }


def main(arguments: Sequence[str]) -> int:
    """Measure the job that the first argument says."""
    print(json.dumps(measure_job(Job.of(arguments[0]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
