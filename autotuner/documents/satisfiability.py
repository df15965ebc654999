"""Satisfiability of a space: does any configuration meet the constraints, judged by trying points.

A search assigns parameters in dependency order and gives a branch up as soon as a constraint is false; what is unknown (facts of a host,
inactive parameters) never rules anything out, so every "no" here is a real one for the points tried.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from autotuner.model.document import Scalar
from autotuner.model.expressions import Expression
from autotuner.model.legality import conditions, contains, dependency_order, points
from autotuner.model.space import Categorical, Float, SearchSpace

NODES_PER_SEARCH = 20_000
"""Assignments that one search may try before it gives up undecided; every shipped space needs less than a hundredth."""
NODES_IN_ALL = 250_000
"""Assignments for one document: below two seconds on a slow core."""
_POINTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Constraints (by index) that no configuration meets together."""

    constraints: tuple[int, ...]
    certain: bool
    """False where the parameters have more values than were tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadChoice:
    """A choice that no legal configuration uses, and the constraints (by index) that exclude it."""

    parameter: str
    index: int
    choice: Scalar
    because: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Impossible:
    """A constraint (by index) that no value of a parameter meets where the parameter is active."""

    parameter: str
    constraint: int
    certain: bool
    """False where the parameters have more values than were tried."""


class _OutOfNodesError(Exception):
    """The search is undecided."""


class Search:
    """Searches one space; ``requirements`` are its constraints, parsed."""

    def __init__(self, space: SearchSpace, requirements: Sequence[Expression]) -> None:
        self._space = space
        self._requirements = requirements
        self._order = dependency_order(space)
        self._left = NODES_IN_ALL
        self._nodes = 0

    def contradictions(self) -> tuple[Contradiction, ...]:
        """The smallest sets of constraints that exclude every configuration: single ones, else pairs, else one larger set."""
        everything = range(len(self._requirements))
        for size in (1, 2):
            groups = [group for group in itertools.combinations(everything, size) if size == 1 or self._related(*group)]
            found = [group for group in groups if self.possible(group) is False]
            if found:
                return tuple(self._contradiction(group) for group in found)
        if self.possible(everything) is False:
            return (self._contradiction(self._core(tuple(everything))),)
        return ()

    def can_be_active(self, name: str) -> bool:
        """Whether the ``when:`` of a parameter holds anywhere, constraints apart; true when undecided."""
        return self.possible((), active=name) is not False

    def impossible(self) -> Iterator[Impossible]:
        """Constraints that rule a parameter out wherever it is active, and so what its ``when:`` speaks of."""
        for index, requirement in enumerate(self._requirements):
            for name in self._order:
                conditional = name in requirement.names and self._space.parameters[name].when is not None
                if conditional and self.possible([index], active=name) is False:
                    yield Impossible(parameter=name, constraint=index, certain=self._contradiction([index]).certain)

    def dead_choices(self) -> Iterator[DeadChoice]:
        """Choices that no configuration uses because the constraints that speak of the parameter exclude them."""
        for name, parameter in self._space.parameters.items():
            about = [index for index, requirement in enumerate(self._requirements) if name in requirement.names]
            if not isinstance(parameter, Categorical) or not about:
                continue
            for index, choice in enumerate(parameter.choices):
                if self.possible(about, active=name, value=choice) is False:
                    alone = [item for item in about if self.possible([item], active=name, value=choice) is False]
                    yield DeadChoice(parameter=name, index=index, choice=choice, because=tuple(alone[:1] or about))

    def possible(self, constraints: Iterable[int], *, active: str | None = None, value: Scalar | None = None) -> bool | None:
        """Whether a configuration meets these constraints (with a parameter active, at a value); ``None`` when undecided."""
        chosen = [self._requirements[index] for index in constraints]
        seeds = {name for requirement in chosen for name in requirement.names} | ({active} if active else set())
        names = self._with_ancestors(seeds)
        plan = _Plan(
            names=tuple(name for name in self._order if name in names),
            requirements=tuple(chosen),
            active=active,
            value=value,
        )
        self._nodes = min(NODES_PER_SEARCH, self._left)
        try:
            start: dict[str, Scalar | None] = dict(self._space.fixed)
            if any(requirement.truth(start) is False for requirement in chosen):
                return False
            return self._assign(plan, 0, start)
        except _OutOfNodesError:
            return None

    def _assign(self, plan: _Plan, index: int, seen: dict[str, Scalar | None]) -> bool:
        if index == len(plan.names):
            return True
        name = plan.names[index]
        for option in self._options(plan, name, seen):
            self._spend()
            seen[name] = option
            checks = (requirement for requirement in plan.requirements if name in requirement.names)
            if all(check.truth(seen) is not False for check in checks) and self._assign(plan, index + 1, seen):
                return True
            del seen[name]
        return False

    def _spend(self) -> None:
        if self._nodes == 0:
            raise _OutOfNodesError
        self._nodes -= 1
        self._left -= 1

    def _options(self, plan: _Plan, name: str, seen: dict[str, Scalar | None]) -> list[Scalar | None]:
        """Values to try; ``None`` stands for an inactive parameter."""
        when = self._space.parameters[name].when
        truth = True if when is None else Expression.parse(when).truth(seen)
        about_facts = when is not None and bool(Expression.parse(when).names - self._space.parameters.keys() - self._space.fixed.keys())
        may_be_active = truth is True or (truth is None and about_facts)
        values: list[Scalar | None] = []
        if may_be_active:
            values += [plan.value] if name == plan.active and plan.value is not None else self._points(plan, name)
        if truth is not True and name != plan.active:
            values.append(None)
        return values

    def _points(self, plan: _Plan, name: str) -> list[Scalar]:
        """The parameter's points and, where these are a sample, the numbers of the constraints with their neighbours."""
        parameter = self._space.parameters[name]
        tried = list(points(parameter, _POINTS))
        if self._exhaustive(name):
            return tried
        numbers = sorted(
            value
            for requirement in plan.requirements
            if name in requirement.names
            for value in requirement.constants
            if isinstance(value, int | float)
        )
        between = [(low + high) / 2 for low, high in itertools.pairwise(numbers)] if isinstance(parameter, Float) else []
        beside = [number + step for number in numbers for step in (-1, 0, 1)]
        return tried + [value for value in (*beside, *between) if value not in tried and contains(parameter, value)]

    def _exhaustive(self, name: str) -> bool:
        parameter = self._space.parameters[name]
        if isinstance(parameter, Categorical):
            return True
        if isinstance(parameter, Float) and parameter.step is None:
            return parameter.low == parameter.high
        return (parameter.high - parameter.low) / (parameter.step or 1) < _POINTS

    def _with_ancestors(self, names: Iterable[str]) -> set[str]:
        found: set[str] = set()
        pending = [name for name in names if name in self._space.parameters]
        while pending:
            name = pending.pop()
            if name not in found:
                found.add(name)
                pending += conditions(self._space, name)
        return found

    def _related(self, first: int, second: int) -> bool:
        """Whether two constraints share a parameter, directly or through conditions."""
        mine, theirs = (self._with_ancestors(self._requirements[index].names) for index in (first, second))
        return bool(mine & theirs)

    def _core(self, group: tuple[int, ...]) -> tuple[int, ...]:
        """The group without the constraints that the contradiction does not need."""
        for index in group:
            rest = tuple(other for other in group if other != index)
            if self.possible(rest) is False:
                return self._core(rest)
        return group

    def _contradiction(self, group: Sequence[int]) -> Contradiction:
        """Sampled parameters leave a doubt only where a constraint picks single values out."""
        doubtful = any(
            not self._exhaustive(name) and re.search(r"%|//|==|!=|\bin\b", self._requirements[index].text)
            for index in group
            for name in self._with_ancestors(self._requirements[index].names)
        )
        return Contradiction(constraints=tuple(group), certain=not doubtful)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """One question to the search: parameters in order, the constraints, and a parameter that must be active (at a value)."""

    names: tuple[str, ...]
    requirements: tuple[Expression, ...]
    active: str | None
    value: Scalar | None
