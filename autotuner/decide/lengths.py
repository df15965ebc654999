"""Whether prompts were as long as they were meant to be, request by request, by the server's own count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotuner.model.measurement import RequestRecord
from autotuner.model.workload import OWN_PROMPTS

TOLERANCE = 0.02
"""Of the context."""
FEWEST_TOKENS = 2
"""Shorter prompts may miss by so many tokens all the same: words cannot be cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthReport:
    """Prompt lengths of a cell in tokens."""

    target: int
    counted: int
    """Requests whose prompt the server counted."""
    missed: int
    """Those whose length is further from the target than is allowed."""
    shortest: int | None
    longest: int | None

    @property
    def sentence(self) -> str | None:
        """A warning, or ``None`` when every prompt was as long as it should be."""
        if not self.missed:
            return None
        seen = f"{self.shortest} to {self.longest}" if self.shortest != self.longest else f"{self.shortest}"
        return f"{self.missed} of {self.counted} prompts have not the {self.target} tokens of their context, but {seen}"


def length_report(target: int, records: Sequence[RequestRecord]) -> LengthReport:
    """How the prompts of a cell came out; the limit is ``TOLERANCE``, and ``FEWEST_TOKENS`` at least.

    Prompts of the user's own have the length that they have.
    """
    counts = [record.prompt_tokens for record in records if record.prompt_tokens and record.domain != OWN_PROMPTS]
    limit = max(FEWEST_TOKENS, TOLERANCE * target)
    return LengthReport(
        target=target,
        counted=len(counts),
        missed=sum(abs(count - target) > limit for count in counts),
        shortest=min(counts, default=None),
        longest=max(counts, default=None),
    )
