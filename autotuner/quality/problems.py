"""Coding problems and greedy questions, from the data beside this module; and whether values are the expected ones."""

from __future__ import annotations

import functools
import hashlib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from autotuner.quality.sandbox import Values

_RELATIVE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call and what it must return. ``value`` stays in this process."""

    args: tuple[object, ...]
    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One function to write."""

    name: str
    """Also the function's."""
    kind: str
    ask: str
    cases: tuple[Case, ...]

    @property
    def calls(self) -> list[list[object]]:
        """The arguments of every call: all of the problem's data that may go into a sandbox."""
        return [list(case.args) for case in self.cases]


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Everything that is asked."""

    problems: tuple[Problem, ...]
    greedy: tuple[str, ...]
    canary: str
    canary_answer: str
    digest: str
    """Of all of them: answers to other questions are not comparable."""


@functools.cache
def questions() -> Questions:
    """The questions of this version."""
    folder = files("autotuner.quality").joinpath("data")
    data = {name: folder.joinpath(f"{name}.toml").read_bytes() for name in ("problems", "questions")}
    problems = tuple(
        Problem(
            name=entry["name"],
            kind=entry["kind"],
            ask=entry["ask"],
            cases=tuple(Case(args=tuple(case["args"]), value=case["value"]) for case in entry["cases"]),
        )
        for entry in tomllib.loads(data["problems"].decode())["problem"]
    )
    plain = tomllib.loads(data["questions"].decode())
    return Questions(
        problems=problems,
        greedy=tuple(plain["greedy"]),
        canary=plain["canary"]["ask"],
        canary_answer=plain["canary"]["answer"],
        digest=hashlib.sha256(b"".join(data.values())).hexdigest()[:16],
    )


def first_fault(problem: Problem, values: Values) -> str | None:
    """The first case whose value is not the expected one, in words; ``None`` when all are right."""
    if len(values.found) != len(problem.cases):
        return f"{values.how}: {values.detail}"
    for case, found in zip(problem.cases, values.found, strict=True):
        if "value" not in found:
            return f"raised {str(found.get('error'))[:200]}"
        if not equal(found["value"], case.value):
            return f"a wrong value for {str(list(case.args))[:200]}"
    return None


def equal(found: object, expected: object) -> bool:
    """Whether a value as the sandbox writes it is the expected one. Tuples count as lists; ``True`` is not 1; floats have 9 digits."""
    if isinstance(expected, list):
        items = found.get("list") if isinstance(found, dict) else None
        return isinstance(items, list) and len(items) == len(expected) and all(map(equal, items, expected))
    if isinstance(expected, dict):
        pairs = found.get("dict") if isinstance(found, dict) else None
        return isinstance(pairs, list) and len(pairs) == len(expected) and _names(pairs) == set(expected) and _same_values(pairs, expected)
    if isinstance(expected, float) and isinstance(found, int | float) and not isinstance(found, bool):
        return _close(found, expected)
    if isinstance(found, float) and isinstance(expected, int) and not isinstance(expected, bool):
        return _close(found, expected)
    return type(found) is type(expected) and found == expected


def _names(pairs: list[object]) -> set[object]:
    return {pair[0] for pair in pairs if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)}


def _same_values(pairs: list[list[object]], expected: Mapping[str, object]) -> bool:
    return all(equal(pair[1], expected[str(pair[0])]) for pair in pairs)


def _close(found: float, expected: float) -> bool:
    try:
        return math.isclose(found, expected, rel_tol=_RELATIVE, abs_tol=_RELATIVE)
    except OverflowError:  # a whole number beyond every float
        return False
