"""What every rule here takes and gives: finite numbers, and an interval that says how sure it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """Two ends, in the unit of the values, that hold the true value in a share ``level`` of all measurements like this one."""

    low: float
    high: float
    level: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def half_width(self) -> float:
        """Half the distance between its ends."""
        return (self.high - self.low) / 2


def finite(values: Sequence[float], *, least: int = 1) -> tuple[float, ...]:
    """The values as they are. Raises ``ValueError`` for fewer than ``least`` of them, and for one that is not a finite number."""
    found = tuple(float(value) for value in values)
    if len(found) < least:
        msg = f"{least} or more values are needed, not {len(found)}"
        raise ValueError(msg)
    bad = [number for number, value in enumerate(found) if not math.isfinite(value)]
    if bad:
        msg = f"value {bad[0]} of {len(found)} is {found[bad[0]]}, which is no finite number"
        raise ValueError(msg)
    return found


def share(name: str, value: float) -> float:
    """A probability strictly between 0 and 1. Raises ``ValueError`` for anything else."""
    if not 0 < value < 1:
        msg = f"{name} must lie between 0 and 1, not be {value}"
        raise ValueError(msg)
    return value
