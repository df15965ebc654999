"""Pydantic's errors in plain words: what, which value, which limit, at its place, and every union as one problem."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from autotuner.documents import hints
from autotuner.documents.keys import Schema, allowed, place, split
from autotuner.documents.source import Path, Source
from autotuner.documents.wording import shown
from autotuner.model.document import written
from autotuner.model.near import did_you_mean, near, near_miss
from autotuner.model.space import CONCEPTS


@dataclass(frozen=True, slots=True)
class _Found:
    """One error of pydantic with its path in the document."""

    details: ErrorDetails
    path: Path
    branches: tuple[tuple[Path, str], ...]
    place: Schema
    """The JSON Schema of the value."""
    keys: tuple[str, ...]
    """Those that it may have as a mapping."""
    kind: str
    """Of the document."""

    @property
    def type(self) -> str:
        return self.details["type"]

    @property
    def on_key(self) -> bool:
        return self.details["loc"][-1:] == ("[key]",)


_CONCEPT = r"^[a-z][a-z0-9_]*$"
_PATTERNS = {
    r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$": (
        "lower-case letters, digits, '.', '_' and '-', 63 characters at most, a letter or digit at both ends",
        "write it like this: kimi-k2.6-chat",
    ),
    _CONCEPT: ("a concept: lower-case letters, digits and '_'", "write it like this: max_running"),
    r"^[A-Za-z_][A-Za-z0-9_]*$": ("the name of an environment variable: letters, digits and '_'", "write it like this: NCCL_ALGO"),
    r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:/.+)$": (
        "a reference to a secret: env:NAME or file:/absolute/path",
        "never write the secret itself into a document",
    ),
    r"^([01][0-9]|2[0-3]):[0-5][0-9]$": ("a time of day: HH:MM", "write it like this: 07:30"),
}

_KINDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
    "none_required": "empty",
}
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
_TRUTH_WORDS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


def report(source: Source, error: ValidationError, schema: Schema) -> None:
    """Add a problem to ``source`` for every independent mistake behind a validation error."""
    found = [_found(source, details, schema) for details in error.errors(include_url=False)]
    found = [item for item in found if not _refused_before(source, item)]
    for item in _without_echoes(_one_branch_each(source, found), schema):
        _report_one(source, item, schema)


def _found(source: Source, details: ErrorDetails, schema: Schema) -> _Found:
    loc = details["loc"]
    kind = str(schema["title"]).removeprefix("autotuner ")
    return _Found(details, *split(loc, source.value), place=place(schema, loc), keys=allowed(schema, loc), kind=kind)


def _refused_before(source: Source, item: _Found) -> bool:
    return any(item.path[: len(path)] == path for path in source.refused)


def _one_branch_each(source: Source, found: list[_Found]) -> list[_Found]:
    """Of every union only the branch that was most likely meant, and of its complaints about the same value only the first."""
    unions: dict[Path, dict[str, list[_Found]]] = defaultdict(lambda: defaultdict(list))
    for item in found:
        for path, branch in item.branches:
            unions[path][branch].append(item)
    meant = {path: _meant(path, source.get(*path), branches) for path, branches in unions.items()}
    return [item for item in found if all(meant[path] == branch for path, branch in item.branches)]


def _meant(path: Path, value: object, branches: Mapping[str, list[_Found]]) -> str:
    """The branch with the fewest complaints about its kind, then about its keys, then altogether."""

    def complaints(branch: str) -> tuple[bool, bool, int, int]:
        items = branches[branch]
        # A mapping with a misspelt key: the branch whose missing key is nearest to it.
        missing = [str(item.path[-1]) for item in items if item.type == "missing"]
        near_miss = isinstance(value, dict) and any(near(key, missing) for key in value)
        keys = sum(item.type in {"missing", "extra_forbidden"} for item in items)
        wrong_kind = any(item.path == path and (item.type in _KINDS or isinstance(value, dict)) for item in items)
        return wrong_kind, not near_miss, keys, len(items)

    return min(branches, key=complaints)


def _without_echoes(found: list[_Found], schema: Schema) -> Iterable[_Found]:
    """Without errors that only follow from others: a missing key that is there misspelt, the length of a list with wrong items."""
    misspelt = {
        (*item.path[:-1], near(item.path[-1], allowed(schema, item.details["loc"][:-1])))
        for item in found
        if item.type == "extra_forbidden"
    }
    below = {item.path[:length] for item in found for length in range(len(item.path))}
    for item in found:
        echo = (item.type == "missing" and item.path in misspelt) or (item.type == "too_short" and item.path in below)
        if not echo:
            yield item


def _report_one(source: Source, item: _Found, schema: Schema) -> None:
    message, hint = _words(item, schema)
    source.error(item.path, message, hint, key=item.on_key or item.type in {"missing", "extra_forbidden"})


Words = tuple[str, str]
"""A message and its hint."""


def _words(item: _Found, schema: Schema) -> Words:
    if item.type == "extra_forbidden":
        keys = allowed(schema, item.details["loc"][:-1])
        return f"unknown key '{_key(item)}'{_inside(item.path[:-1])}", did_you_mean(_key(item), keys)
    return _WORDS.get(item.type, _kind)(item)


def _key(item: _Found) -> str:
    """How the place is called: its key, with the index for an item of a list."""
    if not item.path:
        return "document"
    index = item.path[-1]
    return f"{item.path[-2]}[{index}]" if isinstance(index, int) and len(item.path) > 1 else str(index)


def _context(item: _Found) -> Mapping[str, object]:
    return item.details.get("ctx", {})


def _missing(item: _Found) -> Words:
    return f"the key '{_key(item)}' is missing{_inside(item.path[:-1])}", f"add '{_key(item)}:'"


def _options(text: object) -> list[str]:
    """The quoted words of ``'a', 'b' or 'c'``."""
    return re.findall(r"'([^']*)'", str(text))


def _choice(item: _Found) -> Words:
    options, value = _options(_context(item)["expected"]), item.details["input"]
    if len(options) == 1:
        return f"'{_key(item)}' must be {options[0]}, but is {shown(value)}", f"write {options[0]}"
    # A choice that stands beside models in a union: a mapping would have been right, too.
    also = " or a mapping" if item.branches and item.branches[-1][0] == item.path else ""
    return f"'{_key(item)}' must be one of {', '.join(options)}{also}, but is {shown(value)}", hints.one_of(
        value, options, item.place, item.kind
    )


def _pattern(item: _Found) -> Words:
    pattern, value = str(_context(item)["pattern"]), item.details["input"]
    meaning, hint = _PATTERNS.get(pattern, (f"text like {pattern}", hints.described(item.kind)))
    if item.on_key:
        concept = near(value, CONCEPTS) if pattern == _CONCEPT else None
        return f"the key '{value}' must be {meaning}", f"did you mean '{concept}'?" if concept else hint
    return f"'{_key(item)}' must be {meaning}, but is {shown(value)}", hint


def _bound(item: _Found) -> Words:
    words, name = _BOUNDS[item.type]
    return f"'{_key(item)}' must be {words} {_context(item)[name]:g}, but is {item.details['input']}", _by_place(item)


def _by_place(item: _Found) -> str:
    return hints.number(item.place) or hints.described(item.kind)


def _length(item: _Found) -> Words:
    context = _context(item)
    limit = context["min_length" if item.type == "too_short" else "max_length"]
    words = "at least" if item.type == "too_short" else "at most"
    return f"'{_key(item)}' needs {words} {limit} {'entry' if limit == 1 else 'entries'}, but has {context['actual_length']}", (
        f"{'add one' if item.type == 'too_short' else 'remove some'}; {hints.described(item.kind)}"
    )


def _wrong_tag(item: _Found) -> Words:
    context = _context(item)
    options, value = _options(context["expected_tags"]), context["tag"]
    name = _options(context["discriminator"])[0]
    return f"'{name}' of '{_key(item)}' must be one of {', '.join(options)}, but is {shown(value)}", (
        near_miss(value, options) or hints.described(item.kind)
    )


def _no_tag(item: _Found) -> Words:
    name = _options(_context(item)["discriminator"])[0]
    typo = near(name, item.details["input"])
    return f"the key '{name}' is missing in '{_key(item)}'", f"'{typo}' stands there: did you mean '{name}'?" if typo else f"add '{name}:'"


def _rule(item: _Found) -> Words:
    return f"in '{_key(item)}' {item.details['msg'].removeprefix('Value error, ')}", "correct one of the two"


def _kind(item: _Found) -> Words:
    """A value of the wrong kind; also everything that has no words of its own here."""
    value, wanted = item.details["input"], _KINDS.get(item.type)
    if wanted is None:
        message = item.details["msg"]
        return f"'{_key(item)}': {message[:1].lower()}{message[1:]}, but is {shown(value)}", hints.described(item.kind)
    if item.branches and item.branches[-1][0] == item.path and item.branches[-1][1] in {"bool", "int", "float", "str"}:
        scalar = len(item.path) != 2 or item.path[0] != "constraints"
        wanted = "text, a number, true or false" if scalar else "text or a mapping with 'require' and 'why'"
    return f"'{_key(item)}' must be {wanted}, but is {shown(value)}", _kind_hint(wanted, value) or hints.of_kind(
        wanted, item.place, item.keys, item.kind
    )


def _kind_hint(wanted: str, value: object) -> str | None:
    """What turns this very value into one of the kind that is wanted, if anything does."""
    if wanted == "text" and isinstance(value, bool | int | float):
        return f"quote it: '{written(value)}'"
    if wanted == "true or false" and isinstance(value, str) and value.lower() in _TRUTH_WORDS:
        return f"write {_TRUTH_WORDS[value.lower()]}: in YAML 1.2 {value} is text"
    if wanted in {"a number", "a whole number"} and isinstance(value, str):
        digits = value.replace("_", "").replace(",", "")
        return f"write {digits}, without quotes and separators" if digits.isdigit() else None
    if wanted == "a list" and isinstance(value, str | int | float):
        return f"write {json.dumps(str(value).split())}"
    return None


_WORDS: dict[str, Callable[[_Found], Words]] = {
    "missing": _missing,
    "literal_error": _choice,
    "enum": _choice,
    "string_pattern_mismatch": _pattern,
    **dict.fromkeys(_BOUNDS, _bound),
    "too_short": _length,
    "too_long": _length,
    "union_tag_invalid": _wrong_tag,
    "union_tag_not_found": _no_tag,
    "value_error": _rule,
}


def _inside(path: Path) -> str:
    dotted = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f" in '{dotted.lstrip('.')}'" if path else ""
