"""Measurement: raw request records, what is derived from them, and the registry of metrics."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


class Direction(enum.StrEnum):
    """Which way is better."""

    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A number that a cell yields: its unit, which way is better, and exactly how it is defined."""

    name: str
    unit: str
    direction: Direction
    definition: str
    digits: int = 1

    def format(self, value: float | None) -> str:
        """The number with its unit, or ``–`` when it was not measured."""
        return "–" if value is None else f"{value:,.{self.digits}f} {self.unit}".replace(",", " ")


def _latency(name: str, what: str) -> Metric:
    return Metric(name=name, unit="ms", direction=Direction.LOWER, definition=what)


def _bounded(name: str) -> tuple[Metric, Metric]:
    return (
        _latency(f"{name}_p99_ms", "99th percentile of the same; only where there are enough samples for its bound, 662 at least."),
        _latency(f"{name}_p99_bound_ms", "Upper bound of the true 99th percentile at a confidence of 99 %, by order statistics."),
    )


def _share(name: str, what: str) -> Metric:
    return Metric(name=name, unit="of requests", direction=Direction.HIGHER, digits=3, definition=what)


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            name="output_tok_s",
            unit="tok/s",
            direction=Direction.HIGHER,
            definition="Tokens received inside the steady window over its length; counted by the server, interpolated at both edges.",
        ),
        Metric(
            name="user_tok_s",
            unit="tok/s",
            direction=Direction.HIGHER,
            definition="Decode speed that one user sees: token-weighted 1/TPOT over the completed requests of the window.",
        ),
        Metric(
            name="decode_tok_s_p50",
            unit="tok/s",
            direction=Direction.HIGHER,
            definition="Decode speed of the median request: median over requests of 1/TPOT.",
        ),
        Metric(
            name="e2e_tok_s_p50",
            unit="tok/s",
            direction=Direction.HIGHER,
            definition="Median over requests of its tokens over its end-to-end time: decode speed with the wait for the first token in it.",
        ),
        _latency(
            "ttft_p50_ms",
            "Median over requests of the time from sending to the first chunk that bears a token. Reasoning counts; headers, comments, and "
            "chunks that hold a role or nothing do not.",
        ),
        _latency("ttft_p95_ms", "95th percentile of the same."),
        *_bounded("ttft"),
        _latency("ttfo_p50_ms", "Median over requests of the time from sending to the first chunk that bears more than reasoning."),
        _latency("tpot_p50_ms", "Median over requests of (last token time - first token time) / (tokens - tokens of the first chunk)."),
        _latency("tpot_p95_ms", "95th percentile of the same."),
        *_bounded("tpot"),
        _latency(
            "itl_p50_ms",
            "Time per token at the median token: gap between chunks / tokens that came at its end, weighted with those.",
        ),
        *_bounded("itl"),
        _latency(
            "icl_p50_ms", "Median gap between neighbouring chunks of an answer, one sample per gap; without chunks that were read together."
        ),
        *_bounded("icl"),
        Metric(
            name="tokens_per_chunk",
            unit="tok",
            direction=Direction.HIGHER,
            digits=2,
            definition="Mean number of tokens in the chunks after the first of each answer.",
        ),
        _latency("e2e_p50_ms", "Median over requests of the time from sending to the last chunk that bears a token."),
        _latency("e2e_p95_ms", "95th percentile of the same."),
        *_bounded("e2e"),
        _latency(
            "stream_end_p50_ms", "Median over requests of the time from sending to the end of the stream, usage and finish frames too."
        ),
        Metric(
            name="goodput",
            unit="req/s",
            direction=Direction.HIGHER,
            digits=2,
            definition="Requests per second that ended in the window and kept every limit of the workload; failed ones keep none.",
        ),
        _share("slo_share", "Share of the requests that ended in the window that kept every limit of the workload; failed ones keep none."),
        _share("slo_share_low", "Lower end of the 95 % interval of the same, by Wilson."),
        _share("slo_share_high", "Upper end of the 95 % interval of the same, by Wilson."),
        Metric(
            name="acceptance_length",
            unit="tok/step",
            direction=Direction.HIGHER,
            digits=2,
            definition="Tokens per verification step of the target over the window, from counters or per-request data, never a gauge.",
        ),
        Metric(
            name="acceptance_rate",
            unit="of drafted",
            direction=Direction.HIGHER,
            digits=3,
            definition="Drafted tokens that the target accepted over all that were drafted. It falls as more is drafted: compare lengths.",
        ),
        Metric(
            name="power_w",
            unit="W",
            direction=Direction.LOWER,
            digits=0,
            definition="Power that the engine's GPUs drew together, mean over the window, as their driver reports it.",
        ),
        Metric(
            name="joules_per_token",
            unit="J/tok",
            direction=Direction.LOWER,
            digits=3,
            definition="power_w over output_tok_s.",
        ),
    )
}
"""Every metric by name. A metric's definition is written here and nowhere else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request as it was seen; times in seconds on the clock of its cell, tokens as the server counted them."""

    index: int
    lane: int
    domain: str
    start_s: float
    """Just before the first byte was sent; in an open loop when it was due, so that its client's own waiting counts for nobody else."""
    sent_s: float | None = None
    """In an open loop, just before the first byte was sent; ``None`` until then, and in a closed loop."""
    held_s: float = 0.0
    """How long an arrival of an open loop waited for a place among the requests in flight."""
    chunks: tuple[tuple[float, int], ...] = ()
    """(time received, cumulative completion tokens) of every chunk that bears a token."""
    first_output_s: float | None = None
    """When the first chunk came that bears more than reasoning."""
    end_s: float | None = None
    """When the stream ended, usage and finish frames included."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    verify_steps: int | None = None
    """Verification steps of speculative decoding, where the server says so per request."""
    step_tokens: int | None = None
    """Tokens that those steps yielded, where the server counts them apart; else they are all of the answer."""
    drafted_tokens: int | None = None
    """Tokens that were drafted for those steps."""
    accepted_tokens: int | None = None
    """Drafted tokens that the target accepted."""
    error: str | None = None
    """``http-500``, ``in-band``, ``malformed``, ``stalled``, ``connection`` … ; ``None`` for a valid request."""
    detail: str | None = None

    @property
    def valid(self) -> bool:
        """Complete and free of errors."""
        return self.error is None and self.completion_tokens is not None and bool(self.chunks)

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return self.chunks[0][0] - self.start_s if self.chunks else None

    @property
    def ttfo_s(self) -> float | None:
        """Time to first output beyond reasoning."""
        return None if self.first_output_s is None else self.first_output_s - self.start_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first chunk; ``None`` for an answer of one chunk."""
        if len(self.chunks) < 2:
            return None
        (first_s, first_n), (last_s, last_n) = self.chunks[0], self.chunks[-1]
        return (last_s - first_s) / (last_n - first_n) if last_n > first_n else None

    @property
    def e2e_s(self) -> float | None:
        """Time to the last token."""
        return self.chunks[-1][0] - self.start_s if self.chunks else None

    @property
    def stream_end_s(self) -> float | None:
        """Time to the end of the stream."""
        return None if self.end_s is None else self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientReport:
    """How far the load generator itself can be trusted in one cell; over its steady window, the worst of its processes."""

    clock: Literal["kernel", "user"]
    """Whose timestamps the records carry."""
    reads: int
    lag_p50_ms: float | None
    """From the kernel's receive stamp to the read in user space; ``None`` without kernel stamps."""
    lag_p99_ms: float | None
    lag_max_ms: float | None
    coalesced: float
    """Share of the token-bearing chunks that were read together with a later one of their stream, and so carry the stamp of that."""
    cpu: float
    """CPU seconds per second of the busiest process; 1 is a whole core."""
    stalled: float = 0.0
    """Share of the window in which a process did not come to run although a timer of its was due."""
    steal: float | None
    """Share of the machine's CPU time that its hypervisor took; ``None`` where it is not told."""
    gc_pause_max_ms: float
    clock_step_ms: float
    """How far the wall clock, which stamps are taken from, moved against the monotonic one."""
    invalid: tuple[str, ...] = ()
    """A sentence for every limit that was broken. A cell with one is measured again, and never scored."""

    @property
    def valid(self) -> bool:
        """Whether the numbers are those of the server and not of the client."""
        return not self.invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport:
    """One GPU while a cell was measured."""

    index: int
    power_w: float | None = None
    """Mean."""
    sm_clock_mhz: float | None = None
    """Mean."""
    temperature_c: float | None = None
    """Highest."""
    utilization: float | None = None
    """Mean share of time with a kernel running, 0 to 1."""
    memory_mib: float | None = None
    """Highest."""
    throttled: tuple[str, ...] = ()
    """Reasons that held the clocks down at any sample, in nvidia-smi's words."""
    foreign_pids: tuple[int, ...] = ()
    """Processes on it that are not the server's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """What the server and its GPUs said about themselves over the same window. ``None``: not exported."""

    generation_tokens: float | None = None
    running_mean: float | None = None
    running_max: float | None = None
    queued_mean: float | None = None
    queued_max: float | None = None
    retractions: float | None = None
    """Requests thrown out of the batch for want of KV memory (SGLang) or preempted (vLLM)."""
    cached_tokens: float | None = None
    kv_usage_max: float | None = None
    """0 to 1."""
    acceptance_source: Literal["requests", "counters"] | None = None
    gpus: tuple[GpuReport, ...] = ()
    samples: int = 0
    warnings: tuple[str, ...] = ()
    """Throttling, other tenants, clock steps: a sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """What one cell yielded. ``metrics`` has names of the registry; a metric that could not be had is absent."""

    key: str
    """``Cell.key``."""
    context: int
    concurrency: int
    output_tokens: int
    metrics: Mapping[str, float]
    window_s: float
    """Length of the steady window in seconds."""
    requests: int
    """Valid requests that touched the window."""
    failed: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    batch_means: tuple[float, ...] = ()
    """Output tok/s of equal slices of the window, for an interval that respects autocorrelation."""
    steady: bool = True
    prompt_tokens_p50: float | None = None
    """What the server counted; the context that was really measured."""
    warnings: tuple[str, ...] = ()
    client: ClientReport | None = None
    server: ServerReport | None = None
    measurements: tuple[Mapping[str, float], ...] = ()
    """Metrics of each measurement where the cell was measured more than once on this launch; ``metrics`` is their mean."""

    def __getitem__(self, metric: str) -> float:
        return self.metrics[metric]

    def get(self, metric: str) -> float | None:
        """The metric's value, or ``None`` when it was not measured."""
        return self.metrics.get(metric)

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per verification step, ``None`` without speculation."""
        return self.metrics.get("acceptance_length")
