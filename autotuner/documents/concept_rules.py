"""Which values each concept can take, whatever the space and the engine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from autotuner.documents.source import Path, Source
from autotuner.documents.wording import shown
from autotuner.model.document import Scalar, written
from autotuner.model.kleene import same
from autotuner.model.near import near
from autotuner.model.space import CONCEPTS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What a concept's values are."""

    words: str
    example: str
    accepts: Callable[[object], bool]


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_COUNT = _Kind(
    words="a whole number of at least 1",
    example="8",
    accepts=lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1,
)
_SWITCH = _Kind(words="true or false", example="true", accepts=lambda value: isinstance(value, bool))
_WORD = _Kind(words="text", example="auto", accepts=lambda value: isinstance(value, str))
_SHARE = _Kind(
    words="a number between 0 and 1",
    example="0.85",
    accepts=lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1,
)
_KINDS: Mapping[str, _Kind] = {
    "spec": _WORD,
    "kv_dtype": _WORD,
    "attention_backend": _WORD,
    "graphs": _SWITCH,
    "prefix_caching": _SWITCH,
    "mem_fraction": _SHARE,
    "window": _Kind(
        words="none or a whole number of at least 1", example="none", accepts=lambda value: value == "none" or _COUNT.accepts(value)
    ),
    "chunked_prefill": _Kind(
        words="-1 or a whole number of at least 1",
        example="8192",
        accepts=lambda value: (_whole(value) and value == -1) or _COUNT.accepts(value),
    ),
}
_SWITCH_WORDS = {"on": "true", "yes": "true", "off": "false", "no": "false"}
_CONCEPT_SHAPE = re.compile(r"[a-z][a-z0-9_]*")


def check_concepts(source: Source) -> None:
    """Report unknown concepts, values of the wrong kind, choices that are there twice, and concepts that are both searched and fixed."""
    for path in _sections(source):
        for name in source.mapping(*path):
            if name not in CONCEPTS and _CONCEPT_SHAPE.fullmatch(name):
                match = near(name, CONCEPTS)
                hint = (
                    f"did you mean '{match}'?" if match else "a flag of the engine that no concept stands for goes under raw: {flag: value}"
                )
                source.error((*path, name), f"there is no concept '{name}'", hint, key=True)
    for path, value in _values(source):
        _check_value(source, path, _concept(path), value)
    for name in source.mapping("fixed"):
        if name in source.mapping("parameters"):
            source.error(("fixed", name), f"'{name}' is both searched and fixed", "remove it from parameters: or from fixed:", key=True)
    for name in source.mapping("parameters"):
        _check_choices(source, ("parameters", name))


def _sections(source: Source) -> Iterator[Path]:
    yield from (("parameters",), ("fixed",), ("baseline",))
    yield from (("seeds", index) for index, _ in source.mappings("seeds"))


def _values(source: Source) -> Iterator[tuple[Path, object]]:
    """Every value that a concept is given anywhere in the space."""
    for path in _sections(source):
        for name, given in source.mapping(*path).items():
            at = (*path, name)
            if path != ("parameters",):
                yield at, given
                continue
            for key in ("low", "high"):
                if source.get(*at, key) is not None:
                    yield (*at, key), source.get(*at, key)
            yield from (((*at, "choices", index), choice) for index, choice in enumerate(source.items(*at, "choices")))


def _concept(path: Path) -> str:
    return str(path[2] if path[0] == "seeds" else path[1])


def _check_value(source: Source, path: Path, concept: str, value: object) -> None:
    kind = _KINDS.get(concept, _COUNT)
    if concept not in CONCEPTS or kind.accepts(value) or not isinstance(value, str | int | float):
        return
    hint = f"write it like this: {kind.example}"
    if kind is _SWITCH and isinstance(value, str) and value.lower() in _SWITCH_WORDS:
        hint = f"write {_SWITCH_WORDS[value.lower()]}: in YAML 1.2 {value} is text"
    elif kind is _WORD and isinstance(value, bool):
        hint = "quote it: 'off'" if value is False else "quote it if it is text"
    elif concept == "window" and isinstance(value, str) and value.lower() in {"none", "off", "all", "full"}:
        hint = "did you mean 'none'?"
    source.error(path, f"'{concept}' must be {kind.words}, but is {shown(value)}", hint)


def _check_choices(source: Source, path: Path) -> None:
    choices = source.items(*path, "choices")
    scalars: list[Scalar] = []
    for index, choice in enumerate(choices):
        if not isinstance(choice, str | int | float):
            continue
        if any(same(choice, earlier) for earlier in scalars):
            source.error((*path, "choices", index), f"the choice {written(choice)} is there twice", "remove one of them")
        scalars.append(choice)
    if len(choices) == 1 and len(scalars) == 1:
        source.warning(
            (*path, "choices"),
            f"'{path[-1]}' has a single choice, so there is nothing to search",
            f"write it under fixed: {{{path[-1]}: {written(choices[0])}}}",
        )
