"""The part of a cell's time that its numbers are about."""

from __future__ import annotations

from dataclasses import dataclass

SLICE_S = 0.75
"""Target length of the slices for batch means, in seconds."""


@dataclass(frozen=True, slots=True)
class Window:
    """The steady window, on the clock of its cell, in seconds."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Its length."""
        return self.end_s - self.begin_s

    def holds(self, at_s: float | None) -> bool:
        """Whether a moment lies in it; the end belongs to it, the begin does not."""
        return at_s is not None and self.begin_s < at_s <= self.end_s

    def slices(self) -> tuple[Window, ...]:
        """Equal parts of half a second to a second; one when it is shorter."""
        count = max(1, round(self.length_s / SLICE_S))
        width = self.length_s / count
        return tuple(Window(self.begin_s + width * number, self.begin_s + width * (number + 1)) for number in range(count))
