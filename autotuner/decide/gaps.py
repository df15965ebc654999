"""Gaps between the chunks of answers: one sample per gap for stalls, and per token for comparisons across ways of streaming."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby

from autotuner.decide.statistics import percentile_bound
from autotuner.decide.window import Window
from autotuner.model.measurement import RequestRecord


@dataclass(slots=True)
class Gaps:
    """Gaps that ended in a window, in milliseconds."""

    chunk_ms: list[float] = field(default_factory=list)
    """Between neighbouring chunks, without those into and within chunks that were read together: all these have the time of the last."""
    token_ms: list[tuple[float, int]] = field(default_factory=list)
    """(gap / tokens that came at its end, so many tokens); chunks that were read together are one."""
    chunks: int = 0
    tokens: int = 0
    """Of the chunks but the first of each answer, whose tokens no gap tells about."""


def gaps_of(records: Sequence[RequestRecord], window: Window) -> Gaps:
    """Over the chunks of these requests that came within the window. Pure."""
    gaps = Gaps()
    for record in records:
        before: float | None = None
        tokens, since = 0, 0.0
        for at_s, group in groupby(record.chunks, key=lambda chunk: chunk[0]):
            counts = [count for _, count in group]
            grown = max(0, counts[-1] - tokens)
            if before is not None and window.holds(at_s):
                gaps.chunks += len(counts)
                gaps.tokens += grown
                if len(counts) == 1:
                    gaps.chunk_ms.append((at_s - before) * 1000)
                if grown:
                    gaps.token_ms.append(((at_s - since) * 1000 / grown, grown))
            before = at_s
            if grown:
                tokens, since = counts[-1], at_s
    return gaps


def gap_metrics(gaps: Gaps) -> dict[str, float]:
    """``icl_*``, ``itl_*`` and ``tokens_per_chunk``; a 99th percentile only where there are enough gaps for its bound."""
    metrics: dict[str, float] = {}
    if gaps.chunk_ms:
        found = percentile_bound(gaps.chunk_ms, 99)
        metrics["icl_p50_ms"] = percentile_bound(gaps.chunk_ms, 50).value
        if found.upper is not None:
            metrics |= {"icl_p99_ms": found.value, "icl_p99_bound_ms": found.upper}
    if gaps.token_ms:
        ordered = sorted(gaps.token_ms)
        ends = list(accumulate(weight for _, weight in ordered))
        metrics["itl_p50_ms"] = _weighted(ordered, ends, 0.5)
        # Tokens of one chunk share a sample, so it is the gaps that count as tries, and their rank that becomes a share of the tokens.
        rank = percentile_bound(range(len(ordered)), 99).upper
        if rank is not None:
            metrics |= {
                "itl_p99_ms": _weighted(ordered, ends, 0.99),
                "itl_p99_bound_ms": _weighted(ordered, ends, (rank + 1) / len(ordered)),
            }
    if gaps.chunks:
        metrics["tokens_per_chunk"] = gaps.tokens / gaps.chunks
    return metrics


def _weighted(ordered: Sequence[tuple[float, int]], ends: Sequence[int], share: float) -> float:
    """The value below which so large a share of the weight lies."""
    return ordered[min(bisect_left(ends, share * ends[-1]), len(ordered) - 1)][0]
