"""Recommend: the launches of a study → one recommendation per workload."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from autotuner.decide.finalists import best_predicted, predict_workload, scored
from autotuner.decide.healthchecks import check_recommendation
from autotuner.decide.objective import best, by_key, ratio, slo_excess, unmeasured_slos, workload_value
from autotuner.decide.statistics import percent
from autotuner.decide.unit import full_name, render_unit
from autotuner.decide.verdict import Decision, decide
from autotuner.model.configuration import Configuration
from autotuner.model.document import API_VERSION, Scalar
from autotuner.model.events import Phase
from autotuner.model.host import Host, ProductionUnit
from autotuner.model.measurement import METRICS, Direction
from autotuner.model.recommendation import (
    Alternative,
    CellEvidence,
    Evidence,
    ObjectiveEvidence,
    Provenance,
    Recommendation,
    SloEvidence,
    Spec,
    Subject,
    SurrogateEvidence,
    Validity,
)
from autotuner.model.space import SearchSpace
from autotuner.model.trial import TrialRecord
from autotuner.model.workload import Workload

_ALTERNATIVES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything that a study knows, as far as a recommendation needs it."""

    host: Host
    study: str
    tool: str
    driver: str
    fingerprint: str
    fingerprint_fields: Mapping[str, Scalar]
    facts: Mapping[str, Scalar | None]
    simulated: bool
    trials: Sequence[TrialRecord]
    baseline: Configuration
    space: SearchSpace | None
    measuring_flags: tuple[str, ...]
    load_floor: str | None = None
    """What a self-test of the load generator found."""


def recommend(workload: Workload, case: Case) -> Recommendation | None:
    """The recommendation for one workload, the same for the same records; ``None`` when nothing could be measured for it."""
    decision = decide(workload, case.trials, case.baseline)
    if decision is None or not decision.measured:
        return None
    launches = [trial for trial in case.trials if trial.config == decision.config and trial.measured]
    reference = [trial for trial in case.trials if trial.config == case.baseline and trial.measured]
    surrogate = _surrogate(workload, case, decision.config)
    spec, unwritten = _spec(workload, case, launches[-1], decision.config)
    return Recommendation(
        apiVersion=API_VERSION,
        kind="Recommendation",
        metadata=_subject(workload, case),
        spec=spec,
        evidence=_evidence(workload, case, decision, launches=launches, reference=reference, surrogate=surrogate),
        checks=check_recommendation(
            decision.config,
            launches,
            verdict=decision.verdict,
            space=case.space,
            facts=case.facts,
            simulated=case.simulated,
            surrogate_error_percent=surrogate.cross_validated_error_percent if surrogate else None,
            measured=decision.measured,
            unmeasured_slos=unmeasured_slos(workload, launches[-1].cells),
            unwritten_unit=unwritten,
        ),
        alternatives=_alternatives(workload, case, decision.config),
        validity=_validity(case, launches),
    )


def why_nothing(workload: Workload, trials: Sequence[TrialRecord]) -> str:
    """Why a workload has no recommendation: nothing measured, or nothing that keeps its limits, with what came nearest."""
    ran = [trial for trial in trials if trial.measured and workload_value(workload, trial.cells) is not None]
    if not ran:
        return "nothing could be measured"
    nearest = min(ran, key=lambda trial: max(slo_excess(workload, trial.cells).values(), default=0.0))
    broken = [name for name, excess in slo_excess(workload, nearest.cells).items() if excess > 0]
    limits: dict[str, float] = {slo.metric: slo.limit for slo in workload.slos}
    medians = _medians([nearest])
    values = [
        f"{name} {METRICS[name].format(medians[cell.key].get(name))} (limit {METRICS[name].format(limits[name])})"
        for name in broken
        for cell in workload.cells
    ]
    return f"no measured configuration keeps its limits; nearest is trial {nearest.number} with {', '.join(values)}"


def _subject(workload: Workload, case: Case) -> Subject:
    return Subject(
        name=workload.name,
        description=workload.metadata.description,
        host=case.host.name,
        workload=workload.name,
        model=case.host.model.path,
        engine=case.host.engine.name,
        engine_version=str(case.fingerprint_fields["engine_version"]),
    )


