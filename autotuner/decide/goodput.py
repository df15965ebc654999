"""Goodput: the requests that kept every limit of their workload. A request that failed has kept none."""

from __future__ import annotations

from collections.abc import Sequence

from autotuner.decide.statistics import wilson
from autotuner.decide.window import Window
from autotuner.model.measurement import METRICS, Direction, RequestRecord
from autotuner.model.workload import Slo


def goodput(records: Sequence[RequestRecord], window: Window, slos: Sequence[Slo]) -> dict[str, float]:
    """``goodput``, and ``slo_share`` with its Wilson interval of 95 %, over the requests that ended in the window, well or not.

    Limits on rates of all requests together say nothing about one of them and are left out; nothing where no limit is left. Pure.
    """
    limits = [slo for slo in slos if _value_name(slo) is not None]
    ended = [record for record in records if (record.error is not None or record.valid) and window.holds(record.end_s)]
    if not limits or not ended or window.length_s <= 0:
        return {}
    good = sum(all(_keeps(record, slo) for slo in limits) for record in ended)
    interval = wilson(good, len(ended))
    return {
        "goodput": good / window.length_s,
        "slo_share": good / len(ended),
        "slo_share_low": interval.low,
        "slo_share_high": interval.high,
    }


def _keeps(record: RequestRecord, slo: Slo) -> bool:
    if not record.valid:
        return False
    value = _value(record, slo)
    if value is None:
        return True  # an answer of one chunk has no time per further token
    return value <= slo.limit if METRICS[slo.metric].direction is Direction.LOWER else value >= slo.limit


def _value_name(slo: Slo) -> str | None:
    """The number of one request that a limit on a metric over requests is about."""
    name = slo.metric.partition("_p")[0]
    return {"ttft": "ttft_s", "tpot": "tpot_s", "e2e": "e2e_s", "user_tok_s": "tpot_s"}.get(name)


def _value(record: RequestRecord, slo: Slo) -> float | None:
    seconds: float | None = getattr(record, _value_name(slo) or "")
    if seconds is None:
        return None
    if slo.metric == "user_tok_s":
        return 1 / seconds if seconds > 0 else None
    return seconds * 1000
