"""TrialRecord: one launch of a study, as it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from autotuner.model.configuration import Configuration
from autotuner.model.document import Scalar
from autotuner.model.events import Phase
from autotuner.model.measurement import CellResult
from autotuner.model.outcome import Failure, HostBroken, Infeasible, LaunchFacts, Measured, Outcome, Transient
from autotuner.model.quality import UNCHECKED, QualityReport

Ending = Literal["measured", "infeasible", "transient", "host-broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One launch and what came of it. Everything that a search or a report needs is derived from these."""

    number: int
    """Launch number within the study, from 0; also the folder of its request records."""
    phase: Phase
    config: Configuration
    outcome: Ending
    started: str
    """ISO 8601, UTC."""
    elapsed_s: float
    cells: tuple[CellResult, ...] = ()
    failure: Failure | None = None
    effective: Mapping[str, Scalar] = field(default_factory=dict)
    launch: LaunchFacts = field(default_factory=LaunchFacts)
    censored: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Cell → why nothing is known about it although the launch was measured: the load generator was not good enough."""
    quality: str = "not_checked"
    """Status of ``quality_report``; all that first versions kept."""
    quality_report: QualityReport | None = None

    @property
    def measured(self) -> bool:
        """Whether the trial has cells that may be scored."""
        return self.outcome == "measured"

    @classmethod
    def of(cls, outcome: Outcome, *, number: int, phase: Phase, config: Configuration, started: str, elapsed_s: float) -> TrialRecord:
        """The record of an outcome. ``Interrupted`` trials leave none: they are asked again."""
        kind: Ending
        cells: tuple[CellResult, ...]
        quality = UNCHECKED
        match outcome:
            case Measured():
                return cls(
                    number=number,
                    phase=phase,
                    config=config,
                    outcome="measured",
                    started=started,
                    elapsed_s=elapsed_s,
                    cells=outcome.cells,
                    effective=outcome.effective,
                    launch=outcome.launch,
                    censored=outcome.censored,
                    left_out=outcome.left_out,
                    quality=outcome.quality.status,
                    quality_report=outcome.quality,
                )
            case Infeasible():
                kind, cells, launch, quality = "infeasible", outcome.cells, outcome.launch, outcome.quality
            case Transient():
                kind, cells, launch = "transient", (), LaunchFacts()
            case HostBroken():
                kind, cells, launch = "host-broken", (), LaunchFacts()
            case _:
                msg = "an interrupted trial leaves no record"
                raise ValueError(msg)
        return cls(
            number=number,
            phase=phase,
            config=config,
            outcome=kind,
            started=started,
            elapsed_s=elapsed_s,
            cells=cells,
            failure=outcome.failure,
            launch=launch,
            quality=quality.status,
            quality_report=quality if quality.parts or quality.reasons else None,
        )