def _spec(workload: Workload, case: Case, launch: TrialRecord, config: Configuration) -> tuple[Spec, str | None]:
    """What would be applied, and why there is no unit of it where none can be written."""
    argv = tuple(word for word in launch.launch.argv if word not in case.measuring_flags)
    env = dict(sorted(launch.launch.env.items()))
    subject = f"{case.host.engine.name} {case.host.model.path} for {workload.name}"
    unit, why = "", None
    try:
        unit = render_unit(description=subject, argv=argv, env=env, cwd=case.host.engine.cwd, conflicts=_conflicts(case.host))
    except ValueError as error:  # a night's result is not lost for that
        why = str(error)
    return Spec(parameters=dict(config), argv=argv, env=env, unit=unit), why


def _conflicts(host: Host) -> tuple[str, ...]:
    """What must not run beside a recommended unit: production, and what is stopped while the host is tuned."""
    production = host.service.production
    if host.service.manager != "systemd":
        return ()
    names = [production.unit] if isinstance(production, ProductionUnit) else []
    return tuple(full_name(name) for name in [*names, *host.service.conflicts])


def _evidence(
    workload: Workload,
    case: Case,
    decision: Decision,
    *,
    launches: Sequence[TrialRecord],
    reference: Sequence[TrialRecord],
    surrogate: SurrogateEvidence | None,
) -> Evidence:
    cells = _cells(launches, reference)
    keys = {cell.key for cell in workload.cells}
    acceptance = [cell.acceptance_length for trial in launches for cell in trial.cells if cell.key in keys and cell.acceptance_length]
    return Evidence(
        verdict=decision.verdict,
        reason=decision.reason,
        simulated=case.simulated,
        objective=_objective(workload, decision),
        slos=_slos(workload, launches),
        cells=cells,
        acceptance_length=_rounded(median(acceptance)) if acceptance else None,
        free_memory_gib=_rounded(launches[-1].launch.free_gib),
        quality="passed" if any(trial.quality == "passed" for trial in launches) else launches[-1].quality,
        effective=dict(sorted(launches[-1].effective.items())),
        measuring_flags=case.measuring_flags,
        load_floor=case.load_floor,
        surrogate=surrogate,
        provenance=Provenance(
            study=case.study,
            trial=launches[0].number,
            trials_measured=sum(trial.measured for trial in case.trials),
            trials_infeasible=sum(trial.outcome == "infeasible" for trial in case.trials),
            fingerprint=case.fingerprint,
            fingerprint_fields=dict(case.fingerprint_fields),
            tool=case.tool,
            measured_on=max(trial.started for trial in launches)[:10],
        ),
    )


def _objective(workload: Workload, decision: Decision) -> ObjectiveEvidence:
    metric = METRICS[workload.objective]
    measured = math.exp(fmean(math.log(value) for value in decision.measured))
    baseline = math.exp(fmean(math.log(value) for value in decision.baseline)) if decision.baseline else None
    comparison = decision.comparison
    same = decision.measured == decision.baseline
    interval = None
    if comparison is not None and comparison.low is not None and comparison.high is not None and not same:
        # The comparison is of goodness; the change is of the metric, which may point the other way.
        ends = (comparison.low, comparison.high) if workload.maximize else (1 / comparison.high, 1 / comparison.low)
        interval = (round(percent(ends[0]), 2), round(percent(ends[1]), 2))
    return ObjectiveEvidence(
        metric=metric.name,
        unit=metric.unit,
        direction="higher" if metric.direction is Direction.HIGHER else "lower",
        baseline=_rounded(baseline),
        measured=round(measured, 3),
        change_percent=round(percent(measured / baseline), 2) if baseline else None,
        ci95_percent=interval,
        repeats=len(decision.measured),
        pairs=comparison.pairs if comparison is not None and comparison.conclusive else 0,
    )


def _cells(launches: Sequence[TrialRecord], reference: Sequence[TrialRecord]) -> tuple[CellEvidence, ...]:
    mine, theirs = _medians(launches), _medians(reference)
    shape = {cell.key: cell for trial in launches for cell in trial.cells}
    ordered = sorted(shape.values(), key=lambda cell: (cell.context, cell.concurrency, cell.output_tokens))
    return tuple(
        CellEvidence(
            context=cell.context,
            concurrency=cell.concurrency,
            output_tokens=cell.output_tokens,
            metrics=mine[cell.key],
            baseline=theirs.get(cell.key, {}),
        )
        for cell in ordered
    )


