"""Prometheus' text format, as serving engines write it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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


def values(text: str, name: str, **labels: str) -> list[float]:
    """Values of a series, one for each set of labels; with ``labels``, only those that have them.

    Ranks of one replica tell the same, so of the series that differ only in their rank the lowest rank's is taken. Replicas
    (``dp_rank``, ``engine``) and every other label speak of work of their own.
    """
    first: dict[tuple[tuple[str, str], ...], tuple[tuple[int, ...], float]] = {}
    for series in parse_prometheus(text):
        if series.name != name or any(series.labels.get(key) != value for key, value in labels.items()):
            continue
        rank = tuple(_rank(series.labels.get(key)) for key in _RANKS)
        key = tuple(sorted((label, value) for label, value in series.labels.items() if label not in _RANKS and label != "pid"))
        if key not in first or rank < first[key][0]:
            first[key] = (rank, series.value)
    return [value for _, value in first.values()]


def total(text: str, name: str, **labels: str) -> float | None:
    """Sum of ``values``; ``None`` when the page has none."""
    found = values(text, name, **labels)
    return sum(found) if found else None


def highest(text: str, name: str) -> float | None:
    """Highest of ``values``; ``None`` when the page has none."""
    return max(values(text, name), default=None)


def _rank(label: str | None) -> int:
    return int(label) if label and label.isdecimal() else 0
