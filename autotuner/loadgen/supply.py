"""How many requests ahead of time the lanes of a host are given, so that none waits for the network. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

SHALLOWEST = 6
DEEPEST = 64
QUEUE_BYTES = 1 << 25
"""Requests of all lanes of a worker that may wait on the host."""
RESERVE_S = 0.5
"""For how long a queue must last beside the round trip: reports are 0.05 s apart, and this process has other things to do."""


def queue_depth(*, answers_per_s: float, rtt_s: float, body_bytes: int, lanes: int) -> int:
    """Requests that should wait for one lane: as many as it answers until the next ones are there, as far as memory allows."""
    wanted = max(SHALLOWEST, 2 + math.ceil(answers_per_s * (RESERVE_S + 2 * rtt_s)))
    room = max(2, QUEUE_BYTES // max(1, lanes * body_bytes))
    return min(wanted, room, DEEPEST)


class Supply:
    """Keeps account of the requests of one worker's lanes. ``body_bytes`` is how long one is, as far as known; it may be corrected."""

    def __init__(self, lanes: Sequence[int], *, rtt_s: float, body_bytes: int) -> None:
        self._lanes = lanes
        self._rtt_s = rtt_s
        self.body_bytes = body_bytes
        self._sent = [0] * len(lanes)
        self._first_s: list[float | None] = [None] * len(lanes)

    def due(self, taken: Sequence[int], now_s: float) -> Iterator[tuple[int, int]]:
        """(lane, turn) of the requests to send now, the shortest queue first; each counts as sent when it is given.

        ``taken`` says how many each lane has taken so far.
        """
        depths = [self._depth(position, count, now_s) for position, count in enumerate(taken)]
        for level in range(max(depths, default=0)):
            for position, lane in enumerate(self._lanes):
                if self._sent[position] - taken[position] == level < depths[position]:
                    self._sent[position] += 1
                    yield lane, self._sent[position] - 1

    def _depth(self, position: int, taken: int, now_s: float) -> int:
        first_s = self._first_s[position]
        if first_s is None and taken:
            first_s = self._first_s[position] = now_s
        per_s = 0.0 if first_s is None else taken / max(0.1, now_s - first_s)
        return queue_depth(answers_per_s=per_s, rtt_s=self._rtt_s, body_bytes=self.body_bytes, lanes=len(self._lanes))
