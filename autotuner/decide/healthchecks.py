"""Health checks: doubts about a recommendation, each with the next command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autotuner.decide.statistics import MIN_PAIRS
from autotuner.model.configuration import Configuration
from autotuner.model.document import Scalar
from autotuner.model.events import Phase
from autotuner.model.recommendation import Check, Verdict
from autotuner.model.space import Categorical, SearchSpace
from autotuner.model.trial import TrialRecord

_SURROGATE_LIMIT_PERCENT = 25.0
"""Beyond this error the regression's own proposals are little better than draws."""


def check_recommendation(
    config: Configuration,
    launches: Sequence[TrialRecord],
    *,
    verdict: Verdict,
    space: SearchSpace | None,
    facts: Mapping[str, Scalar | None],
    simulated: bool,
    surrogate_error_percent: float | None,
    unmeasured_slos: Sequence[str] = (),
    unwritten_unit: str | None = None,
) -> tuple[Check, ...]:
    """Every doubt that the evidence gives cause for. ``launches`` are those of the recommended configuration."""
    return (
        *_simulated(simulated=simulated),
        *_quality(launches),
        *_limits(unmeasured_slos),
        *_repeats(launches, verdict),
        *_bounds(config, space),
        *_trained_depth(config, facts),
        *_rewrites(launches),
        *_cells(launches),
        *_surrogate(surrogate_error_percent),
        *_unit(unwritten_unit),
    )


def _warning(name: str, detail: str, hint: str | None = None) -> Check:
    return Check(name=name, status="warning", detail=detail, hint=hint)


def _simulated(*, simulated: bool) -> Iterator[Check]:
    if simulated:
        yield _warning("simulated", "measured on a simulated engine: the numbers say nothing about real hardware", "tune a real host")


def _quality(launches: Sequence[TrialRecord]) -> Iterator[Check]:
    if any(trial.quality == "passed" for trial in launches):
        return  # one that failed would not be recommended
    reports = [trial.quality_report for trial in launches if trial.quality_report is not None]
    why = dict.fromkeys(reason for report in reports[-1:] for reason in report.reasons)
    told = f" ({'; '.join(why)})" if why else ""
    detail = f"NOT CHECKED: nobody compared this configuration's answers with the baseline's{told}"
    yield _warning("quality", detail, "compare answers before rollout")


def _limits(unmeasured: Sequence[str]) -> Iterator[Check]:
    if unmeasured:
        detail = f"NOT KNOWN whether {', '.join(unmeasured)} keeps its limit: too few requests for it"
        yield _warning("slo_not_measured", detail, "tune with a longer --window, or put the limit on a median")


def _repeats(launches: Sequence[TrialRecord], verdict: Verdict) -> Iterator[Check]:
    confirmed = sum(trial.phase is Phase.CONFIRM and trial.measured for trial in launches)
    if verdict is not Verdict.NO_SIGNIFICANT_CHANGE and confirmed < MIN_PAIRS:
        detail = f"rests on {confirmed} confirming launches, {MIN_PAIRS} carry a verdict of their own"
        yield _warning("too_few_repeats", detail, f"run the same command with --confirm-rounds {MIN_PAIRS}")


def _bounds(config: Configuration, space: SearchSpace | None) -> Iterator[Check]:
    for name, parameter in (space.parameters if space else {}).items():
        if isinstance(parameter, Categorical) or name not in config or parameter.low == parameter.high:
            continue
        if config[name] in (parameter.low, parameter.high):
            end = "lowest" if config[name] == parameter.low else "highest"
            yield _warning(
                "best_at_bound", f"{name}={config[name]} is the {end} value searched", "widen the space, then tune with --new-study"
            )


def _trained_depth(config: Configuration, facts: Mapping[str, Scalar | None]) -> Iterator[Check]:
    block, trained = config.get("block"), facts.get("drafter_block")
    if isinstance(block, int) and isinstance(trained, int) and block > trained:
        yield _warning(
            "trained_depth", f"block {block} is beyond the {trained} that the drafter was trained at: deeper positions are guesses"
        )
    elif isinstance(block, int) and block == trained:
        yield _warning("trained_depth", f"block {block} is all that the drafter was trained at; a deeper drafter might pay")


def _rewrites(launches: Sequence[TrialRecord]) -> Iterator[Check]:
    for sentence in dict.fromkeys(warning for trial in launches for warning in trial.launch.warnings):
        yield _warning("silent_rewrite", sentence)


def _cells(launches: Sequence[TrialRecord]) -> Iterator[Check]:
    unsteady = sorted({cell.key for trial in launches for cell in trial.cells if not cell.steady})
    if unsteady:
        yield _warning("unsteady", f"throughput still moved inside the window of {', '.join(unsteady)}", "tune with a longer --window")
    failed = sum(cell.failed for trial in launches for cell in trial.cells)
    if failed:
        yield _warning("failed_requests", f"{failed} requests failed while it was measured", "`autotuner trials --json` has them by kind")


def _surrogate(error_percent: float | None) -> Iterator[Check]:
    if error_percent is not None and error_percent > _SURROGATE_LIMIT_PERCENT:
        detail = f"the regression is off by {error_percent:.0f} % on configurations that it has not seen"
        yield _warning("surrogate", detail, "more trials make its proposals worth more")


def _unit(unwritten: str | None) -> Iterator[Check]:
    if unwritten is not None:
        yield _warning(
            "unit", f"no unit file can serve this: {unwritten}", "correct the host document; spec.argv and spec.env are complete"
        )
