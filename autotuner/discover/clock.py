"""The host's clock against the controller's, as exactly as the way between them allows."""

from __future__ import annotations

import re
from dataclasses import dataclass

COMMAND = ("date", "+%s.%N")


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """How far the host's clock is ahead of the controller's, in seconds; the truth lies within ``uncertainty_s`` of it."""

    ahead_s: float
    uncertainty_s: float

    def exceeds(self, limit_s: float) -> bool:
        """Whether it is more than ``limit_s`` for certain, in either direction."""
        return abs(self.ahead_s) - self.uncertainty_s > limit_s


def parse_date(text: str) -> tuple[float, float] | None:
    """(seconds since 1970, resolution in seconds) from the output of ``date``; ``None`` when it is not that.

    Small versions of ``date`` know no nanoseconds and print something else for them.
    """
    found = re.match(r"(\d{1,12})(?:\.(\d{9})$)?", text.strip())
    if found is None:
        return None
    return (float(f"{found[1]}.{found[2]}"), 0.0) if found[2] else (float(found[1]) + 0.5, 0.5)


def skew(*, before: float, text: str, after: float) -> Skew | None:
    """The skew from the controller's clock around the call (seconds since 1970) and what the host said; ``None`` when it said nothing."""
    said = parse_date(text)
    if said is None:
        return None
    seconds, resolution = said
    return Skew(ahead_s=seconds - (before + after) / 2, uncertainty_s=abs(after - before) / 2 + resolution)
