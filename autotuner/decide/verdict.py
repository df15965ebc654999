"""Verdict: what the confirmation says about a workload's finalists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotuner.decide.finalists import best_measured, finalists
from autotuner.decide.objective import workload_value
from autotuner.decide.statistics import MIN_PAIRS, Comparison, compare, pooled_variance
from autotuner.model.configuration import Configuration
from autotuner.model.events import Phase
from autotuner.model.recommendation import Verdict
from autotuner.model.trial import TrialRecord
from autotuner.model.workload import Workload

_LEVEL = 0.05
"""Share of false verdicts that is tolerated when a configuration is compared with itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The configuration for one workload and what speaks for it."""

    config: Configuration
    verdict: Verdict
    reason: str
    measured: tuple[float, ...]
    """Values of the launches that the number rests on."""
    baseline: tuple[float, ...]
    comparison: Comparison | None
    """In terms of goodness: a ratio above 1 is better, whichever way the metric points."""


def decide(workload: Workload, trials: Sequence[TrialRecord], baseline: Configuration) -> Decision | None:
    """Judge a workload's finalists against the baseline; ``None`` when nothing could be measured for it."""
    leader = best_measured(workload, trials)
    if leader is None:
        return None
    candidates = [config for config in finalists(workload, trials) if config != baseline]
    reference = _confirmed(workload, trials, baseline) or _explored(workload, trials, baseline)
    if not candidates:
        explored = len([trial for trial in trials if trial.measured and trial.phase is not Phase.CONFIRM])
        reason = f"what runs today was the best of {explored} measured launches: keep it"
        return Decision(
            config=baseline, verdict=Verdict.NO_SIGNIFICANT_CHANGE, reason=reason, measured=reference, baseline=reference, comparison=None
        )
    judged = [_judge(workload, trials, config, baseline, share=_LEVEL / len(candidates)) for config in candidates]
    improved = [decision for decision in judged if decision.verdict is Verdict.IMPROVED]
    open_questions = [decision for decision in judged if decision.verdict is Verdict.INCONCLUSIVE]
    ranked = improved or open_questions or judged
    return max(ranked, key=lambda decision: decision.comparison.ratio if decision.comparison else 0.0)


def _judge(workload: Workload, trials: Sequence[TrialRecord], config: Configuration, baseline: Configuration, *, share: float) -> Decision:
    mine, theirs = _confirmed(workload, trials, config), _confirmed(workload, trials, baseline)
    if not mine or not theirs:
        return _unconfirmed(workload, trials, config, baseline)
    configs = dict.fromkeys(trial.config for trial in trials if trial.phase is Phase.CONFIRM)
    pooled = pooled_variance(_goodness(workload, _confirmed(workload, trials, each)) for each in configs)
    comparison = compare(_goodness(workload, theirs), _goodness(workload, mine), pooled=pooled, confidence=1 - share)
    verdict, reason = _interpret(comparison)
    keep = verdict is Verdict.NO_SIGNIFICANT_CHANGE
    return Decision(
        config=baseline if keep else config,
        verdict=verdict,
        reason=reason,
        measured=theirs if keep else mine,
        baseline=theirs,
        comparison=comparison,
    )


def _interpret(comparison: Comparison) -> tuple[Verdict, str]:
    if comparison.low is None or comparison.high is None:
        need = f"{MIN_PAIRS} are needed: run the same command with --confirm-rounds {MIN_PAIRS}"
        pairs = "pair" if comparison.pairs == 1 else "pairs"
        return Verdict.INCONCLUSIVE, f"{comparison.pairs} interleaved {pairs} of launches, {need}"
    interval = f"ratio {comparison.low:.3f} to {comparison.high:.3f}"
    if comparison.low > 1:
        how = "" if comparison.method == "paired" else ", launch-to-launch variance pooled over the confirmed configurations"
        return Verdict.IMPROVED, f"better in {comparison.pairs} interleaved pairs of launches ({interval}{how})"
    if comparison.high < 1:
        return Verdict.NO_SIGNIFICANT_CHANGE, f"what looked best while searching is worse when confirmed ({interval}): keep what runs"
    return Verdict.NO_SIGNIFICANT_CHANGE, f"the best other configuration cannot be told from what runs today ({interval}): keep what runs"


def _unconfirmed(workload: Workload, trials: Sequence[TrialRecord], config: Configuration, baseline: Configuration) -> Decision:
    mine = _confirmed(workload, trials, config) or _explored(workload, trials, config)
    theirs = _confirmed(workload, trials, baseline) or _explored(workload, trials, baseline)
    return Decision(
        config=config,
        verdict=Verdict.INCONCLUSIVE,
        reason=_why_unconfirmed(workload, trials, config, baseline),
        measured=mine,
        baseline=theirs,
        comparison=compare(_goodness(workload, theirs), _goodness(workload, mine)) if mine and theirs else None,
    )


def _why_unconfirmed(workload: Workload, trials: Sequence[TrialRecord], config: Configuration, baseline: Configuration) -> str:
    if not _explored(workload, trials, baseline):
        return "the baseline could not be measured, so there is nothing to compare with"
    failed = [trial for trial in trials if trial.phase is Phase.CONFIRM and trial.config == config and not trial.measured]
    if failed:
        return f"it ran once, but failed when it was launched again (trial {failed[-1].number})"
    return "not confirmed against the baseline yet: run the same command again to complete it"


def _confirmed(workload: Workload, trials: Sequence[TrialRecord], config: Configuration) -> tuple[float, ...]:
    return _values(workload, [trial for trial in trials if trial.phase is Phase.CONFIRM], config)


def _explored(workload: Workload, trials: Sequence[TrialRecord], config: Configuration) -> tuple[float, ...]:
    return _values(workload, [trial for trial in trials if trial.phase is not Phase.CONFIRM], config)


def _values(workload: Workload, trials: Sequence[TrialRecord], config: Configuration) -> tuple[float, ...]:
    found = [workload_value(workload, trial.cells) for trial in trials if trial.measured and trial.config == config]
    return tuple(value for value in found if value is not None)


def _goodness(workload: Workload, values: Sequence[float]) -> list[float]:
    return list(values) if workload.maximize else [1 / value for value in values]
