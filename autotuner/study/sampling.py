"""Proposer: which configuration to launch next.

Optuna's TPE runs on a mirror of the study in memory. It may propose what the space forbids or what was launched already: such proposals are
told to the mirror, where they teach, and never reach the study's database, where every trial is a launch.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotuner.model.configuration import Configuration
from autotuner.model.legality import points, violations
from autotuner.model.space import SearchSpace
from autotuner.study.codec import Facts, built, suggest

_TPE_ATTEMPTS = 32
"""Proposals of TPE per launch; beyond that it is stuck among what is illegal or known."""
_MISSES = 300
"""Draws in a row without anything new after which a small space counts as listed."""
_RANDOM_ATTEMPTS = 5000
"""Draws before a space counts as used up: at one legal configuration in a hundred, missing all has probability 1e-22."""


class Proposer:
    """Proposes legal configurations that were never launched."""

    def __init__(self, space: SearchSpace, facts: Facts, directions: list[StudyDirection], *, seed: int) -> None:
        self._space = space
        self._facts = facts
        self._random = random.Random(seed)  # noqa: S311 - a search, not a secret
        with warnings.catch_warnings():
            # multivariate and group are marked experimental; without group, conditional parameters would be drawn independently.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True, constant_liar=False, n_startup_trials=8)
        self._mirror = optuna.create_study(directions=directions, sampler=sampler)

    def learn(self, trial: FrozenTrial) -> None:
        """Take in a finished trial of the study."""
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
            self._mirror.add_trial(trial)

    def propose(self, known: Callable[[Configuration], bool]) -> Configuration | None:
        """A legal configuration for which ``known`` is false, or ``None`` when the space is used up."""
        for _ in range(_TPE_ATTEMPTS):
            trial = self._mirror.ask()
            config = suggest(trial, self._space, self._facts)
            broken = violations(self._space, config, self._facts)
            if broken:
                trial.set_constraint("illegal", float(len(broken)))
            if not broken and not known(config):
                self._mirror.tell(trial, state=TrialState.FAIL)  # learnt when it has been launched
                return config
            self._mirror.tell(trial, state=TrialState.PRUNED)
        return self._draw(known)

    def _draw(self, known: Callable[[Configuration], bool]) -> Configuration | None:
        for _ in range(_RANDOM_ATTEMPTS):
            config = draw(self._space, self._facts, self._random)
            if not known(config) and not violations(self._space, config, self._facts):
                return config
        return None


def draw(space: SearchSpace, facts: Facts, source: random.Random) -> Configuration:
    """A configuration drawn evenly, legal or not; only active parameters have values."""
    return built(space, facts, lambda name: source.choice(points(space.parameters[name])))


def legal_sample(space: SearchSpace, facts: Facts, *, count: int, seed: int) -> tuple[Configuration, ...]:
    """Up to ``count`` different legal configurations, drawn evenly; fewer when the space is small."""
    source = random.Random(seed)  # noqa: S311 - a search, not a secret
    found: dict[str, Configuration] = {}
    misses = 0
    while len(found) < count and misses < _MISSES:
        config = draw(space, facts, source)
        fresh = config.digest not in found and not violations(space, config, facts)
        misses = 0 if fresh else misses + 1
        if fresh:
            found[config.digest] = config
    return tuple(found.values())
