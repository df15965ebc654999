"""Decidability: whether the comparisons of an expression can come to an answer at all, judged by trying values.

A text and a number have no order and a division by zero no result: such a comparison is unknown whatever the host, and would be passed
over in silence. Facts of a host stand in with values of their kind.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from autotuner.model.document import Scalar
from autotuner.model.expressions import Comparison, Expression
from autotuner.model.legality import points
from autotuner.model.space import SearchSpace

_TRIES = 5_000
"""Assignments per comparison; what needs more is taken for decidable."""
_POINTS = 8
_NUMBERS: tuple[Scalar, ...] = (8, 1, 3)
_TRUTHS: tuple[Scalar, ...] = (True, False)
_TRUTH_FACTS = frozenset({"nvlink", "has_drafter"})


def undecidable(space: SearchSpace, expression: Expression) -> Iterator[Comparison]:
    """The comparisons that no value of what they speak of decides."""
    for comparison in expression.comparisons:
        names = sorted(comparison.names)
        grid = itertools.product(*(_values(space, name) for name in names))
        tried = list(itertools.islice(grid, _TRIES + 1))
        if len(tried) <= _TRIES and all(comparison.evaluate(dict(zip(names, values, strict=True))) is None for values in tried):
            yield comparison


def _values(space: SearchSpace, name: str) -> tuple[Scalar, ...]:
    if name in space.parameters:
        return points(space.parameters[name], _POINTS)
    if name in space.fixed:
        return (space.fixed[name],)
    return _TRUTHS if name in _TRUTH_FACTS else _NUMBERS
