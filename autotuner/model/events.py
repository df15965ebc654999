"""Events: what a run tells whoever watches it (progress bar, log lines, daemon)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autotuner.model.configuration import Configuration
from autotuner.model.measurement import CellResult
from autotuner.model.outcome import Outcome, Stage


class Phase(enum.StrEnum):
    """Why a configuration is launched."""

    BASELINE = "baseline"
    SEED = "seed"
    CONTROL = "control"
    """What a speed-up is measured against: speculation switched off, and for trees the same draft as a plain chain."""
    SEARCH = "search"
    PREDICTED = "predicted"
    """Best by the regression model, measured before it may be recommended."""
    CONFIRM = "confirm"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOpened:
    """The study was found or made."""

    study: str
    resumed: bool
    trials: int
    """Launches already there."""
    workloads: tuple[str, ...]
    simulated: bool
    best: Mapping[str, float] = field(default_factory=dict)
    """Workload → best ratio to the baseline so far."""
    infeasible: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """A configuration is about to be launched."""

    number: int
    phase: Phase
    config: Configuration
    done: int
    """Launches before this one."""
    planned: int | None
    """Launches in all, when the budget says so."""
    eta_s: float | None
    """Seconds until the end of everything, from the launches so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReached:
    """The launch passed a progress marker."""

    number: int
    stage: Stage
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CellMeasured:
    """One cell of the trial was measured."""

    number: int
    result: CellResult
    done: int
    cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded:
    """The trial has an outcome and the study knows it."""

    number: int
    phase: Phase
    config: Configuration
    outcome: Outcome
    elapsed_s: float
    values: Mapping[str, float] = field(default_factory=dict)
    """Workload → value, when measured."""
    versus_baseline: Mapping[str, float] = field(default_factory=dict)
    """Workload → ratio to the baseline, above 1 is better."""
    best: Mapping[str, float] = field(default_factory=dict)
    """Workload → best ratio to the baseline so far."""
    infeasible: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that a person should read."""

    level: str
    """``info`` or ``warning``."""
    message: str


Event = StudyOpened | TrialStarted | StageReached | CellMeasured | TrialEnded | Notice
Listener = Callable[[Event], None]
