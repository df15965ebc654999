"""Counters from SGLang's Prometheus page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autotuner.engines.base import Counters

_SERIES = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'(?P<key>[A-Za-z_]\w*)="(?P<value>(?:[^"\\]|\\.)*)"')
_RANKS = ("pp_rank", "tp_rank", "moe_ep_rank", "moe_dp_rank")


@dataclass(frozen=True, slots=True)
class Series:
    """One line of the page."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_prometheus(text: str) -> Iterator[Series]:
    """Every series of a page in the text format; comments, ``NaN`` and lines of any other kind are left out."""
    for line in text.splitlines():
        match = None if line.startswith("#") else _SERIES.match(line)
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if value == value:  # noqa: PLR0124 - NaN is the only number that differs from itself
            labels = {found["key"]: found["value"] for found in _LABEL.finditer(match["labels"] or "")}
            yield Series(match["name"], labels, value)


def total(text: str, name: str) -> float | None:
    """Sum of a counter over its labels; ``None`` when the page does not have it.

    Ranks of one replica count the same work, so of the series that differ only in their rank the lowest rank's is taken. Replicas
    (``dp_rank``) and every other label count work of their own.
    """
    first: dict[tuple[tuple[str, str], ...], tuple[tuple[int, ...], float]] = {}
    for series in parse_prometheus(text):
        if series.name != name:
            continue
        rank = tuple(int(series.labels.get(key) or 0) for key in _RANKS)
        key = tuple(sorted((label, value) for label, value in series.labels.items() if label not in _RANKS and label != "pid"))
        if key not in first or rank < first[key][0]:
            first[key] = (rank, series.value)
    return sum(value for _, value in first.values()) if first else None


def counters(text: str) -> Counters:
    """The counters that measuring needs. Gauges are not used: they hold the last log interval only."""
    return Counters(
        generation_tokens=total(text, "sglang:generation_tokens_total"),
        verify_steps=total(text, "sglang:spec_verify_calls_total"),
        retractions=total(text, "sglang:num_retracted_requests_total"),
        cached_tokens=total(text, "sglang:cached_tokens_total"),
    )
