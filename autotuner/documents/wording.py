"""Wording: values as messages for people show them."""

from __future__ import annotations


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
