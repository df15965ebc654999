"""Plain scalars by the core schema of YAML 1.2: ``on`` is text, ``1e-3`` a number, ``010`` refused because readers disagree on it."""

from __future__ import annotations

import math
import re

from autotuner.model.document import Scalar

MAX_DIGITS = 18
"""Digits of a number; more than this no setting needs, and some readers lose the last ones."""

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUTHS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


class UnclearScalarError(ValueError):
    """A scalar that is refused: what is unclear and what to write instead."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def resolve(text: str) -> Scalar | None:
    """The value of an unquoted scalar. Raises ``UnclearScalarError``."""
    if text in _NULLS:
        return None
    if text in _TRUTHS:
        return _TRUTHS[text]
    if _NOT_FINITE.fullmatch(text):
        raise UnclearScalarError(f"{text} is not a number that can be used", "write a finite number, or leave the key out")
    if _LEADING_ZERO.fullmatch(text):
        raise UnclearScalarError(f"{text} starts with a zero: some readers take it as octal", _zero_hint(text))
    if _INT.fullmatch(text) or _BASED.fullmatch(text):
        return _whole(text)
    if _FLOAT.fullmatch(text):
        value = float(text)
        if math.isinf(value):
            raise UnclearScalarError(f"{text} is too large for a number", "write a smaller number")
        return value
    return text


def _zero_hint(text: str) -> str:
    decimal = text.lstrip("+-").lstrip("0") or "0"
    if set(text) <= set("01234567") and len(text) <= MAX_DIGITS:
        return f"quote it ('{text}') if it is text; write {decimal} for the number, or {int(text, 8)} if octal was meant"
    return f"quote it ('{text}') if it is text, or write the number without the zero"


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS + 2:
        raise UnclearScalarError(f"a number of {len(text)} digits is too large, {MAX_DIGITS} digits is the limit", "quote it if it is text")
    return int(text, 0) if text.startswith(("0o", "0x")) else int(text)


def reads_as_text(text: str) -> bool:
    """Whether ``text`` without quotes is read as that same text."""
    try:
        return isinstance(resolve(text), str)
    except UnclearScalarError:
        return False
