"""Words and signs of the small language of ``when:`` and ``constraints:``."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_LENGTH = 1000
"""Characters of an expression."""
MAX_NUMBER = 10**15
"""Largest number that may be written; keeps every product far from the limits of floats."""


class ExpressionError(ValueError):
    """An expression that cannot be read: what is wrong, the column (from 1) and what to write instead."""

    def __init__(self, message: str, column: int, hint: str | None = None) -> None:
        super().__init__(f"{message} (column {column})")
        self.message = message
        self.column = column
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One word or sign; ``kind`` is ``number``, ``string``, ``name``, ``sign`` or ``end``."""

    kind: str
    text: str
    column: int


_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    |(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    |(?P<string>'[^'\n]*'|"[^"\n]*")
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<sign>\*\*|//|==|!=|<>|<=|>=|=<|=>|&&|\|\||[-+*/%<>()\[\],])
    """,
    re.VERBOSE,
)

_FOREIGN_SIGNS = {
    "=": "did you mean '=='?",
    "&&": "did you mean 'and'?",
    "&": "did you mean 'and'?",
    "||": "did you mean 'or'?",
    "|": "did you mean 'or'?",
    "!": "did you mean 'not'?",
    "<>": "did you mean '!='?",
    "=<": "did you mean '<='?",
    "=>": "did you mean '>='?",
    "**": "there are no powers; multiply instead",
    "^": "there are no powers; multiply instead",
    "?": "write the condition with 'and' and 'or'",
    ".": "names have no dots; write the plain name of a parameter or fact",
    "{": "write a list with '[' and ']'",
}


def tokens(text: str) -> list[Token]:
    """The words and signs of ``text``, with an ``end`` after the last. Raises ``ExpressionError``."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"the expression has {len(text)} characters, {MAX_LENGTH} at most are allowed", MAX_LENGTH, "split it up")
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match[0] in _FOREIGN_SIGNS:
            raise _foreign(text, at, match[0] if match else text[at])
        kind = match.lastgroup or "sign"
        if kind != "space":
            found.append(Token(kind=kind, text=match[0], column=at + 1))
        at = match.end()
    found.append(Token(kind="end", text="", column=len(text) + 1))
    return found


def _foreign(text: str, at: int, sign: str) -> ExpressionError:
    if sign in {"'", '"'}:
        return ExpressionError("the text in quotes has no end", at + 1, f"close it with {sign}")
    return ExpressionError(f"{text[at : at + len(sign)]!r} is not known here", at + 1, _FOREIGN_SIGNS.get(sign))


def number(token: Token) -> int | float:
    """The value of a number. Raises ``ExpressionError`` beyond ``MAX_NUMBER``."""
    digits = token.text.isdigit()
    # float() first: int() of thousands of digits is refused by Python with an error of its own.
    if float(token.text) > MAX_NUMBER:
        raise ExpressionError(f"the number is too large, {MAX_NUMBER:.0e} is the limit", token.column)
    if digits and len(token.text) > 1 and token.text.startswith("0"):
        raise ExpressionError(f"{token.text} starts with a zero", token.column, f"write {int(token.text)}")
    return int(token.text) if digits else float(token.text)
