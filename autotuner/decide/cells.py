"""What one cell yielded: request records and counters → the metrics of the registry, by their definitions there.

Samples belong to the window by when they happened: a time to first token when that token came, a TPOT or an end-to-end time when the answer
ended. Neither short answers nor quick ones are preferred that way. Tokens count whichever request they belong to, abandoned ones included.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from autotuner.decide.acceptance import SpeculationCounters, acceptance
from autotuner.decide.gaps import gap_metrics, gaps_of
from autotuner.decide.goodput import goodput
from autotuner.decide.lengths import length_report
from autotuner.decide.statistics import percentile, percentile_bound, steady
from autotuner.decide.window import Window
from autotuner.model.measurement import CellResult, RequestRecord, ServerReport
from autotuner.model.workload import Cell, Slo

__all__ = ["Window", "coalesced_share", "derive", "percentile", "stalled", "tokens_until"]

TAILS = ("ttft", "tpot", "e2e")
"""Times whose high percentiles are of interest."""
FEWEST_FOR_P95 = 20
"""With fewer samples the 95th percentile is just the largest of them."""
CACHED_TOLERANCE = 0.5
FEWEST_SLICES = 3
STALL = 0.5
"""A slice with less than this share of the median rate is no part of a steady state."""


class ServerCounters(SpeculationCounters, Protocol):
    """Monotonic counters of a server, as engines export them."""

    @property
    def retractions(self) -> float | None:
        """Requests thrown out of the batch for want of KV memory."""
        ...


def derive(
    cell: Cell,
    records: Sequence[RequestRecord],
    window: Window,
    *,
    before: ServerCounters | None = None,
    after: ServerCounters | None = None,
    slos: Sequence[Slo] = (),
    warnings: Sequence[str] = (),
) -> CellResult:
    """The result of a cell. ``slos`` are the limits that goodput is about.

    ``warnings`` are those that the measurement itself has; what is found here is added.
    """
    touching = [record for record in records if record.start_s < window.end_s and _last_s(record, window) > window.begin_s]
    failed = [record for record in touching if record.error is not None]
    ended = [record for record in touching if record.valid and window.holds(record.chunks[-1][0])]
    in_flight = [record for record in touching if record.error is None and record.end_s is None and _tokens(record, window) > 0]
    notes = list(warnings)
    accepted = acceptance(ended, before, after)
    notes += accepted.notes
    metrics = {
        **_rates(touching, ended, window),
        **_latencies(cell, touching, ended, window, notes),
        **gap_metrics(gaps_of([record for record in touching if record.error is None], window)),
        **goodput(touching, window, slos),
        **({} if accepted.length is None else {"acceptance_length": accepted.length}),
        **({} if accepted.rate is None else {"acceptance_rate": accepted.rate}),
    }
    means = (
        tuple(sum(_tokens(record, part) for record in touching) / part.length_s for part in window.slices()) if window.length_s > 0 else ()
    )
    whole = [record for record in touching if record.valid]
    notes += [*_doubts(cell, touching, failed, window), *_retractions(before, after)]
    return CellResult(
        key=cell.key,
        context=cell.context,
        concurrency=cell.concurrency,
        output_tokens=cell.output_tokens,
        metrics=metrics,
        window_s=window.length_s,
        # Where every answer that came to an end failed, those in flight prove nothing.
        requests=0 if failed and not whole else len({id(record) for record in [*whole, *in_flight]}),
        failed=len(failed),
        errors=dict(Counter(record.error for record in failed if record.error)),
        batch_means=means,
        steady=steady(means) and not (cell.concurrency > 1 and stalled(means)),
        prompt_tokens_p50=_median([record.prompt_tokens for record in touching if record.prompt_tokens is not None]),
        warnings=tuple(notes),
        server=None if accepted.source is None else ServerReport(acceptance_source=accepted.source),
    )


def coalesced_share(records: Sequence[RequestRecord], window: Window) -> float:
    """Share of the chunks of the window that were read together with a later one of their stream, and so carry the time of that."""
    chunks = late = 0
    for record in records:
        times = [at for at, _ in record.chunks if window.holds(at)]
        chunks += len(times)
        late += sum(1 for earlier, later in pairwise(times) if earlier == later)
    return late / chunks if chunks else 0.0


def stalled(rates: Sequence[float]) -> bool:
    """Whether one of several equal slices of time has so little that the server stood still in it."""
    return len(rates) >= FEWEST_SLICES and min(rates) < STALL * statistics.median(rates)


def tokens_until(record: RequestRecord, at_s: float) -> float:
    """Tokens of a request that had come by ``at_s``, interpolated between chunks: a chunk's tokens were made since the one before it.

    The first chunk counts in full when it comes: what was before it was prefill.
    """
    chunks = record.chunks
    position = bisect_right(chunks, at_s, key=lambda chunk: chunk[0])
    if position == 0:
        return 0.0
    before_s, before_n = chunks[position - 1]
    if position == len(chunks):
        return float(before_n)
    after_s, after_n = chunks[position]
    return before_n + (after_n - before_n) * (at_s - before_s) / (after_s - before_s)


def _tokens(record: RequestRecord, window: Window) -> float:
    return tokens_until(record, window.end_s) - tokens_until(record, window.begin_s)


def _last_s(record: RequestRecord, window: Window) -> float:
    """When the request ended; one that was abandoned outlived the window."""
    return window.end_s if record.end_s is None else record.end_s


def _rates(touching: Sequence[RequestRecord], ended: Sequence[RequestRecord], window: Window) -> dict[str, float]:
    rates = {}
    tokens = sum(_tokens(record, window) for record in touching)
    if window.length_s > 0 and tokens > 0:
        rates["output_tok_s"] = tokens / window.length_s
    decoding = [record for record in ended if record.tpot_s is not None]
    seconds = sum(record.chunks[-1][0] - record.chunks[0][0] for record in decoding)
    if seconds > 0:
        rates["user_tok_s"] = sum(record.chunks[-1][1] - record.chunks[0][1] for record in decoding) / seconds
        rates["decode_tok_s_p50"] = statistics.median(1 / record.tpot_s for record in decoding if record.tpot_s)
    felt = [record.chunks[-1][1] / record.e2e_s for record in ended if record.e2e_s]
    if felt:
        rates["e2e_tok_s_p50"] = statistics.median(felt)
    return rates


def _latencies(
    cell: Cell, touching: Sequence[RequestRecord], ended: Sequence[RequestRecord], window: Window, notes: list[str]
) -> dict[str, float]:
    samples = {
        "ttft": [record.ttft_s for record in touching if record.chunks and window.holds(record.chunks[0][0])],
        "ttfo": [record.ttfo_s for record in touching if window.holds(record.first_output_s)],
        "tpot": [record.tpot_s for record in ended],
        # Answers that were cut below the cell's own limit belong to the warm-up; their length is not the cell's.
        "e2e": [record.e2e_s for record in ended if not _shortened(record, cell)],
        "stream_end": [record.stream_end_s for record in ended if not _shortened(record, cell)],
    }
    metrics = {}
    few = []
    for name, values in samples.items():
        known = sorted(value * 1000 for value in values if value is not None)
        if known:
            metrics[f"{name}_p50_ms"] = statistics.median(known)
        if name not in TAILS:
            continue
        if len(known) >= FEWEST_FOR_P95:
            metrics[f"{name}_p95_ms"] = percentile(known, 95)
            far = percentile_bound(known, 99)
            if far.upper is not None:
                metrics |= {f"{name}_p99_ms": far.value, f"{name}_p99_bound_ms": far.upper}
        else:
            few.append(f"{name} {len(known)}")
    if few:
        notes.append(f"no 95th percentile: it needs {FEWEST_FOR_P95} samples ({', '.join(few)})")
    return metrics


def _shortened(record: RequestRecord, cell: Cell) -> bool:
    """Whether an answer was cut for the sake of the warm-up, which an open loop does not do."""
    return record.sent_s is None and record.finish_reason == "length" and (record.completion_tokens or 0) < cell.output_tokens


def _change(before: ServerCounters | None, after: ServerCounters | None, name: str) -> float | None:
    first, last = getattr(before, name, None), getattr(after, name, None)
    return None if first is None or last is None else last - first


def _retractions(before: ServerCounters | None, after: ServerCounters | None) -> list[str]:
    count = _change(before, after, "retractions") or 0
    return [f"the server retracted {count:.0f} requests in the window: KV memory is short"] if count > 0 else []


def _doubts(cell: Cell, touching: Sequence[RequestRecord], failed: Sequence[RequestRecord], window: Window) -> list[str]:
    notes = []
    counted = [record for record in touching if record.prompt_tokens]
    missed = length_report(cell.context, touching).sentence
    if missed is not None:
        notes.append(missed)
    if sum(record.cached_tokens or 0 for record in counted) > CACHED_TOLERANCE * sum(record.prompt_tokens or 0 for record in counted):
        notes.append("more than half of the prompt tokens came from the prefix cache")
    if failed:
        notes.append(f"{len(failed)} of {len(touching)} requests failed")
    waiting = sum(1 for record in touching if record.start_s <= window.begin_s and record.end_s is None and not record.chunks)
    if waiting:
        notes.append(f"{waiting} requests waited through the whole window without a token")
    return notes


def _median(values: Sequence[int]) -> float | None:
    return float(statistics.median(values)) if values else None
