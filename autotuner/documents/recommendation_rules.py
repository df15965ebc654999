"""What must hold in a Recommendation beyond the kinds of its values: what is applied and what speaks for it agree with each other."""

from __future__ import annotations

from autotuner.decide.statistics import percent
from autotuner.decide.unit import read_conflicts, read_folder, render_unit
from autotuner.documents.host_rules import check_env
from autotuner.documents.source import Path, Source
from autotuner.model.recommendation import ObjectiveEvidence, Recommendation, Spec, Verdict

_HINT = "edit the search, not the evidence: run tune or recommend again"
_HALF_UNIT = 0.0005
"""Values are written with three decimals, percentages with two."""


def check_recommendation(source: Source, document: Recommendation | None) -> None:
    """Report secrets that were written into what is applied, and parts that contradict each other."""
    check_env(source, ("spec", "env"))
    if document is None:
        return
    _unit(source, document)
    _change(source, document.evidence.objective)
    _verdict(source, document.evidence.verdict, document.evidence.objective)
    fields = document.evidence.provenance.fingerprint_fields
    if fields.get("simulated", document.evidence.simulated) is not document.evidence.simulated:
        _report(source, ("evidence", "simulated"), "'simulated' is not what evidence.provenance.fingerprint_fields says")


def _report(source: Source, path: Path, message: str) -> None:
    source.error(path, message, _HINT)


def _unit(source: Source, document: Recommendation) -> None:
    spec, subject = document.spec, document.metadata
    if not spec.unit:
        return
    wanted = _rendered(spec, f"{subject.engine} {subject.model} for {subject.workload}")
    if wanted is None:
        _report(source, ("spec", "argv"), "spec.argv and spec.env cannot be written as a unit")
    elif wanted != spec.unit:
        theirs, ours = spec.unit.splitlines(), wanted.splitlines()
        length = max(len(theirs), len(ours))
        pairs = zip([*theirs, *[""] * (length - len(theirs))], [*ours, *[""] * (length - len(ours))], strict=True)
        there, here = next(((one, other) for one, other in pairs if one != other), ("", ""))
        message = f"spec.unit is not the unit of spec.argv and spec.env: it says `{there.strip()}` where they say `{here.strip()}`"
        _report(source, ("spec", "unit"), message)


def _rendered(spec: Spec, description: str) -> str | None:
    """The unit of what is applied; its folder and its conflicts stand in the unit only. ``None`` where there can be none."""
    folder, conflicts = read_folder(spec.unit), read_conflicts(spec.unit)
    try:
        return render_unit(description=description, argv=spec.argv, env=spec.env, cwd=folder, conflicts=conflicts)
    except ValueError:  # what no unit file can hold
        return None


def _change(source: Source, objective: ObjectiveEvidence) -> None:
    said, before, after = objective.change_percent, objective.baseline, objective.measured
    at: Path = ("evidence", "objective", "change_percent")
    if said is None or before is None:
        if said is not None:
            _report(source, at, "there is a change, but no baseline that it is a change of")
        return
    if before <= _HALF_UNIT:
        return
    low = percent((after - _HALF_UNIT) / (before + _HALF_UNIT)) - 0.01
    high = percent((after + _HALF_UNIT) / (before - _HALF_UNIT)) + 0.01
    if not low <= said <= high:
        _report(source, at, f"the change is {said:g} %, but from {before:g} to {after:g} it is {percent(after / before):.2f} %")


def _verdict(source: Source, verdict: Verdict, objective: ObjectiveEvidence) -> None:
    interval, at = objective.ci95_percent, ("evidence", "objective", "ci95_percent")
    if interval is not None and interval[0] > interval[1]:
        _report(source, at, f"the interval from {interval[0]:g} to {interval[1]:g} ends before it begins")
        return
    better = interval is not None and (interval[0] >= 0 if objective.direction == "higher" else interval[1] <= 0)
    if verdict is not Verdict.IMPROVED:
        if verdict is Verdict.NO_SIGNIFICANT_CHANGE and better and interval != (0.0, 0.0):
            _report(source, ("evidence", "verdict"), f"the verdict is '{verdict}', but the interval says that it is better")
        return
    lacks = [
        (not better, "an interval of the change that is on the better side as a whole"),
        (objective.repeats < 2, "two launches or more"),
        (objective.pairs < 1, "interleaved pairs of launches"),
    ]
    for missing, what in lacks:
        if missing:
            _report(source, ("evidence", "verdict"), f"the verdict is '{verdict}', which needs {what}")
