"""Three-valued logic (Kleene) and arithmetic that yields ``None`` where a value is unknown or the operation has no result."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from autotuner.model.document import Scalar

Values = Mapping[str, Scalar | None]
Known = Scalar | None
Evaluate = Callable[[Values], Known]

ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def as_truth(value: Known) -> bool | None:
    """The value if it is a truth value; unknown otherwise."""
    return value if isinstance(value, bool) else None


def negate(truth: bool | None) -> bool | None:  # noqa: FBT001 - three-valued truth is the subject here
    """``not``."""
    return None if truth is None else not truth


def any_of(parts: list[Evaluate], values: Values) -> bool | None:
    """``or``: one true part decides."""
    unknown = False
    for part in parts:
        truth = as_truth(part(values))
        if truth:
            return True
        unknown = unknown or truth is None
    return None if unknown else False


def all_of(parts: list[Evaluate], values: Values) -> bool | None:
    """``and``: one false part decides."""
    unknown = False
    for part in parts:
        truth = as_truth(part(values))
        if truth is False:
            return False
        unknown = unknown or truth is None
    return None if unknown else True


def chained(left: Known, chain: list[tuple[str, Evaluate]], values: Values) -> bool | None:
    """``a < b < c``: every neighbouring pair."""
    unknown = False
    for sign, part in chain:
        right = part(values)
        truth = compare(sign, left, right)
        if truth is False:
            return False
        unknown = unknown or truth is None
        left = right
    return None if unknown else True


def compare(sign: str, left: Known, right: Known) -> bool | None:
    """One comparison; unknown for an order of text and number, or of truth values."""
    if left is None or right is None:
        return None
    if sign in {"==", "!="}:
        return same(left, right) == (sign == "==")
    if isinstance(left, bool) or isinstance(right, bool) or isinstance(left, str) != isinstance(right, str):
        return None
    return ORDER[sign](left, right)


def member(value: Known, items: list[Evaluate], values: Values, *, negated: bool) -> bool | None:
    """``in [...]`` and ``not in [...]``."""
    truths = [compare("==", value, item(values)) for item in items]
    inside = True if True in truths else None if None in truths else False
    return negate(inside) if negated else inside


def calculate(apply: Callable[..., float], *operands: Known) -> float | None:
    """The result, or ``None`` where an operand is no number or the result is none."""
    numbers = [operand for operand in operands if isinstance(operand, int | float) and not isinstance(operand, bool)]
    if len(numbers) != len(operands):
        return None
    try:
        result = apply(*numbers)
        return result if math.isfinite(result) else None
    except (ZeroDivisionError, OverflowError):
        return None


def same(left: Scalar, right: Scalar) -> bool:
    """Whether two values are the same: ``8`` is ``8.0``, but ``true`` is not ``1``."""
    return isinstance(left, bool) == isinstance(right, bool) and left == right
