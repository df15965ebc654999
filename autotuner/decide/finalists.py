"""Finalists: which launches could be the answer for a workload."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotuner.decide.objective import best, meets_slos, ratio, workload_value
from autotuner.decide.surrogate import Prediction, Surrogate, starts_probability
from autotuner.model.configuration import Configuration
from autotuner.model.events import Phase
from autotuner.model.trial import TrialRecord
from autotuner.model.workload import Workload

CLOSE = 0.95
"""A predicted configuration whose single measurement reached this share of the best is confirmed beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """What the regression thinks of a configuration that was never launched."""

    config: Configuration
    value: float
    sd: float


def scored(workload: Workload, trials: Iterable[TrialRecord]) -> dict[int, float]:
    """Launch number → value for every exploring launch that ran and broke no limit. Confirmations are judged apart.

    A configuration whose answers failed at any launch is out, however well it did at another.
    """
    trials = list(trials)
    wrong = {trial.config for trial in trials if trial.quality == "failed"}
    values = {
        trial.number: workload_value(workload, trial.cells)
        for trial in trials
        if trial.measured and trial.phase is not Phase.CONFIRM and trial.config not in wrong and meets_slos(workload, trial.cells)
    }
    return {number: value for number, value in values.items() if value is not None}


def best_measured(workload: Workload, trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """The exploring launch with the best value."""
    number = best(workload, scored(workload, trials))
    return next((trial for trial in trials if trial.number == number and trial.phase is not Phase.CONFIRM), None)


def best_predicted(
    workload: Workload, trials: Sequence[TrialRecord], candidates: Sequence[Configuration], *, seed: int = 0
) -> tuple[Guess | None, Surrogate | None]:
    """The never launched candidate that the regression thinks best, weighed with the chance that it starts; and the regression.

    ``(None, None)`` when too few configurations were measured to fit one; ``(None, model)`` when nothing is left to launch.
    """
    try:
        model = Surrogate(trials, workload.objective, seed=seed)
    except ValueError:
        return None, None
    known = {trial.config.digest for trial in trials}
    fresh = [config for config in candidates if config.digest not in known]
    if not fresh:
        return None, model
    guesses = predict_workload(workload, model, fresh)
    starts = starts_probability(trials, fresh, seed=seed)
    sign = 1 if workload.maximize else -1
    index = max(range(len(fresh)), key=lambda i: (sign * math.log(guesses[i].mean) + math.log(max(starts[i], 1e-3)), fresh[i].digest))
    return Guess(config=fresh[index], value=guesses[index].mean, sd=guesses[index].sd), model


def predict_workload(workload: Workload, model: Surrogate, configs: Sequence[Configuration]) -> list[Prediction]:
    """The workload's value for each configuration: the weighted geometric mean of its cells' predictions."""
    total = sum(cell.weight for cell in workload.cells)
    per_cell = [(cell.weight / total, model.predict(configs, cell)) for cell in workload.cells]
    return [
        Prediction(
            mean=math.exp(sum(weight * math.log(row[i].mean) for weight, row in per_cell)),
            sd=math.sqrt(sum((weight * row[i].sd) ** 2 for weight, row in per_cell)),
        )
        for i in range(len(configs))
    ]


def finalists(workload: Workload, trials: Sequence[TrialRecord]) -> tuple[Configuration, ...]:
    """The configurations to confirm for a workload: the best measured, and the regression's best if it came close when measured."""
    leader = best_measured(workload, trials)
    if leader is None:
        return ()
    values = scored(workload, trials)
    guessed = {trial.number: values[trial.number] for trial in trials if trial.phase is Phase.PREDICTED and trial.number in values}
    number = best(workload, guessed)
    if number is None or number == leader.number:
        return (leader.config,)
    close = ratio(workload, values[number], values[leader.number]) >= CLOSE
    return (leader.config, *(trial.config for trial in trials if close and trial.number == number))
