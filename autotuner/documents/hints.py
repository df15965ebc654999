"""Hints: the nearest thing that would have been right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near(word: object, options: Iterable[str]) -> str | None:
    """The option that ``word`` most likely stands for."""
    known = {str(option).lower(): str(option) for option in options}
    text = str(word).lower()
    if text in known:
        return known[text]
    matches = difflib.get_close_matches(text, known, n=1, cutoff=0.6)
    return known[matches[0]] if matches else None


def near_miss(word: object, options: Iterable[str]) -> str | None:
    """``did you mean 'x'?``, or nothing where no option is near."""
    match = near(word, options)
    return f"did you mean '{match}'?" if match is not None and match != word else None


def did_you_mean(word: object, options: Iterable[str], *, otherwise: str = "known are") -> str:
    """``did you mean 'x'?``, or the list of what is known."""
    listed = list(options)
    return near_miss(word, listed) or f"{otherwise}: {', '.join(listed)}"


def written(value: object) -> str:
    """A value as it is written in a document."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def shown(value: object, limit: int = 60) -> str:
    """A value as it is called in a message: ``the text 'x'``, ``the number 8``, ``a list``."""
    match value:
        case None:
            return "empty"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the text {value if len(value) <= limit else value[:limit] + '…'!r}"
        case list() | tuple():
            return "a list"
        case _:
            return "a mapping"
