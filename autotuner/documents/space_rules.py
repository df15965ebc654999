"""What must hold in a SearchSpace beyond the kinds of its values: it can be satisfied, and its seeds lie in it."""

from __future__ import annotations

from collections.abc import Mapping

from autotuner.documents.concept_rules import check_concepts
from autotuner.documents.decidability import undecidable
from autotuner.documents.expression_rules import check_expressions, parsed, place
from autotuner.documents.satisfiability import Contradiction, DeadChoice, Impossible, Search
from autotuner.documents.source import Path, Source
from autotuner.engines.sglang import reserved
from autotuner.model.document import Scalar, written
from autotuner.model.expressions import Expression
from autotuner.model.legality import broken, canonical, contains, domain
from autotuner.model.space import CONCEPTS, SearchSpace


def check_space(source: Source, space: SearchSpace | None) -> None:
    """Report everything; what needs a whole space is left out when ``space`` is ``None`` because its values are wrong."""
    check_concepts(source)
    usable = check_expressions(source)
    if space is None:
        return
    _reserved_flags(source, space)
    if not usable or _undecidable(source, space):
        return
    if not _unsatisfiable(source, space):
        for index, seed in enumerate(space.seeds):
            _check_point(source, space, ("seeds", index), seed, "error")
        _check_point(source, space, ("baseline",), space.baseline, "warning")


def _reserved_flags(source: Source, space: SearchSpace) -> None:
    """Report flags under ``raw:`` that would override the tuner or a concept."""
    for name, value in space.raw.items() if space.engine == "sglang" else ():
        wrong = reserved.raw_entry(name, value, space)
        if wrong is not None:
            source.error(("raw", name), *wrong, key=True)


def _undecidable(source: Source, space: SearchSpace) -> bool:
    """Report comparisons that never come to an answer, whatever the host."""
    found = False
    for path, expression in parsed(source).items():
        for comparison in undecidable(space, expression):
            found = True
            source.report(
                place(source, path, comparison.column),
                f"a comparison in `{expression}` can never be decided{_of_what(space, comparison.names)}",
                "compare numbers with numbers and texts with texts, and divide by nothing that is always 0",
            )
    return found


def _of_what(space: SearchSpace, names: frozenset[str]) -> str:
    known = [f"{name}: {domain(space.parameters[name])}" for name in sorted(names & space.parameters.keys())]
    return f" with {'; '.join(known)}" if known else ""


def _unsatisfiable(source: Source, space: SearchSpace) -> bool:
    requirements = [Expression.parse(item.require) for item in space.requirements()]
    search = Search(space, requirements)
    never = [name for name in space.parameters if not search.can_be_active(name)]
    for name in never:
        when = space.parameters[name].when
        source.error(
            ("parameters", name, "when"),
            f"`{when}` never holds in this space, so '{name}' is never tried",
            f"correct the condition, or remove '{name}'",
        )
    found = search.contradictions()
    for contradiction in found:
        _report_contradiction(source, space, contradiction)
    impossible = [] if found else [each for each in search.impossible() if each.parameter not in never]
    for excluded in impossible:
        _report_impossible(source, space, excluded)
    if found or never or impossible:
        return True
    for dead in search.dead_choices():
        _report_dead(source, space, dead)
    return False


def _report_contradiction(source: Source, space: SearchSpace, found: Contradiction) -> None:
    texts = [space.requirements()[index].require for index in found.constraints]
    names = {name for text in texts for name in Expression.parse(text).names}
    domains = "; ".join(f"{name}: {domain(space.parameters[name])}" for name in space.parameters if name in names)
    fixed = "; ".join(f"{name}: {value}" for name, value in space.fixed.items() if name in names)
    known = "; ".join(part for part in (domains, fixed) if part)
    place = f" with {known}" if known else ""
    if len(texts) == 1:
        message = f"no configuration of this space meets `{texts[0]}`{place}"
    else:
        message = "no configuration of this space meets all of " + ", ".join(f"`{text}`" for text in texts) + place
    path: Path = ("constraints", found.constraints[-1])
    if found.certain:
        source.error(path, message, "loosen one of the constraints, or widen a parameter in it")
    else:
        source.warning(path, f"{message}, among the values tried", "some parameters have too many values to try them all")


def _report_impossible(source: Source, space: SearchSpace, found: Impossible) -> None:
    parameter = space.parameters[found.parameter]
    message = (
        f"`{space.requirements()[found.constraint].require}` holds for no {found.parameter} ({domain(parameter)}), "
        f"so nothing with `{parameter.when}` is ever tried"
    )
    path: Path = ("constraints", found.constraint)
    if found.certain:
        source.error(path, message, f"loosen the constraint, widen '{found.parameter}', or remove it with what it belongs to")
    else:
        source.warning(path, f"{message}, among the values tried", "some parameters have too many values to try them all")


def _report_dead(source: Source, space: SearchSpace, dead: DeadChoice) -> None:
    why = ", ".join(f"`{space.requirements()[index].require}`" for index in dead.because)
    source.warning(
        ("parameters", dead.parameter, "choices", dead.index),
        f"no legal configuration uses {dead.parameter}: {written(dead.choice)}, because of {why}",
        "remove the choice, or loosen the constraint",
    )


def _check_point(source: Source, space: SearchSpace, path: Path, values: Mapping[str, Scalar], severity: str) -> None:
    """A seed must be legal; a baseline may lie outside, since it is what runs today."""
    what = "the seed" if severity == "error" else "the baseline"
    for name, value in values.items():
        at = (*path, name)
        parameter = space.parameters.get(name)
        if parameter is None and severity == "error" and name in CONCEPTS and space.fixed.get(name) != value:
            source.error(at, f"{what} sets '{name}', which this space does not search", "remove it, or add it under parameters:", key=True)
        elif parameter is not None and not contains(parameter, value):
            source.report(
                source.mark(at),
                f"{what} sets {name} to {written(value)}, outside of {domain(parameter)}",
                "widen the parameter, or choose a value in it",
                severity=severity,
            )
        elif parameter is not None and parameter.when is not None and _off(parameter.when, space, values):
            source.warning(at, f"{what} sets '{name}', which has no effect unless {parameter.when}", "remove it", key=True)
    settled = {**canonical(space, values, {})}
    for item in space.requirements():
        if Expression.parse(item.require).truth(settled) is False:
            source.report(source.mark(path), f"{what} is not legal: {broken(item, settled)}", "correct its values", severity=severity)


def _off(when: str, space: SearchSpace, values: Mapping[str, Scalar]) -> bool:
    return Expression.parse(when).truth({**space.fixed, **values}) is False
