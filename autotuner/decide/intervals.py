"""How sure the numbers of one cell are: an interval for every metric that one can be had for.

Rates come from means of equal slices of the window, percentiles from order statistics, which assume nothing about their distribution, and
ratios of sums (decode speed, acceptance) from their linearisation. What has too few samples gets none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from autotuner.decide.cells import Window
from autotuner.decide.statistics import Interval, batch_means_interval, percentile_interval, ratio_interval
from autotuner.model.measurement import CellResult, RequestRecord

FEWEST_REQUESTS = 6
"""Fewer than this give the median no interval of 95 %, and a ratio one that is too narrow."""


def intervals(result: CellResult, records: Sequence[RequestRecord], window: Window, *, level: float = 0.95) -> Mapping[str, Interval]:
    """Metric → interval, of those that are in the result. ``records`` are all that the window holds parts of. Pure."""
    ended = [record for record in records if record.valid and window.holds(record.chunks[-1][0])]
    times = {
        "ttft": [record.ttft_s for record in records if record.chunks and window.holds(record.chunks[0][0])],
        "tpot": [record.tpot_s for record in ended],
        "e2e": [record.e2e_s for record in ended if not _shortened(record, result.output_tokens)],
    }
    one_by_one = result.concurrency == 1 and not any(record.sent_s is not None for record in records)
    found: dict[str, Interval | None] = {"output_tok_s": _by_answers(ended, level) if one_by_one else _rate(result.batch_means, level)}
    for name, samples in times.items():
        known = [value * 1000 for value in samples if value is not None]
        for percent in (50, 90, 95, 99):
            found[f"{name}_p{percent}_ms"] = percentile_interval(known, percent, level) if known else None
    decoded = [
        (record.chunks[-1][1] - record.chunks[0][1], record.chunks[-1][0] - record.chunks[0][0]) for record in ended if record.tpot_s
    ]
    found["user_tok_s"] = _ratio(decoded, level)
    stepped = [(float(record.completion_tokens or 0), float(record.verify_steps)) for record in ended if record.verify_steps]
    found["acceptance_length"] = _ratio(stepped, level)
    return {
        name: interval
        for name, interval in found.items()
        # An interval that does not hold the value was made from other samples than it: better none.
        if interval is not None and name in result.metrics and interval.low <= result.metrics[name] <= interval.high
    }


def _ratio(pairs: Sequence[tuple[float, float]], level: float) -> Interval | None:
    return ratio_interval(pairs, level) if len(pairs) >= FEWEST_REQUESTS else None


def _by_answers(ended: Sequence[RequestRecord], level: float) -> Interval | None:
    """Of one lane: every answer is a sample, from the end of the one before it to its own."""
    ordered = sorted(ended, key=lambda record: record.chunks[-1][0])
    pairs = [
        (float(later.completion_tokens or 0), (later.end_s or later.chunks[-1][0]) - (earlier.end_s or earlier.chunks[-1][0]))
        for earlier, later in pairwise(ordered)
    ]
    return _ratio(pairs, level)


def _rate(means: Sequence[float], level: float) -> Interval | None:
    try:
        return batch_means_interval(means, level)
    except ValueError:  # too few slices
        return None


def _shortened(record: RequestRecord, output_tokens: int) -> bool:
    return record.sent_s is None and record.finish_reason == "length" and (record.completion_tokens or 0) < output_tokens
