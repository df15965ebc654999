"""Hints: the next edit for a value that its model refuses, read off the JSON Schema of its place."""

from __future__ import annotations

from collections.abc import Sequence

from autotuner.documents.keys import Schema
from autotuner.model.document import written
from autotuner.model.near import near_miss

_NUMBERS = {"number": "a number", "integer": "a whole number"}
_EXAMPLES = {
    "text": "write a single text",
    "true or false": "write true or false",
    "a list": "write its entries as a list: [first, second]",
    "a mapping": "write 'key: value' lines",
    "text, a number, true or false": "write a single value",
    "text or a mapping with 'require' and 'why'": "write a condition like this: tp * pp <= gpus",
}


def described(kind: str) -> str:
    """Where all keys of a kind of document are described with what they may be."""
    return f"`autotuner schema {kind}` describes what may stand here"


def one_of(value: object, options: Sequence[str], place: Schema, kind: str) -> str:
    """For a word that is none of ``options``, which the message lists."""
    meant = near_miss(value, options)
    out = leave_out(place)
    return meant or (f"{out}; {described(kind)}" if out else described(kind))


def number(place: Schema) -> str | None:
    """For a value outside of a number's bounds, or that is none: all its bounds, of which the message names one. ``None``: no number."""
    words = _NUMBERS.get(str(place.get("type")))
    return None if words is None else _or_out(f"write {words}{_bounds(place)}", place)


def of_kind(wanted: str, place: Schema, keys: Sequence[str], kind: str) -> str:
    """For a value of another kind than ``wanted``; ``keys`` are those that a mapping there may have."""
    if wanted in _NUMBERS.values():
        return number(place) or described(kind)
    if wanted == "a mapping" and keys:
        return _or_out(f"{_EXAMPLES[wanted]} with: {', '.join(keys)}", place)
    return _or_out(_EXAMPLES[wanted], place) if wanted in _EXAMPLES else described(kind)


def leave_out(place: Schema) -> str | None:
    """``leave it out for 30000``; ``None`` where the key is needed."""
    if "default" not in place:
        return None
    default = place["default"]
    shown = f"{default:g}" if isinstance(default, float) else written(default)
    return f"leave it out for {shown}" if isinstance(default, str | int | float) else "leave it out"


def _or_out(text: str, place: Schema) -> str:
    out = leave_out(place)
    return f"{text}, or {out}" if out else text


def _bounds(place: Schema) -> str:
    low, above, high = (place.get(key) for key in ("minimum", "exclusiveMinimum", "maximum"))
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}"
    words = f" of at least {low:g}" if low is not None else f" above {above:g}" if above is not None else ""
    return words if high is None else f"{words}{' and' if words else ''} of at most {high:g}"
