"""The eight figures: what is run for each, what is read from it, and the bar that the product has to pass."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from autotuner.decide.statistics import percentile
from autotuner.engines.base import Counters
from autotuner.engines.sglang.metrics import counters as sglang_counters
from autotuner.engines.vllm.metrics import counters as vllm_counters
from autotuner.loadgen.plan import CellPlan
from benchmarks.loadgen import ours
from benchmarks.loadgen.clients import OURS, Client, Failed, Run
from benchmarks.loadgen.handle import MockServer, Truth, mock_server
from benchmarks.loadgen.jobs import Job
from benchmarks.loadgen.rows import Row
from benchmarks.loadgen.scenarios import SCENARIOS

GOLDEN = tuple(f"S{number}" for number in range(1, 12))
RELATIVE, ABSOLUTE_S = 0.01, 0.001
REFERENCE = "aiohttp"
"""Ratios of chunk-time errors are to this one, the best of those that stamp in user space."""
ACCEPTANCE: tuple[tuple[str, str, Callable[[str], Counters] | None], ...] = (
    ("sglang-spec", "answers", None),
    ("sglang-spec", "counters", sglang_counters),
    ("vllm-spec", "answers", None),
    ("vllm-silent", "counters", vllm_counters),
)
"""Scenario, what tells its acceptance length, and how its page of counters is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is run."""

    streams: int = 256
    rate: int = 20
    """Chunks a second and stream."""
    seconds: float = 8.0
    fidelity_requests: int = 6
    fidelity_scale: float = 1.0
    long_context: int = 131072
    repeats: int = 4
    """Requests with the long prompt."""
    golden: tuple[str, ...] = GOLDEN

    @property
    def load(self) -> dict[str, float | int]:
        """The point under load, as a job has it: one request a stream, all sent at once."""
        tokens = max(60, round(self.rate * self.seconds))
        return {"concurrency": self.streams, "requests": self.streams, "output_tokens": tokens, "seconds": 0.6 * self.seconds}


QUICK = Sizes(streams=64, seconds=4.0, fidelity_requests=2, fidelity_scale=0.5, long_context=32768, repeats=2)


@dataclass(slots=True)
class Figure:
    """One of the eight: a value of each client, by name."""

    number: int
    title: str
    unit: str
    bar: str
    values: dict[str, dict[str, float | str]] = field(default_factory=dict)
    passed: bool | None = None
    note: str = ""

    def judge(self, run: Run | None, *, passed: bool) -> None:
        """Whether the bar is passed; no judgement where the product did not run, or says itself that the machine held it up."""
        if run is not None and not run.held_up:
            self.passed = passed
        elif run is not None:
            self.note = f"The product calls its own measurement invalid: {'; '.join(run.held_up)}."

    def ratios(self, key: str) -> dict[str, float]:
        """Each client's value over the product's."""
        mine = self.values.get(OURS, {}).get(key)
        if not isinstance(mine, float) or mine == 0:
            return {}
        told = {name: values.get(key) for name, values in self.values.items() if name != OURS}
        return {name: value / mine for name, value in told.items() if isinstance(value, float)}


class Bench:
    """Runs jobs once and keeps what they gave: several figures are read from one point."""

    def __init__(self, clients: Sequence[Client], sizes: Sizes, say: Callable[[str], None]) -> None:
        self._clients = clients
        self.sizes = sizes
        self._say = say
        self._load: dict[str, Run] | None = None
        self._starting_runs: dict[str, Run] = {}

    def _each(self, what: str, job: Callable[[MockServer], Job], only: Sequence[str] | None = None) -> dict[str, Run]:
        runs = {}
        with mock_server(core=0) as server:
            for client in self._clients:
                if only is not None and client.name not in only:
                    continue
                self._say(f"{what}: {client.name}")
                try:
                    runs[client.name] = client.run(server, job(server))
                except Failed as error:
                    self._say(f"  {client.name} failed: {error}")
        return runs

    def lockstep(self) -> dict[str, Run]:
        """The point under load: all streams start at once and emit in step."""
        if self._load is None:
            self._load = self._each("lockstep", self._lockstep_job)
        return self._load

    def _lockstep_job(self, server: MockServer) -> Job:
        return Job(url=server.url, model=f"lockstep:{self.sizes.rate}", **self.sizes.load)  # type: ignore[arg-type]

    def chunk_times(self) -> Figure:
        """1: errors of chunk times in lockstep."""
        bar = f"p99 below 100 µs, and a twentieth of {REFERENCE}'s"
        return _chunk_times(Figure(1, f"chunk-time error, {self._point()}", "µs", bar), self.lockstep())

    def chunk_times_with_hogs(self) -> Figure:
        """2: the same while two other processes want the processors."""
        with _hogs(2):
            runs = self._each("lockstep with two hogs", self._lockstep_job, (OURS, "aiohttp", "httpx"))
        return _chunk_times(Figure(2, f"the same with two CPU hogs, {self._point()}", "µs", "p99 below 100 µs"), runs)

    def cpu(self) -> Figure:
        """3: CPU per chunk, without what starting costs."""
        figure = Figure(3, f"client CPU per chunk, {self._point()}", "µs", "half of vllm's or less, a quarter of aiperf's and guidellm's")
        starting = self._starting()
        for name, run in self.lockstep().items():
            if name in starting and run.chunks:
                cpu_s = max(0.0, run.cpu_s - starting[name]) if run.point_cpu_s is None else run.point_cpu_s
                figure.values[name] = {"cpu": 1e6 * cpu_s / run.chunks}
        told = figure.ratios("cpu")
        figure.passed = (
            all(told.get(name, floor) >= floor for name, floor in (("vllm", 2), ("aiperf", 4), ("guidellm", 4))) if told else None
        )
        return figure

    def synchronous_start(self) -> Figure:
        """4: time to first token of streams that all start at once."""
        figure = Figure(4, f"TTFT bias, {self.sizes.streams} streams at once", "ms", "mean below 2 ms, p99 below 5 ms")
        for name, run in self.lockstep().items():
            told, true = _ttfts(run.rows), _ttfts(run.truth)
            if told and true:
                figure.values[name] = {
                    "mean": statistics.fmean(told) - statistics.fmean(true),
                    "p99": percentile(told, 99) - percentile(true, 99),
                }
        mine = figure.values.get(OURS)
        if mine is not None:
            figure.judge(self.lockstep()[OURS], passed=abs(float(mine["mean"])) < 2 and abs(float(mine["p99"])) < 5)
        return figure

    def long_prompt(self) -> Figure:
        """5: time to first token of a long prompt."""
        tokens = self.sizes.long_context
        figure = Figure(5, f"TTFT bias, a prompt of {tokens} tokens, C=1", "ms", "mean below 2 ms")

        def job(server: MockServer) -> Job:
            return Job(url=server.url, model="S1@0.5", requests=self.sizes.repeats, context=tokens)

        for name, run in self._each("long prompt", job, (OURS, "aiohttp", "httpx", "vllm", "sglang")).items():
            told, true = _ttfts(run.rows), _ttfts(run.truth)
            if told and true:
                figure.values[name] = {"mean": statistics.fmean(told) - statistics.fmean(true)}
        mine = figure.values.get(OURS)
        figure.passed = None if mine is None else abs(float(mine["mean"])) < 2
        return figure

    def fidelity(self) -> Figure:
        """6: the golden scenarios, each with what a client gets wrong."""
        figure = Figure(6, "golden scenarios", "", "times within 1 % + 1 ms, token and success counts exact, in every one")
        for name in self.sizes.golden:

            def job(server: MockServer, model: str = name) -> Job:
                model = f"{model}@{self.sizes.fidelity_scale}"
                return Job(url=server.url, model=model, requests=self.sizes.fidelity_requests)

            runs = self._each(name, job)
            for client in self._clients:
                run = runs.get(client.name)
                figure.values.setdefault(client.name, {})[name] = "no report" if run is None else verdict(name, run)
        mine = figure.values.get(OURS)
        figure.passed = None if mine is None else all(said == "ok" for said in mine.values())
        return figure

    def start_up(self) -> Figure:
        """7: CPU that a point costs before anything is measured."""
        figure = Figure(7, "start-up CPU per point", "s", "below 0.5 s")
        for name, seconds in self._starting().items():
            figure.values[name] = {"point": seconds}
        if OURS in figure.values:
            further = self._starting_runs[OURS].point_cpu_s or 0.0
            figure.values[OURS] = {"point": further, "first": self._starting()[OURS]}
            figure.passed = further < 0.5
        return figure

    def acceptance(self) -> Figure:
        """8: acceptance length from what answers say and from counters, over windows of few steps."""
        figure = Figure(8, "acceptance length, tokens per verification step", "", "exactly the script's")
        plan = CellPlan(window_s=0.5, warmup_s=0.0, max_window_s=5, settle_s=0.0, min_answers=3)
        with mock_server(core=0) as server:
            client = ours.Client(server)
            for name, source, counters in ACCEPTANCE:
                self._say(f"acceptance: {name} by its {source}")

                def read(counters: Callable[[str], Counters] = counters or sglang_counters) -> Counters:
                    return counters(server.metrics())

                told_by = None if counters is None else read
                found = client.measure(f"{name}@0.3", replace(plan, details=counters is None), counters=told_by)
                truth = next(truth for truth in found.truths if truth.outcome == "sent")
                told = found.measurement.result.metrics.get("acceptance_length")
                true = true_acceptance(name, truth)
                figure.values[f"{name} by its {source}"] = {"told": "–" if told is None else told, "true": true}
            client.close()
        pairs = [(values["told"], values["true"]) for values in figure.values.values()]
        figure.passed = all(isinstance(told, float) and abs(told - float(true)) < 1e-9 for told, true in pairs)
        return figure

    def _point(self) -> str:
        return f"C={self.sizes.streams} x {self.sizes.rate}/s in lockstep"

    def _starting(self) -> dict[str, float]:
        if not self._starting_runs:
            # The product keeps its workers: its second point is what each further one costs.
            self._starting_runs = self._each(
                "start-up", lambda server: Job(url=server.url, model="S1@0.1", requests=2, seconds=0.1, points=2)
            )
        return {name: run.cpu_s for name, run in self._starting_runs.items()}


FIGURES: Mapping[int, Callable[[Bench], Figure]] = {
    1: Bench.chunk_times,
    2: Bench.chunk_times_with_hogs,
    3: Bench.cpu,
    4: Bench.synchronous_start,
    5: Bench.long_prompt,
    6: Bench.fidelity,
    7: Bench.start_up,
    8: Bench.acceptance,
}


def _chunk_times(figure: Figure, runs: Mapping[str, Run]) -> Figure:
    for name, run in runs.items():
        errors = sorted(run.chunk_errors_us)
        if errors:
            figure.values[name] = {"p50": percentile(errors, 50), "p99": percentile(errors, 99), "max": errors[-1]}
    mine, reference = figure.values.get(OURS), figure.values.get(REFERENCE)
    if mine is not None:
        better = reference is None or figure.number == 2 or float(reference["p99"]) >= 20 * float(mine["p99"])
        figure.judge(runs[OURS], passed=float(mine["p99"]) < 100 and better)
    return figure


def _ttfts(rows: Sequence[Row]) -> list[float]:
    return sorted(1e3 * row.ttft_s for row in rows if row.ttft_s is not None)


def true_acceptance(name: str, truth: Truth) -> float:
    """Tokens per verification step, by the script. vLLM's prefill yields a token outside of any step."""
    return (truth.tokens - name.startswith("vllm")) / (truth.verify_steps or 1)