def _medians(launches: Sequence[TrialRecord]) -> dict[str, dict[str, float]]:
    """Cell → metric → median over launches."""
    found: dict[str, dict[str, list[float]]] = {}
    for trial in launches:
        for key, cell in by_key(trial.cells).items():
            for metric, value in cell.metrics.items():
                found.setdefault(key, {}).setdefault(metric, []).append(value)
    return {key: {name: round(median(values[name]), 3) for name in METRICS if name in values} for key, values in found.items()}


def _slos(workload: Workload, launches: Sequence[TrialRecord]) -> tuple[SloEvidence, ...]:
    medians = _medians(launches)
    evidence = []
    for slo in workload.slos:
        values = [medians[cell.key][slo.metric] for cell in workload.cells if slo.metric in medians.get(cell.key, {})]
        upper = METRICS[slo.metric].direction is Direction.LOWER
        worst = (max(values) if upper else min(values)) if len(values) == len(workload.cells) else None
        met = worst is not None and (worst <= slo.limit if upper else worst >= slo.limit)
        evidence.append(SloEvidence(metric=slo.metric, limit=slo.limit, measured=worst, met=met))
    return tuple(evidence)


def _surrogate(workload: Workload, case: Case, config: Configuration) -> SurrogateEvidence | None:
    _, model = best_predicted(workload, case.trials, ())
    if model is None:
        return None
    # From a model that has not seen this configuration: one that has would only repeat what was measured.
    _, blind = best_predicted(workload, [trial for trial in case.trials if trial.config != config], ())
    return SurrogateEvidence(
        predicted=round(predict_workload(workload, blind, [config])[0].mean, 3) if blind else None,
        cross_validated_error_percent=round(model.cross_validated_error_percent(), 1),
        trials=model.configurations,
    )


def _alternatives(workload: Workload, case: Case, chosen: Configuration) -> tuple[Alternative, ...]:
    """The next best configurations, best first by their exploring launch; the value is the confirmed one where there is one."""
    values = scored(workload, case.trials)
    by_number = {trial.number: trial for trial in case.trials}
    found: list[Alternative] = []
    while values and len(found) < _ALTERNATIVES:
        number = best(workload, values)
        if number is None:
            break
        values.pop(number)
        trial = by_number[number]
        if trial.config != chosen and all(trial.config != by_number[other.trial].config for other in found):
            mine, theirs = _launched(workload, case, trial.config), _launched(workload, case, chosen)
            found.append(
                Alternative(
                    trial=number,
                    parameters=dict(trial.config),
                    measured=round(mine.value, 3),
                    why_not=_why_not(workload, mine, theirs),
                )
            )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launched:
    """What a configuration's launches say: its confirming ones where there are any, else its exploring ones."""

    value: float
    confirmed: bool


def _launched(workload: Workload, case: Case, config: Configuration) -> _Launched:
    found = [
        (trial.phase is Phase.CONFIRM, value)
        for trial in case.trials
        if trial.config == config and trial.measured and (value := workload_value(workload, trial.cells)) is not None
    ]
    confirmed = any(confirming for confirming, _ in found)
    return _Launched(value=math.exp(fmean(math.log(value) for confirming, value in found if confirming == confirmed)), confirmed=confirmed)


def _why_not(workload: Workload, mine: _Launched, chosen: _Launched) -> str:
    difference = percent(ratio(workload, mine.value, chosen.value))
    how = f"{abs(difference):.1f} % {'better' if difference > 0 else 'worse'}"
    if mine.confirmed and chosen.confirmed:
        return f"{how} when confirmed as well"
    if mine.confirmed:
        return f"{how} when confirmed, the chosen one is not confirmed yet"
    return f"{how} in its single launch, not confirmed"


def _validity(case: Case, launches: Sequence[TrialRecord]) -> Validity:
    cells = [cell for trial in launches for cell in trial.cells]
    return Validity(
        contexts=tuple(sorted({cell.context for cell in cells})),
        concurrencies=tuple(sorted({cell.concurrency for cell in cells})),
        output_tokens=tuple(sorted({cell.output_tokens for cell in cells})),
        engine_versions=(str(case.fingerprint_fields["engine_version"]),),
        drivers=(case.driver,),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
