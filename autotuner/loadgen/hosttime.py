"""The clock of a host as it is seen from here: pings, and what the quickest of them says."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

FRESH_S = 10.0
"""How long a sample is good for: clocks of two machines drift apart by up to half a millisecond a second while one is being set."""
TOLERANCE_NS = 5_000_000
KEPT = 256


@dataclass(frozen=True, slots=True)
class ClockSample:
    """One ping. The true offset is within half of ``rtt_ns`` of ``offset_ns``."""

    at_ns: int
    """CLOCK_MONOTONIC of this machine when the answer came."""
    offset_ns: int
    """The host's CLOCK_MONOTONIC minus this machine's."""
    rtt_ns: int

    @classmethod
    def of(cls, asked_ns: int, host_ns: int, answered_ns: int) -> ClockSample:
        """The sample of a ping that the host answered at its ``host_ns``."""
        return cls(answered_ns, host_ns - (asked_ns + answered_ns) // 2, answered_ns - asked_ns)


class HostClock:
    """What all workers of one host know of its clock."""

    def __init__(self) -> None:
        self._samples: deque[ClockSample] = deque(maxlen=KEPT)

    def add(self, sample: ClockSample) -> None:
        """Take note of a ping."""
        self._samples.append(sample)

    def known(self, now_ns: int) -> bool:
        """Whether there is a fresh sample."""
        return any(_within(self._samples, now_ns - round(FRESH_S * 1e9)))

    def best(self, now_ns: int) -> ClockSample:
        """The quickest fresh ping, or the last one there was. Raises ``IndexError`` when there was none at all."""
        fresh = list(_within(self._samples, now_ns - round(FRESH_S * 1e9)))
        return quickest(fresh or [self._samples[-1]])

    def since(self, at_ns: int) -> list[ClockSample]:
        """The pings that were answered at ``at_ns`` or later."""
        return list(_within(self._samples, at_ns))


def quickest(samples: Iterable[ClockSample]) -> ClockSample:
    """The one that had the least to wait for on its way, and so errs least."""
    return min(samples, key=lambda sample: sample.rtt_ns)


def moved(before: ClockSample, after: ClockSample) -> int | None:
    """By how many ns the clocks moved against each other, when that is more than the way can explain."""
    by = after.offset_ns - before.offset_ns
    return by if abs(by) > max(TOLERANCE_NS, before.rtt_ns, after.rtt_ns) else None


def _within(samples: Iterable[ClockSample], from_ns: int) -> Iterable[ClockSample]:
    return (sample for sample in samples if sample.at_ns >= from_ns)
