"""What must hold in a Workload beyond the kinds of its values."""

from __future__ import annotations

from autotuner.documents.source import Source
from autotuner.model.measurement import METRICS, Direction
from autotuner.model.workload import DEFAULT_OUTPUT_TOKENS

BUILTIN = ("latency", "long-context", "throughput")
_SHORTEST_MS = 1.0
"""No latency of a served model is shorter; a smaller limit was meant in seconds."""


def check_workload(source: Source) -> None:
    """Report cells and limits that are there twice, limits that contradict each other, and limits in the wrong unit."""
    name = source.get("metadata", "name")
    if name in BUILTIN:
        source.warning(("metadata", "name"), f"'{name}' is also a built-in workload, which this one replaces", "choose another name")
    _cells(source)
    _slos(source)
    prompts = source.items("prompts")
    if source.get("prompts") == []:
        source.error(("prompts",), "'prompts' needs at least 1 entry, but has 0", "leave prompts: out for the usual mix")
    for index, domain in enumerate(prompts):
        if domain in prompts[:index]:
            source.error(("prompts", index), f"'{domain}' is there twice", "remove one of them")


def _cells(source: Source) -> None:
    first: dict[tuple[object, ...], int] = {}
    for index, cell in source.mappings("cells"):
        key = (cell.get("context"), cell.get("concurrency"), cell.get("output_tokens", DEFAULT_OUTPUT_TOKENS))
        if not all(isinstance(part, int) for part in key):
            continue
        if key in first:
            line = source.mark(("cells", first[key])).line
            source.error(("cells", index), f"this cell is there already in line {line}", "remove it, or give one of them more weight")
        first.setdefault(key, index)


def _slos(source: Source) -> None:
    limits: dict[str, tuple[int, float]] = {}
    for index, slo in source.mappings("slos"):
        metric, limit = slo.get("metric"), slo.get("limit")
        if not isinstance(metric, str) or metric not in METRICS or isinstance(limit, bool) or not isinstance(limit, int | float):
            continue
        if metric in limits:
            line = source.mark(("slos", limits[metric][0])).line
            source.error(("slos", index), f"'{metric}' has a limit already in line {line}", "remove one of them")
            continue
        limits[metric] = (index, limit)
        if METRICS[metric].direction is Direction.LOWER and 0 < limit < _SHORTEST_MS:
            source.warning(
                ("slos", index, "limit"),
                f"{metric} of at most {limit:g} ms cannot be met by any server",
                f"limits of latencies are in milliseconds: did you mean {limit * 1000:g}?",
            )
    _ordered_percentiles(source, limits)


def _ordered_percentiles(source: Source, limits: dict[str, tuple[int, float]]) -> None:
    for metric, (index, limit) in limits.items():
        upper = metric.replace("_p50_", "_p95_")
        if upper != metric and upper in limits and limits[upper][1] < limit:
            source.warning(
                ("slos", index, "limit"),
                f"{metric} of at most {limit:g} ms says nothing: {upper} is limited to {limits[upper][1]:g} ms already",
                "exchange the two, or remove this one",
            )
