"""Recommendation: one configuration for one workload, with the evidence that a reviewer needs."""

from __future__ import annotations

import enum
from typing import Literal

from pydantic import Field

from autotuner.model.document import Document, Name, Scalar, Strict


class Verdict(enum.StrEnum):
    """What the confirmation showed against the baseline."""

    IMPROVED = "improved"
    NO_SIGNIFICANT_CHANGE = "no significant change"
    INCONCLUSIVE = "inconclusive"


class Subject(Strict):
    """What the recommendation is for."""

    name: Name
    description: str = ""
    host: Name
    workload: Name
    model: str
    engine: str
    engine_version: str


class Spec(Strict):
    """The only part that is applied: no dates, no noise."""

    parameters: dict[str, Scalar]
    argv: tuple[str, ...]
    env: dict[str, str] = Field(default_factory=dict)
    unit: str = Field(default="", description="The systemd unit that serves this configuration.")


class ObjectiveEvidence(Strict):
    """Baseline against measured, re-measured side by side."""

    metric: str
    unit: str
    direction: Literal["higher", "lower"]
    baseline: float | None
    measured: float
    change_percent: float | None
    ci95_percent: tuple[float, float] | None = Field(description="Interval of the change; null when it could not be had.")
    repeats: int = Field(ge=1, description="Launches of the recommended configuration that the number rests on.")
    pairs: int = Field(ge=0, description="Interleaved pairs of launches with the baseline.")


class SloEvidence(Strict):
    """One limit and whether it was met."""

    metric: str
    limit: float
    measured: float | None
    met: bool


class CellEvidence(Strict):
    """One operating point of the recommended configuration, median over its launches."""

    context: int
    concurrency: int
    output_tokens: int
    metrics: dict[str, float]
    baseline: dict[str, float] = Field(default_factory=dict)


class SurrogateEvidence(Strict):
    """What the regression model thought, and how wrong it is on data that it has not seen."""

    predicted: float | None
    cross_validated_error_percent: float | None = Field(description="Median absolute error, leaving one configuration out at a time.")
    trials: int


class Provenance(Strict):
    """Where the numbers come from."""

    study: str
    trial: int
    trials_measured: int
    trials_infeasible: int
    fingerprint: str
    fingerprint_fields: dict[str, Scalar]
    tool: str
    measured_on: str = Field(description="Date of the last confirmation, UTC.")


class Evidence(Strict):
    """Why this configuration; nothing here is applied."""

    verdict: Verdict
    reason: str
    simulated: bool = False
    objective: ObjectiveEvidence
    slos: tuple[SloEvidence, ...] = ()
    cells: tuple[CellEvidence, ...] = ()
    acceptance_length: float | None = None
    free_memory_gib: float | None = None
    quality: str = "not_checked"
    effective: dict[str, Scalar] = Field(default_factory=dict, description="What the server says it runs, in concepts.")
    measuring_flags: tuple[str, ...] = Field(default=(), description="Flags on every launch that only measuring needs.")
    load_floor: str | None = Field(
        default=None, description="What a self-test of the load generator found before the measurements; null where there was none."
    )
    surrogate: SurrogateEvidence | None = None
    provenance: Provenance


class Check(Strict):
    """One doubt about the result, with the next command."""

    name: str
    status: Literal["pass", "warning", "fail"]
    detail: str
    hint: str | None = None


class Alternative(Strict):
    """Another configuration and why it was not chosen."""

    trial: int
    parameters: dict[str, Scalar]
    measured: float
    why_not: str


class Validity(Strict):
    """Where the evidence holds. Outside of it the recommendation is a guess."""

    contexts: tuple[int, ...]
    concurrencies: tuple[int, ...]
    output_tokens: tuple[int, ...]
    engine_versions: tuple[str, ...]
    drivers: tuple[str, ...]


class Recommendation(Document):
    """``recommendations/HOST/WORKLOAD.yaml``, written by the tuner, reviewed by people."""

    kind: Literal["Recommendation"]
    metadata: Subject  # type: ignore[assignment]
    spec: Spec
    evidence: Evidence
    checks: tuple[Check, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    validity: Validity
