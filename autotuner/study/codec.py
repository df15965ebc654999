"""Parameters of a search space ↔ Optuna's distributions and trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from autotuner.model.configuration import Configuration
from autotuner.model.document import Scalar
from autotuner.model.legality import active, canonical
from autotuner.model.space import Categorical, Int, Parameter, SearchSpace

Facts = Mapping[str, Scalar | None]


def distribution(parameter: Parameter) -> BaseDistribution:
    """Optuna's distribution of a parameter's values."""
    if isinstance(parameter, Categorical):
        return CategoricalDistribution(parameter.choices)
    if isinstance(parameter, Int):
        return IntDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)


def suggest(trial: optuna.Trial, space: SearchSpace, facts: Facts) -> Configuration:
    """The configuration that a trial proposes."""
    return built(space, facts, lambda name: _suggest_one(trial, name, space.parameters[name]))


def built(space: SearchSpace, facts: Facts, choose: Callable[[str], Scalar]) -> Configuration:
    """A configuration, legal or not, of chosen values. Only parameters that are active under the values so far are asked for."""
    values: dict[str, Scalar] = {}
    while True:
        pending = [name for name in active(space, values, facts) if name not in values]
        if not pending:
            return canonical(space, values, facts)
        for name in pending:
            values[name] = choose(name)


def _suggest_one(trial: optuna.Trial, name: str, parameter: Parameter) -> Scalar:
    if isinstance(parameter, Categorical):
        return cast("Scalar", trial.suggest_categorical(name, parameter.choices))  # no choice is None
    if isinstance(parameter, Int):
        return trial.suggest_int(name, parameter.low, parameter.high, step=parameter.step, log=parameter.log)
    return trial.suggest_float(name, parameter.low, parameter.high, step=parameter.step, log=parameter.log)


def parameters_of(config: Configuration, space: SearchSpace, facts: Facts) -> dict[str, Scalar] | None:
    """The values of a configuration as Optuna's parameters, or ``None`` when the space cannot express it.

    The live service may run outside of the space: such a configuration is kept beside Optuna.
    """
    if config.extra_args:
        return None
    names = active(space, dict(config), facts)
    values = {name: config[name] for name in names if name in config}
    if len(values) != len(names) or canonical(space, values, facts) != config:
        return None
    return values if all(_contains(space.parameters[name], value) for name, value in values.items()) else None


def _contains(parameter: Parameter, value: Scalar) -> bool:
    if isinstance(parameter, Categorical):
        return any(type(choice) is type(value) and choice == value for choice in parameter.choices)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    known = distribution(parameter)
    return known._contains(known.to_internal_repr(value))  # noqa: SLF001 - Optuna offers no public test of membership
