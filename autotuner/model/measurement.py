"""Measurement: raw request records, what is derived from them, and the registry of metrics."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


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
        _latency("ttft_p50_ms", "Median over requests of the time from sending to the first chunk that bears a token."),
        _latency("ttft_p95_ms", "95th percentile of the same."),
        _latency("tpot_p50_ms", "Median over requests of (last token time - first token time) / (tokens - tokens of the first chunk)."),
        _latency("tpot_p95_ms", "95th percentile of the same."),
        _latency("e2e_p50_ms", "Median over requests of the time from sending to the last chunk that bears a token."),
        _latency("e2e_p95_ms", "95th percentile of the same."),
        Metric(
            name="acceptance_length",
            unit="tok/step",
            direction=Direction.HIGHER,
            digits=2,
            definition="Tokens per verification step of the target over the window, from counters or per-request data, never a gauge.",
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
    """Just before the first byte was sent."""
    chunks: tuple[tuple[float, int], ...] = ()
    """(time received, cumulative completion tokens) of every chunk that bears a token."""
    end_s: float | None = None
    """When the stream ended, usage and finish frames included."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    verify_steps: int | None = None
    """Verification steps of speculative decoding, where the server says so per request."""
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

    def __getitem__(self, metric: str) -> float:
        return self.metrics[metric]

    def get(self, metric: str) -> float | None:
        """The metric's value, or ``None`` when it was not measured."""
        return self.metrics.get(metric)

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per verification step, ``None`` without speculation."""
        return self.metrics.get("acceptance_length")
