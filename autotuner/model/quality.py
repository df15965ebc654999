"""QualityReport: whether the answers of one launch are as good as those of the baseline without speculation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

QualityStatus = Literal["passed", "failed", "not_checked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPart:
    """One way of looking at the answers."""

    name: str
    """``canary``, ``greedy`` or ``coding``."""
    status: QualityStatus
    score: float | None = None
    """From 0 to 1; ``None`` when there is none."""
    floor: float | None = None
    """The score below which a configuration is not to be used; ``None`` when there is nothing to compare with."""
    reason: str = ""
    """One sentence for a person: what was found, or why nothing could be."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Answers by what became of them, e.g. ``solved``, ``wrong``, ``truncated``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityReport:
    """What the gate found at one launch."""

    status: QualityStatus
    """``failed`` when a part failed, ``passed`` when all passed, else ``not_checked``."""
    parts: tuple[QualityPart, ...] = ()
    reasons: tuple[str, ...] = ()
    """Of the parts that did not pass; for a check that was not made, why."""
    sandbox: str = ""
    """What the code ran in; empty when none ran."""
    reference: int | None = None
    """The launch whose answers these were compared with; ``None`` when there was none yet."""

    @classmethod
    def of(cls, parts: tuple[QualityPart, ...], *, sandbox: str = "", reference: int | None = None) -> QualityReport:
        """The report that these parts come to."""
        states = {part.status for part in parts}
        status: QualityStatus = "failed" if "failed" in states else "passed" if states == {"passed"} else "not_checked"
        reasons = tuple(f"{part.name}: {part.reason}" for part in parts if part.status != "passed")
        return cls(status=status, parts=parts, reasons=reasons, sandbox=sandbox, reference=reference)

    @classmethod
    def not_checked(cls, reason: str) -> QualityReport:
        """The report of a check that was not made."""
        return cls(status="not_checked", reasons=(reason,))


UNCHECKED = QualityReport(status="not_checked")
"""Of a launch that ended before its answers could be looked at."""
