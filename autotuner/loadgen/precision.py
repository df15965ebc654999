"""Whether the rate of a running window is known well enough to end it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from autotuner.decide.statistics import enough

SLICE_S = 0.75
Point = tuple[int, int, int]
"""(time in ns, reads, answers) since the lanes began."""


class Precision:
    """Follows one window. ``share`` is how far the ends of the 95 % interval of the rate of chunks may lie from it, as a share of it.

    Chunks, since tokens are counted only when the window is over; the interval of the result is that of tokens. With one lane, every
    answer is one sample; with more, equal slices of time are, whose likeness to their neighbours is accounted for.
    """

    def __init__(self, share: float, *, one_lane: bool) -> None:
        self._percent = share * 100
        self._one_lane = one_lane
        self._seen = 0
        self._reached = False

    def reached(self, track: Sequence[Point]) -> bool:
        """Whether it is, by the window's points so far; asked again only when there is another sample."""
        edges = _answers(track) if self._one_lane else _slices(track)
        if len(edges) != self._seen:
            self._seen = len(edges)
            rates = [(later[1] - earlier[1]) / (later[0] - earlier[0]) * 1e9 for earlier, later in pairwise(edges)]
            positive = [rate for rate in rates if rate > 0]
            self._reached = enough(positive, self._percent) if self._one_lane else enough(rates, self._percent, batches=True)
        return self._reached


def _answers(track: Sequence[Point]) -> list[Point]:
    edges = list(track[:1])
    for point in track:
        if point[2] > edges[-1][2] and point[0] > edges[-1][0]:
            edges.append(point)
    return edges


def _slices(track: Sequence[Point]) -> list[Point]:
    edges = list(track[:1])
    for point in track:
        if point[0] - edges[-1][0] >= SLICE_S * 1e9:
            edges.append(point)
    return edges
