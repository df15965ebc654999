"""Health checks: doubts about a recommendation, each with the next command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autotuner.decide.repeats import CV_LIMIT, variation
from autotuner.decide.statistics import MIN_PAIRS
from autotuner.model.configuration import Configuration
from autotuner.model.document import Scalar
from autotuner.model.events import Phase
from autotuner.model.recommendation import Check, Verdict
from autotuner.model.space import Categorical, SearchSpace
from autotuner.model.trial import TrialRecord

_SURROGATE_LIMIT_PERCENT = 25.0
"""Beyond this error the regression's own proposals are little better than draws."""
_TOLD = 3
"""Sentences of one kind that a check repeats."""


def check_recommendation(
    config: Configuration,
    launches: Sequence[TrialRecord],
    *,
    verdict: Verdict,
    space: SearchSpace | None,
    facts: Mapping[str, Scalar | None],
    simulated: bool,
    surrogate_error_percent: float | None,
    measured: Sequence[float] = (),
    unmeasured_slos: Sequence[str] = (),
    unwritten_unit: str | None = None,
) -> tuple[Check, ...]:
    """Every doubt that the evidence gives cause for.

    ``launches`` are those of the recommended configuration, ``measured`` the values of those that its number rests on.
    """
    return (
        *_simulated(simulated=simulated),
        *_quality(launches),
        *_limits(unmeasured_slos),
        *_repeats(launches, verdict),
        *_bounds(config, space),
        *_trained_depth(config, facts),
        *_rewrites(launches),
        *_cells(launches),
        *_clients(launches),
        *_contaminated(launches),
        *_noisy(measured),
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


def _clients(launches: Sequence[TrialRecord]) -> Iterator[Check]:
    """What the load generator said against itself."""
    left_out = dict.fromkeys(why for trial in launches for why in trial.left_out.values())
    for why in left_out:
        yield _warning("cell_left_out", why, "drive the load from a machine that does nothing else, then tune again")
    reports = [(cell.key, cell.client) for trial in launches for cell in trial.cells if cell.client is not None]
    invalid = sorted({f"{key}: {why}" for key, client in reports for why in client.invalid})
    if invalid:
        yield Check(name="invalid_client", status="fail", detail="; ".join(invalid[:_TOLD]), hint="measure it again")
    unstamped = sorted({key for key, client in reports if client.clock == "user"})
    if unstamped:
        detail = f"times of {', '.join(unstamped)} are the load generator's own: the kernel did not stamp every read"
        yield _warning("user_clock", detail, "they are milliseconds off where many answers come at once")


def _contaminated(launches: Sequence[TrialRecord]) -> Iterator[Check]:
    """What the server's side said against its own measurements: throttling, other tenants, clocks that stepped."""
    found = [
        f"{cell.key}: {warning}"
        for trial in launches
        for cell in trial.cells
        if cell.server is not None
        for warning in cell.server.warnings
    ]
    if found:
        told = list(dict.fromkeys(found))
        more = f"; and {len(told) - _TOLD} more" if len(told) > _TOLD else ""
        hint = "look after cooling and other users of the host, then measure again: run the same command with more --confirm-rounds"
        yield _warning("contaminated", f"{'; '.join(told[:_TOLD])}{more}", hint)


def _noisy(measured: Sequence[float]) -> Iterator[Check]:
    spread = variation(measured)
    if spread is not None and spread > CV_LIMIT:
        detail = f"its {len(measured)} launches vary by {spread:.1%} (standard deviation over mean), {CV_LIMIT:.0%} is usual at most"
        yield _warning("noisy", detail, "more launches make the number surer: run the same command with more --confirm-rounds")


def _surrogate(error_percent: float | None) -> Iterator[Check]:
    if error_percent is not None and error_percent > _SURROGATE_LIMIT_PERCENT:
        detail = f"the regression is off by {error_percent:.0f} % on configurations that it has not seen"
        yield _warning("surrogate", detail, "more trials make its proposals worth more")


def _unit(unwritten: str | None) -> Iterator[Check]:
    if unwritten is not None:
        yield _warning(
            "unit", f"no unit file can serve this: {unwritten}", "correct the host document; spec.argv and spec.env are complete"
        )
