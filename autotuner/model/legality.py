"""Legality: which parameters of a space exist at a point, and whether the point may be tried."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from autotuner.model.configuration import Configuration
from autotuner.model.document import Scalar
from autotuner.model.expressions import Expression
from autotuner.model.kleene import same
from autotuner.model.space import Categorical, Constraint, Int, Parameter, SearchSpace

Facts = Mapping[str, Scalar | None]


def points(parameter: Parameter, limit: int = 64) -> tuple[Scalar, ...]:
    """The values of a parameter, ``limit`` at most; what has more is a grid that is even (geometric for ``log``) and holds both ends."""
    if isinstance(parameter, Categorical):
        return parameter.choices
    if isinstance(parameter, Int):
        return _whole_points(parameter, limit)
    if parameter.low == parameter.high:
        return (parameter.low,)
    if parameter.step is None:
        return tuple(_spread(parameter.low, parameter.high, limit, log=parameter.log))
    count = math.floor((parameter.high - parameter.low) / parameter.step + 1e-9) + 1
    # Rounded as people write it: 0.76 + 4 * 0.02 is 0.8400000000000001 otherwise.
    grid = [round(parameter.low + index * parameter.step, 10) for index in _indices(count, limit)]
    return tuple(min(max(value, parameter.low), parameter.high) for value in grid)


def _whole_points(parameter: Int, limit: int) -> tuple[int, ...]:
    count = (parameter.high - parameter.low) // parameter.step + 1
    if count > limit and parameter.log:
        return tuple(sorted({round(value) for value in _spread(parameter.low, parameter.high, limit, log=True)}))
    return tuple(parameter.low + index * parameter.step for index in _indices(count, limit))


def _indices(count: int, limit: int) -> Iterable[int]:
    if count <= limit:
        return range(count)
    return (round(index * (count - 1) / (limit - 1)) for index in range(limit))


def _spread(low: float, high: float, count: int, *, log: bool) -> list[float]:
    shares = [index / (count - 1) for index in range(count)]
    values = [low * (high / low) ** share if log else low + (high - low) * share for share in shares]
    return [low, *values[1:-1], high]


def contains(parameter: Parameter, value: Scalar) -> bool:
    """Whether ``value`` lies in the domain of the parameter."""
    if isinstance(parameter, Categorical):
        return any(same(choice, value) for choice in parameter.choices)
    if isinstance(value, bool | str) or not parameter.low <= value <= parameter.high:
        return False
    if isinstance(parameter, Int):
        return float(value).is_integer() and (value - parameter.low) % parameter.step == 0
    if parameter.step is None:
        return True
    steps = (value - parameter.low) / parameter.step
    return abs(steps - round(steps)) < 1e-6


def domain(parameter: Parameter) -> str:
    """The domain in words: ``8, 16`` or ``4 … 32 in steps of 4``."""
    if isinstance(parameter, Categorical):
        return ", ".join(_written(choice) for choice in parameter.choices)
    step = f" in steps of {parameter.step:g}" if parameter.step not in {None, 1} else ""
    return f"{parameter.low:g} … {parameter.high:g}{step}"


def dependency_order(space: SearchSpace) -> tuple[str, ...]:
    """Names of the parameters, every one after those that its ``when:`` speaks of; what is left of a cycle comes last, as written."""
    pending = {name: conditions(space, name) for name in space.parameters}
    ordered: list[str] = []
    while pending:
        free = [name for name, needs in pending.items() if not needs & (pending.keys() - {name})]
        if not free:
            return (*ordered, *pending)
        ordered.append(free[0])
        del pending[free[0]]
    return tuple(ordered)


def conditions(space: SearchSpace, name: str) -> frozenset[str]:
    """The parameters that the ``when:`` of a parameter speaks of."""
    when = space.parameters[name].when
    return frozenset() if when is None else Expression.parse(when).names & space.parameters.keys()


def active(space: SearchSpace, values: Mapping[str, Scalar], facts: Facts) -> tuple[str, ...]:
    """Names of the parameters that exist at ``values``, in dependency order.

    A parameter exists where its ``when:`` is true; false and unknown both mean that it does not. An inactive parameter has no value for
    the conditions of others.
    """
    return tuple(name for name in _settled(space, values, facts)[1])


def _settled(space: SearchSpace, values: Mapping[str, Scalar], facts: Facts) -> tuple[dict[str, Scalar | None], list[str]]:
    """What conditions see (facts, fixed, active values) and the names of the active parameters."""
    outside = {name: value for name, value in values.items() if name not in space.parameters}
    seen: dict[str, Scalar | None] = {**facts, **space.fixed, **outside}
    names: list[str] = []
    for name in dependency_order(space):
        seen.pop(name, None)
        when = space.parameters[name].when
        if when is None or Expression.parse(when).truth(seen) is True:
            names.append(name)
            if name in values:
                seen[name] = values[name]
    return seen, names


def canonical(space: SearchSpace, values: Mapping[str, Scalar], facts: Facts, extra_args: tuple[str, ...] = ()) -> Configuration:
    """The configuration that ``values`` ask for: inactive parameters dropped, ``fixed:`` added.

    Concepts that the space does not search stay, and a value given for a fixed concept wins: what a live service runs is not altered.
    """
    alive = set(active(space, values, facts))
    kept = {name: value for name, value in values.items() if name in alive or name not in space.parameters}
    return Configuration.of({**space.fixed, **kept}, extra_args)


def violations(space: SearchSpace, config: Configuration, facts: Facts) -> tuple[str, ...]:
    """One sentence for every value outside its domain and for every constraint that does not hold; empty when the point is legal.

    A constraint that cannot be decided (an inactive parameter, an unknown fact) is not violated.
    """
    seen, names = _settled(space, config, facts)
    found = [
        f"{name} is {_written(config[name])}, outside of {domain(space.parameters[name])}"
        for name in names
        if name in config and not contains(space.parameters[name], config[name])
    ]
    found += [
        f"{name} is {_written(config[name])}, but the space fixes it at {_written(value)}"
        for name, value in space.fixed.items()
        if name in config and not same(config[name], value)
    ]
    found += [broken(item, seen) for item in space.requirements() if Expression.parse(item.require).truth(seen) is False]
    return tuple(found)


def broken(constraint: Constraint, values: Facts) -> str:
    """The sentence for a constraint that does not hold at ``values``."""
    names = sorted(Expression.parse(constraint.require).names)
    with_values = ", ".join(f"{name}={_written(value)}" for name in names if (value := values.get(name)) is not None)
    reason = f": {constraint.why}" if constraint.why else ""
    return f"{constraint.require} does not hold with {with_values or 'these values'}{reason}"


def _written(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
