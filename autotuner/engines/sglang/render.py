"""From a configuration to arguments, refused before a launch where this build could not take them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autotuner.engines.sglang.argv import Group, resolve, split
from autotuner.engines.sglang.dialect import DRAFTER, VALUE, Dialect, Form, Word, load, names
from autotuner.engines.sglang.help import near_misses
from autotuner.errors import InfeasibleConfig
from autotuner.model.configuration import Configuration
from autotuner.model.document import Scalar, written
from autotuner.model.facts import EngineBuild
from autotuner.model.outcome import Consequence, Failure, Stage


def concept_args(config: Configuration, dialect: Dialect, build: EngineBuild, drafter: str | None) -> tuple[str, ...]:
    """Arguments of all concepts, in the order of the dialect. Raises ``InfeasibleConfig``."""
    for concept in config:
        if concept not in dialect.words:
            raise _no_word(concept, dialect, build)
    args: list[str] = []
    for word in dialect.words.values():
        if word.concept in config and word.meant(config):
            args += _word_args(word, config[word.concept], dialect, build, drafter)
    return tuple(args)


def raw_args(raw: Mapping[str, Scalar], taken: Sequence[str]) -> tuple[str, ...]:
    """Arguments of ``raw:``; ``true`` is a bare flag, ``false`` none at all. A flag that is already in ``taken`` stays as it is there."""
    present = {group.flag for group in split(taken)}
    args: list[str] = []
    for name, value in raw.items():
        flag = name if name.startswith("-") else f"--{name}"
        if flag in present or value is False:
            continue
        args += [flag] if value is True else [flag, written(value)]
    return tuple(args)


def check_args(args: Sequence[str], dialect: Dialect, build: EngineBuild, origin: str) -> None:
    """Refuse flags and values that the build does not have; ``origin`` says who wrote them.

    Raises ``InfeasibleConfig`` that names the near miss.
    """
    for found in refusals(args, dialect, build, origin):
        raise found


def refusals(args: Sequence[str], dialect: Dialect, build: EngineBuild, origin: str) -> Iterator[InfeasibleConfig]:
    """One for every flag and every value that the build does not have."""
    for group in split(args):
        flag = resolve(group.flag, build.flags)
        if flag is not None:
            yield from _wrong_choices(flag, group, build, origin)
            continue
        meant = _meant(near_misses(group.flag, build.flags, dialect.renames), "")
        yield refusal(
            "unknown-flag",
            f"{build.engine} {build.version} has no flag {group.flag} ({origin}){meant and f', {meant}'}",
            meant or "the build's --help page lists what it accepts",
            flag=group.flag,
        )


def _wrong_choices(flag: str, group: Group, build: EngineBuild, origin: str) -> Iterator[InfeasibleConfig]:
    choices = build.flags[flag]
    for value in group.values if choices else ():
        if value not in choices:
            meant = _meant(near_misses(value, choices)[:1], "")
            yield refusal(
                "unknown-choice",
                f"{flag} of {build.engine} {build.version} does not take {value!r} ({origin}){meant and f', {meant}'}",
                f"{meant and f'{meant} '}it takes {', '.join(choices)}",
                flag=flag,
            )


def _word_args(word: Word, value: Scalar, dialect: Dialect, build: EngineBuild, drafter: str | None) -> tuple[str, ...]:
    forms = word.forms_of(value)
    if forms is None:
        raise _no_value(word, value, dialect, build)
    form = next((form for form in forms if all(group.flag in build.flags for group in form)), None)
    if form is None:
        missing = next(group.flag for group in forms[0] if group.flag not in build.flags)
        raise refusal(
            "unknown-flag",
            f"{word.concept}: {written(value)} needs {missing}, which {build.engine} {build.version} does not have",
            _meant(near_misses(missing, build.flags, dialect.renames), "it needs another build; the dialects are under engines/dialects"),
            flag=missing,
        )
    if drafter is None and any(DRAFTER in group.tokens for group in form):
        raise refusal(
            "no-drafter", f"{word.concept}: {written(value)} needs a drafter, but the host names none", "set model.drafter of the host"
        )
    return _fill(form, written(value), drafter or "")


def _no_word(concept: str, dialect: Dialect, build: EngineBuild) -> InfeasibleConfig:
    others = [name for name in names() if concept in load(name).words]
    elsewhere = f"builds of dialect {others[0]} have one" if others else "drop the parameter, or pass the engine's own flag under raw:"
    hint = _meant(near_misses(concept, dialect.words)[:1], elsewhere)
    return refusal("no-word-for-concept", f"{build.engine} {build.version} has no flag for {concept} (dialect {dialect.name})", hint)


def _no_value(word: Word, value: Scalar, dialect: Dialect, build: EngineBuild) -> InfeasibleConfig:
    takes = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}[word.type]
    words = [written(choice) for choice in word.choices]
    accepted = ", ".join([*words, *([takes] if word.forms else [])])
    others = [name for name in names() if word.concept in load(name).words and value in load(name).words[word.concept].choices]
    hint = f"it takes {accepted}" + (f"; {written(value)} needs a build of dialect {others[0]}" if others else "")
    return refusal(
        "unknown-choice", f"{word.concept} of {build.engine} {build.version} cannot be {written(value)!r} (dialect {dialect.name})", hint
    )


def _fill(form: Form, value: str, drafter: str) -> tuple[str, ...]:
    return tuple({VALUE: value, DRAFTER: drafter}.get(token, token) for group in form for token in group.tokens)


def _meant(known: Sequence[str], otherwise: str) -> str:
    return f"did you mean {' or '.join(known)}?" if known else otherwise


def refusal(kind: str, cause: str, remedy: str, **facts: Scalar) -> InfeasibleConfig:
    """A configuration that is refused before a launch."""
    failure = Failure(
        kind=kind, cls="infeasible", stage=Stage.RENDER, consequence=Consequence.INFEASIBLE, cause=cause, remedy=remedy, facts=facts
    )
    return InfeasibleConfig(failure)
