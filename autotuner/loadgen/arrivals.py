"""When the requests of an open loop are due: drawn ahead from the seed, whatever the server does. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from autotuner.errors import UsageError

MOST_PER_S = 10_000.0
"""Beyond this the client would be measured, not the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Arrival times of an open loop, in seconds from the begin of its cell.

    ``poisson`` and ``fixed`` go on for ever at ``rate`` requests per second; ``replay`` has one request for each of ``offsets_s``.
    Raises ``UsageError`` for a rate that cannot be driven, and for offsets that are empty, negative or out of order.
    """

    kind: Literal["poisson", "fixed", "replay"]
    rate: float | None = None
    offsets_s: tuple[float, ...] = ()
    max_in_flight: int = 1024
    """An arrival that finds so many requests unanswered waits for one of them to end, and that is reported."""
    late_p99_ms: float = 10.0
    """A cell whose requests were sent later than this after they were due, at the 99th percentile, measured the client."""

    def __post_init__(self) -> None:
        if self.kind != "replay":
            if self.rate is None or not 0 < self.rate <= MOST_PER_S:
                raise UsageError(f"the arrival rate is {self.rate}", hint=f"give requests per second, above 0 and up to {MOST_PER_S:g}")
        elif not self.offsets_s or self.offsets_s[0] < 0 or any(a > b for a, b in zip(self.offsets_s, self.offsets_s[1:], strict=False)):
            raise UsageError("arrival times of a replay must be there, from 0 on and in order")

    @property
    def count(self) -> int | None:
        """How many requests there are; ``None`` without end."""
        return len(self.offsets_s) if self.kind == "replay" else None

    @property
    def last_s(self) -> float:
        """When the last one is due."""
        return self.offsets_s[-1] if self.kind == "replay" else math.inf

    @property
    def mean_rate(self) -> float:
        """Requests per second that are due; of a replay, over its length."""
        if self.rate is not None:
            return self.rate
        return len(self.offsets_s) / max(self.last_s, 1e-9)

    def times(self, seed: int) -> Iterator[float]:
        """Every arrival in order; the same for the same seed."""
        if self.kind == "replay":
            yield from self.offsets_s
            return
        rate = self.rate or 1.0
        rng = random.Random(f"arrivals/{seed}")  # noqa: S311 - a repeatable schedule
        at_s, number = 0.0, 0
        while True:
            # Counted, not added up, where the distance is fixed: thousands of sums would drift.
            at_s = number / rate if self.kind == "fixed" else at_s + rng.expovariate(rate)
            number += 1
            yield at_s

    def part(self, seed: int, first: int, step: int) -> Iterator[tuple[int, float]]:
        """(number, time) of every ``step``-th arrival from number ``first`` on: the share of one of ``step`` workers."""
        return islice(enumerate(self.times(seed)), first, None, step)
