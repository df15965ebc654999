"""The expressions of a space: that they can be read, speak of things that exist, and do not wait for each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autotuner.documents.source import Mark, Path, Source
from autotuner.model.expressions import Expression, ExpressionError
from autotuner.model.facts import FACT_NAMES
from autotuner.model.near import did_you_mean
from autotuner.model.space import CONCEPTS

_EXAMPLE = "write it like this: tp * pp <= gpus"


def check_expressions(source: Source) -> bool:
    """Report what is wrong with ``when:`` and ``constraints:``; whether all of them can be used."""
    before = len(source.problems)
    found = {path: expression for path, text in _texts(source) if (expression := _parse(source, path, text)) is not None}
    for path, expression in found.items():
        _check_names(source, path, expression)
        _check_texts(source, path, expression)
    _check_cycles(source, {str(path[1]): expression for path, expression in found.items() if path[0] == "parameters"})
    return not any(problem.severity == "error" for problem in source.problems[before:])


def parsed(source: Source) -> dict[Path, Expression]:
    """Every expression of a space in which all of them can be read, by its place."""
    return {path: Expression.parse(text) for path, text in _texts(source)}


def _texts(source: Source) -> Iterator[tuple[Path, str]]:
    places: list[Path] = [("parameters", name, "when") for name in source.mapping("parameters")]
    for index, item in enumerate(source.items("constraints")):
        places.append(("constraints", index, "require") if isinstance(item, dict) else ("constraints", index))
    for path in places:
        text = source.get(*path)
        if isinstance(text, str):
            yield path, text


def _parse(source: Source, path: Path, text: str) -> Expression | None:
    try:
        expression = Expression.parse(text)
    except ExpressionError as error:
        source.report(place(source, path, error.column), f"in the expression: {error.message}", error.hint or _EXAMPLE)
        return None
    if not expression.condition:
        source.error(path, f"`{text}` is a value, not a condition", "compare it with something, as in: tp * pp <= gpus")
    return expression


def place(source: Source, path: Path, column: int) -> Mark:
    """Where a column of an expression is in the file; the beginning of the value where it spans lines."""
    at = source.mark(path)
    offset = source.text_offset.get(path)
    return at if offset is None else Mark(at.line, at.column + offset + column - 1)


def _check_names(source: Source, path: Path, expression: Expression) -> None:
    own = [*source.mapping("parameters"), *source.mapping("fixed")]
    for name in sorted(expression.names - {*own, *FACT_NAMES}):
        at = place(source, path, _column(expression.text, name))
        message = f"'{name}' is neither a parameter of this space nor a fact of a host"
        if name in _text_values(source, own):
            source.report(at, message, f"quote it, since it is a text: '{name}'")
        elif name in CONCEPTS:
            source.report(at, message, f"add '{name}' under parameters: or fixed:, or leave it out of the expression")
        else:
            source.report(at, message, did_you_mean(name, [*own, *FACT_NAMES]))


def _column(text: str, name: str) -> int:
    return next((index + 1 for index in range(len(text)) if text.startswith(name, index)), 1)


def _text_values(source: Source, names: list[str] | frozenset[str]) -> list[str]:
    """Texts that parameters or fixed concepts of these names can be."""
    values = [value for name in names for value in (source.get("fixed", name), *source.items("parameters", name, "choices"))]
    return [value for value in values if isinstance(value, str)]


def _check_texts(source: Source, path: Path, expression: Expression) -> None:
    """A text that no parameter in the expression can be is most likely misspelt."""
    known = _text_values(source, expression.names)
    for text in expression.constants:
        if known and isinstance(text, str) and text not in known:
            hint = did_you_mean(text, known)
            at = place(source, path, _column(expression.text, text))
            source.report(at, f"no parameter in this expression can be '{text}'", hint, severity="warning")


def _check_cycles(source: Source, whens: Mapping[str, Expression]) -> None:
    settled: set[str] = set()
    for name in whens:
        cycle = _cycle(name, whens, ())
        if cycle and not settled & set(cycle):
            circle = " → ".join((*cycle, cycle[0]))
            source.error(
                ("parameters", cycle[0], "when"), f"these conditions wait for each other: {circle}", "let one of them stand without when:"
            )
            settled |= set(cycle)


def _cycle(name: str, whens: Mapping[str, Expression], above: tuple[str, ...]) -> tuple[str, ...]:
    if name in above:
        return above[above.index(name) :]
    for other in sorted(whens[name].names & whens.keys()) if name in whens else ():
        found = _cycle(other, whens, (*above, name))
        if found:
            return found
    return ()
