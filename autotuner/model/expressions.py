"""Expressions of ``when:`` and ``constraints:``: parsed by a small grammar, never evaluated as Python.

    either     = both {"or" both}
    both       = negation {"and" negation}
    negation   = "not" negation | comparison
    comparison = sum {("==" "!=" "<" "<=" ">" ">=") sum} | sum ["not"] "in" "[" either {"," either} "]"
    sum        = product {("+" | "-") product}
    product    = unary {("*" | "/" | "//" | "%") unary}
    unary      = "-" unary | atom
    atom       = number | 'text' | true | false | name | ("min" | "max" | "abs") "(" either {"," either} ")" | "(" either ")"

Truth has three values (Kleene): a name without a value is unknown, and unknown spreads unless the rest decides.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autotuner.model.document import Scalar
from autotuner.model.kleene import ORDER, Evaluate, Known, Values, all_of, any_of, as_truth, calculate, chained, member, negate
from autotuner.model.near import near_miss
from autotuner.model.tokens import ExpressionError, Token, number, tokens

__all__ = ["Expression", "ExpressionError"]

MAX_DEPTH = 32
"""Parentheses, signs and negations inside each other."""


_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
_COMPARISONS = frozenset({"==", "!=", *ORDER})
_CALLS: dict[str, Callable[..., float]] = {"min": min, "max": max, "abs": abs}
_WORDS = frozenset({"and", "or", "not", "in"})


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison of an expression, on its own."""

    column: int
    names: frozenset[str]
    evaluate: Evaluate


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression. Equal texts are equal expressions."""

    text: str
    names: frozenset[str]
    """Parameters and facts that it speaks of."""
    constants: frozenset[Scalar]
    """Numbers and texts that stand in it."""
    condition: bool
    """Whether it can be true or false: ``tp * pp`` cannot."""
    comparisons: tuple[Comparison, ...]
    _evaluate: Evaluate

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Read ``text``. Raises ``ExpressionError``; the same text is read once."""
        return _parse(text)

    def evaluate(self, values: Values) -> Known:
        """The value; ``None`` when it is unknown (a missing name, a division by zero, an order of text and number)."""
        return self._evaluate(values)

    def truth(self, values: Values) -> bool | None:
        """Whether it holds; ``None`` when unknown or when it yields no truth value."""
        return as_truth(self._evaluate(values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text


@functools.lru_cache(maxsize=4096)
def _parse(text: str) -> Expression:
    parser = _Parser(text)
    term = parser.whole()
    return Expression(text, frozenset(parser.names), frozenset(parser.constants), term.condition, tuple(parser.comparisons), term.evaluate)


@dataclass(frozen=True, slots=True)
class _Term:
    evaluate: Evaluate
    condition: bool
    """May yield a truth value."""
    compares: bool = False


class _Parser:
    """Recursive descent over the tokens; ``names``, ``constants`` and ``comparisons`` fill as it goes."""

    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self._at = 0
        self._depth = 0
        self.names: set[str] = set()
        self.constants: set[Scalar] = set()
        self.comparisons: list[Comparison] = []
        self._read: list[str] = []

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._tokens[self._at]
        self._at += token.kind != "end"
        return token

    def _accept(self, *texts: str) -> Token | None:
        token = self._next
        return self._take() if token.kind in {"sign", "name"} and token.text in texts else None

    def _expect(self, text: str, what: str) -> None:
        if self._accept(text) is None:
            raise self._unexpected(f"{text!r} is needed {what}")

    def _unexpected(self, wanted: str) -> ExpressionError:
        token = self._next
        hint = None
        if token.text.lower() in _WORDS | {"true", "false"} and token.text != token.text.lower():
            hint = f"did you mean '{token.text.lower()}'?"
        found = "the expression ends" if token.kind == "end" else f"{token.text!r} stands"
        return ExpressionError(f"{wanted}, but {found} here", token.column, hint)

    @contextlib.contextmanager
    def _nested(self) -> Iterator[None]:
        """Count nesting, so that no text can exhaust the stack."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError(f"nested deeper than {MAX_DEPTH} levels", self._next.column, "split it up")
        yield
        self._depth -= 1

    def whole(self) -> _Term:
        term = self.either()
        if self._next.kind != "end":
            raise self._unexpected("an operator or the end is needed")
        return term

    def either(self) -> _Term:
        return self._junction("or", self.both, any_of)

    def both(self) -> _Term:
        return self._junction("and", self.negation, all_of)

    def _junction(self, word: str, operand: Callable[[], _Term], join: Callable[[list[Evaluate], Values], bool | None]) -> _Term:
        column = self._next.column
        terms = [operand()]
        while True:
            if len(terms) > 1 or self._next.text == word:
                self._must_be_condition(terms[-1], column, word)
            if self._accept(word) is None:
                break
            column = self._next.column
            terms.append(operand())
        if len(terms) == 1:
            return terms[0]
        parts = [term.evaluate for term in terms]
        return _Term(lambda values: join(parts, values), condition=True)

    @staticmethod
    def _must_be_condition(term: _Term, column: int, word: str) -> None:
        if not term.condition:
            raise ExpressionError(f"'{word}' joins conditions, but one side is a number or a text", column, "compare it with something")

    def negation(self) -> _Term:
        column = self._next.column
        if self._accept("not") is None:
            return self.comparison()
        with self._nested():
            term = self.negation()
        self._must_be_condition(term, column, "not")
        return _Term(lambda values: negate(as_truth(term.evaluate(values))), condition=True)

    def comparison(self) -> _Term:
        column, before = self._next.column, len(self._read)
        term = self._compared()
        if term.compares:
            self.comparisons.append(Comparison(column, frozenset(self._read[before:]), term.evaluate))
        return term

    def _compared(self) -> _Term:
        first = self.sum()
        if self._next.text in {"in", "not"} and self._next.kind == "name":
            return self._membership(first)
        chain: list[tuple[str, Evaluate]] = []
        while (token := self._accept(*_COMPARISONS)) is not None:
            chain.append((token.text, self.sum().evaluate))
        if not chain:
            return first
        return _Term(lambda values: chained(first.evaluate(values), chain, values), condition=True, compares=True)

    def _membership(self, first: _Term) -> _Term:
        negated = self._accept("not") is not None
        self._expect("in", "after 'not'")
        self._expect("[", "after 'in'")
        items = self._items("]")
        return _Term(lambda values: member(first.evaluate(values), items, values, negated=negated), condition=True, compares=True)

    def _items(self, close: str) -> list[Evaluate]:
        with self._nested():
            items = [self.either().evaluate]
            while self._accept(",") is not None:
                items.append(self.either().evaluate)
        self._expect(close, "here")
        return items

    def sum(self) -> _Term:
        return self._left_to_right(self.product, "+", "-")

    def product(self) -> _Term:
        return self._left_to_right(self.unary, "*", "/", "//", "%")

    def _left_to_right(self, operand: Callable[[], _Term], *signs: str) -> _Term:
        term = operand()
        steps: list[tuple[Callable[[float, float], float], Evaluate]] = []
        while (token := self._accept(*signs)) is not None:
            steps.append((_ARITHMETIC[token.text], operand().evaluate))
        if not steps:
            return term
        first = term.evaluate

        def evaluate(values: Values) -> Known:
            result = first(values)
            for apply, other in steps:
                result = calculate(apply, result, other(values))
            return result

        return _Term(evaluate, condition=False)

    def unary(self) -> _Term:
        if self._accept("-") is None:
            return self.atom()
        with self._nested():
            term = self.unary()
        return _Term(lambda values: calculate(operator.neg, term.evaluate(values)), condition=False)

    def atom(self) -> _Term:
        if self._accept("(") is not None:
            with self._nested():
                term = self.either()
            self._expect(")", "to close the parenthesis")
            return term
        token = self._next
        if token.kind in {"end", "sign"} or token.text in _WORDS:
            raise self._unexpected("a name, a number or a text is needed")
        self._take()
        if token.kind == "name":
            return self._named(token)
        value: Scalar = number(token) if token.kind == "number" else token.text[1:-1]
        self.constants.add(value)
        return _Term(lambda _: value, condition=False)

    def _named(self, token: Token) -> _Term:
        name = token.text
        if self._accept("(") is not None:
            return self._call(token)
        if name in {"true", "false"}:
            return _Term(lambda _: name == "true", condition=True)
        if name in {"True", "False"}:
            raise ExpressionError(f"{name!r} is written small", token.column, f"did you mean '{name.lower()}'?")
        self.names.add(name)
        self._read.append(name)
        return _Term(lambda values: values.get(name), condition=True)

    def _call(self, token: Token) -> _Term:
        call = _CALLS.get(token.text)
        if call is None:
            hint = near_miss(token.text, _CALLS) or "only min(…), max(…) and abs(…) can be called"
            raise ExpressionError(f"there is no function {token.text!r}", token.column, hint)
        items = self._items(")")
        least, most = (1, 1) if token.text == "abs" else (2, len(items))
        if not least <= len(items) <= most:
            raise ExpressionError(f"{token.text}(…) takes {'one value' if least == 1 else 'two values or more'}", token.column)
        return _Term(lambda values: calculate(call, *(item(values) for item in items)), condition=False)
