"""Dialects: how one family of builds writes the concepts of a search space on its command line.

The format of the files is described at the head of ``engines/dialects/sglang.toml``.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from autotuner.engines.sglang.argv import Group, split
from autotuner.errors import UsageError
from autotuner.model.document import Scalar
from autotuner.model.host import Host
from autotuner.model.space import SearchSpace

VALUE = "{}"
DRAFTER = "{drafter}"
_WHOLE = re.compile(r"[+-]?\d+")

Form = tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Word:
    """How one concept is written."""

    concept: str
    type: type[bool | int | float | str]
    forms: tuple[Form, ...] = ()
    """Ways to write any value; the placeholder stands for it."""
    values: tuple[tuple[Scalar, tuple[Form, ...]], ...] = ()
    """Ways to write the values that are words."""
    reads: tuple[Form, ...] = ()
    absent: Scalar | None = None
    only_with: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    unsaid_by: frozenset[str] = frozenset()

    def forms_of(self, value: Scalar) -> tuple[Form, ...] | None:
        """Ways to write ``value``, best first; an empty form writes nothing. ``None`` when it has no such value."""
        if self.absent is not None and same(value, self.absent):
            return ((),)
        for known, forms in self.values:
            if same(value, known):
                return forms
        fits = type(value) is self.type or (self.type is float and type(value) is int)
        return self.forms if self.forms and fits else None

    @property
    def choices(self) -> tuple[Scalar, ...]:
        """The values that are words, the one that is written by nothing included."""
        silent = () if self.absent is None else (self.absent,)
        return (*silent, *(value for value, _ in self.values))

    def readable(self) -> Iterable[tuple[Scalar | None, Form]]:
        """Every way to read it: (the value, or ``None`` where the placeholder holds it; the form)."""
        for value, forms in self.values:
            yield from ((value, form) for form in forms if form)
        yield from ((None, form) for form in (*self.forms, *self.reads))

    @property
    def flags(self) -> frozenset[str]:
        """Every flag that says something about this concept."""
        said = (group.flag for _, form in self.readable() for group in form if group.values != (DRAFTER,))
        return frozenset(said) | self.unsaid_by

    def meant(self, config: Mapping[str, Scalar]) -> bool:
        """Whether the concept means anything beside these others."""
        return all(other in config and any(same(config[other], value) for value in allowed) for other, allowed in self.only_with.items())

    def parse(self, text: str) -> Scalar | None:
        """A value as it stands on a command line; ``None`` when it is not of this type."""
        if self.type is int:
            return int(text) if _WHOLE.fullmatch(text) else None
        if self.type is float:
            try:
                return float(text)
            except ValueError:
                return None
        return text


@dataclass(frozen=True, slots=True)
class Dialect:
    """All concepts of a family of builds, in the order in which they are written."""

    name: str
    words: Mapping[str, Word]
    renames: Mapping[str, str]
    detect: tuple[str, ...]


def same(one: Scalar, other: Scalar) -> bool:
    """Equality that keeps ``True`` and ``1`` apart."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def names() -> tuple[str, ...]:
    """The dialects that are shipped."""
    folder = resources.files("autotuner.engines") / "dialects"
    return tuple(sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml")))


@functools.cache
def load(name: str) -> Dialect:
    """A shipped dialect. Raises ``UsageError`` when there is none of this name."""
    if name not in names():
        raise UsageError(f"no dialect is called {name!r}", hint=f"use one of: {', '.join(names())}")
    table = _table(name)
    words = {concept: _word(concept, entry) for concept, entry in table["concepts"].items()}
    return Dialect(name, words, table.get("renames", {}), tuple(table.get("detect", ())))


def choose(flags: Iterable[str]) -> Dialect:
    """The dialect that is marked by the most of these flags; plain SGLang when none is."""
    known = set(flags)
    marked = [dialect for dialect in map(load, names()) if dialect.detect and known.issuperset(dialect.detect)]
    return max(marked, key=lambda dialect: len(dialect.detect), default=load("sglang"))


def of(host: Host, space: SearchSpace | None, flags: Iterable[str]) -> Dialect:
    """The one that the space or the host names, else the one that fits the flags. Raises ``UsageError`` as ``load`` does."""
    named = (space.dialect if space else None) or host.engine.dialect
    return load(named) if named else choose(flags)


def _table(name: str) -> dict[str, Any]:
    text = (resources.files("autotuner.engines") / "dialects" / f"{name}.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    base = table.pop("extends", None)
    return table if base is None else _over(_table(base), table)


def _over(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """Tables merge, everything else is replaced."""
    merged = dict(base)
    for key, value in top.items():
        merged[key] = _over(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
    return merged


_TYPES: dict[str, type[bool | int | float | str]] = {"bool": bool, "int": int, "float": float, "str": str}


def _word(concept: str, entry: Mapping[str, Any]) -> Word:
    kind = _TYPES[entry["type"]]
    values = tuple((key == "true" if kind is bool else key, _forms(forms)) for key, forms in entry.get("values", {}).items())
    return Word(
        concept,
        kind,
        forms=_forms(entry.get("forms", ())),
        values=values,
        reads=_forms(entry.get("reads", ())),
        absent=entry.get("absent"),
        only_with={other: tuple(allowed) for other, allowed in entry.get("only_with", {}).items()},
        unsaid_by=frozenset(entry.get("unsaid_by", ())),
    )


def _forms(forms: Sequence[Sequence[str]]) -> tuple[Form, ...]:
    return tuple(split(form) for form in forms)