def verdict(name: str, run: Run) -> str:
    """What a client got wrong in a scenario; ``ok`` when nothing."""
    scenario = SCENARIOS[name]
    done = [row for row in run.rows if row.ok]
    if scenario.error is not None:
        if name == "S10":  # valid or not is a matter of taste there; to make up counts is not
            invented = sorted({row.tokens for row in done if row.tokens is not None})
            return f"assumes {invented[0]} tokens" if invented else "ok"
        return "ok" if not done else f"{len(done)} of {len(run.rows)} counted as good"
    if len(done) != len(run.rows) or not done:
        return f"{len(run.rows) - len(done)} of {len(run.rows)} counted as failed"
    true = [row for row in run.truth if row.ok]
    faults = []
    tokens = {row.tokens for row in done}
    if tokens != {row.tokens for row in true}:
        faults.append(f"{min(value or 0 for value in tokens)} tokens")
    for label, attribute in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("E2E", "e2e_s")):
        told = statistics.median(getattr(row, attribute) or 0.0 for row in done)
        right = statistics.median(getattr(row, attribute) or 0.0 for row in true)
        if abs(told - right) > RELATIVE * right + (0 if label == "TPOT" else ABSOLUTE_S):
            faults.append(f"{label} {100 * (told / right - 1):+.1f} %")
    return ", ".join(faults) or "ok"


@contextmanager
def _hogs(count: int) -> Iterator[None]:
    """So many processes that want a processor all the time."""
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
