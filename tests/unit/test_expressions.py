from __future__ import annotations

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.model.expressions import Expression, ExpressionError
from autotuner.model.tokens import MAX_LENGTH

VALUES = {"tp": 8, "pp": 1, "spec": "off", "graphs": True, "mem": 0.5, "gone": None}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("-2 - -3", 1),
        ("7 // 2 + 7 % 2", 4),
        ("8 / 4 / 2", 1.0),
        ("10 - 3 - 2", 5),
        ("min(tp, 3, 5) + max(1, 2) + abs(-1)", 6),
        ("tp * pp <= 8", True),
        ("tp == 8.0", True),
        ("graphs", True),
        ("graphs == true", True),
        ("graphs == 1", False),
        ("spec == 'off'", True),
        ('spec != "off"', False),
        ("spec == 8", False),
        ("tp in [4, 8]", True),
        ("tp not in [4, 8]", False),
        ("spec in ['a', spec]", True),
        ("1 <= pp < 2 < tp", True),
        ("1 < pp < 2", False),
        ("not tp == 8", False),
        ("not not graphs", True),
        ("tp == 8 or gone and gone", True),
        ("true or gone", True),
        ("false and gone", False),
        ("1e3 == 1000", True),
        ("'a' < 'b'", True),
    ],
)
def test_values(text: str, value: object) -> None:
    result = Expression.parse(text).evaluate(VALUES)
    assert (result, type(result)) == (value, type(value))


@pytest.mark.parametrize(
    "text",
    [
        "gone",
        "absent > 1",
        "gone == gone",
        "true and gone",
        "false or gone",
        "not gone",
        "tp / 0 > 1",
        "tp % 0 == 0",
        "tp // 0 == 0",
        "spec < 8",
        "spec + 1 == 2",
        "graphs + 1 == 2",
        "graphs < true",
        "-spec == 1",
        "max(tp, gone) == 8",
        "gone in [1, 2]",
        "tp in [1, gone]",
        "tp not in [1, gone]",
        "1 < tp < gone",
        "spec and graphs",
        "1e15 * 1e15 * " + " * ".join(["1e15"] * 25) + " > 1",
    ],
)
def test_what_is_unknown(text: str) -> None:
    assert Expression.parse(text).truth(VALUES) is None


def test_a_decided_part_of_a_chain_decides() -> None:
    assert Expression.parse("9 < tp < gone").truth(VALUES) is False
    assert Expression.parse("tp in [gone, 8]").truth(VALUES) is True


@pytest.mark.parametrize(
    ("text", "column", "message", "hint"),
    [
        ("tp = 8", 4, "'=' is not known here", "did you mean '=='?"),
        ("a && b", 3, "'&&' is not known here", "did you mean 'and'?"),
        ("a & b", 3, "'&' is not known here", "did you mean 'and'?"),
        ("a || b", 3, "'||' is not known here", "did you mean 'or'?"),
        ("!a", 1, "'!' is not known here", "did you mean 'not'?"),
        ("a <> b", 3, "'<>' is not known here", "did you mean '!='?"),
        ("a => b", 3, "'=>' is not known here", "did you mean '>='?"),
        ("a ** 2", 3, "'**' is not known here", "there are no powers; multiply instead"),
        ("a AND b", 3, "an operator or the end is needed, but 'AND' stands here", "did you mean 'and'?"),
        ("a == True", 6, "'True' is written small", "did you mean 'true'?"),
        ("mx(1, 2) > 1", 1, "there is no function 'mx'", "did you mean 'max'?"),
        ("open(1) > 1", 1, "there is no function 'open'", "only min(…), max(…) and abs(…) can be called"),
        ("abs(1, 2) > 1", 1, "abs(…) takes one value", None),
        ("min(1) > 1", 1, "min(…) takes two values or more", None),
        ("a.b > 1", 2, "'.' is not known here", "names have no dots; write the plain name of a parameter or fact"),
        ("a == 'x", 6, "the text in quotes has no end", "close it with '"),
        ("(a > 1", 7, "')' is needed to close the parenthesis, but the expression ends here", None),
        ("a > ", 5, "a name, a number or a text is needed, but the expression ends here", None),
        ("", 1, "a name, a number or a text is needed, but the expression ends here", None),
        ("a in 3", 6, "'[' is needed after 'in', but '3' stands here", None),
        ("a in []", 7, "a name, a number or a text is needed, but ']' stands here", None),
        ("a > 010", 5, "010 starts with a zero", "write 10"),
        ("a > 1e16", 5, "the number is too large, 1e+15 is the limit", None),
        ("a > 1e999", 5, "the number is too large, 1e+15 is the limit", None),
        ("a > " + "9" * 900, 5, "the number is too large, 1e+15 is the limit", None),
        ("1 and a", 1, "'and' joins conditions, but one side is a number or a text", "compare it with something"),
        ("a or 'x'", 6, "'or' joins conditions, but one side is a number or a text", "compare it with something"),
        ("not 1", 1, "'not' joins conditions, but one side is a number or a text", "compare it with something"),
        ("__import__('os')", 1, "there is no function '__import__'", "only min(…), max(…) and abs(…) can be called"),
        ("[x for x in y]", 1, "a name, a number or a text is needed, but '[' stands here", None),
        ("lambda: 1", 7, "':' is not known here", None),
    ],
)
def test_what_cannot_be_read(text: str, column: int, message: str, hint: str | None) -> None:
    with pytest.raises(ExpressionError) as caught:
        Expression.parse(text)
    assert (caught.value.column, caught.value.message, caught.value.hint) == (column, message, hint)


@pytest.mark.parametrize("text", ["(" * 200 + "1", "not " * 200 + "a", "-" * 200 + "1", "min(1, " * 100, "a in [" * 100])
def test_nesting_is_bounded(text: str) -> None:
    with pytest.raises(ExpressionError, match="nested deeper than 32 levels"):
        Expression.parse(text)


def test_length_is_bounded() -> None:
    with pytest.raises(ExpressionError, match=f"{MAX_LENGTH} at most"):
        Expression.parse("a or " * 300 + "a")


def test_names_and_constants_are_known() -> None:
    expression = Expression.parse("spec == 'off' or min(tp, 4) in [1, pp] and true")
    assert expression.names == {"spec", "tp", "pp"}
    assert expression.constants == {"off", 4, 1}


def test_only_conditions_are_conditions() -> None:
    assert Expression.parse("tp > 1").condition
    assert Expression.parse("graphs").condition
    assert not Expression.parse("tp * 2").condition
    assert not Expression.parse("'x'").condition


def test_equal_texts_are_equal_expressions() -> None:
    assert Expression.parse("a > 1") == Expression.parse("a > 1")
    assert Expression.parse("a > 1") != Expression.parse("a > 2")


@given(st.text(max_size=120) | st.text(alphabet="ab1 .()[]<>=!&|+-*/%,'\"notrandinmx", max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    column = 1
    try:
        Expression.parse(text).truth({"a": 1, "b": None})
    except ExpressionError as error:
        column = error.column
    assert 1 <= column <= max(len(text), 1) + 1


_SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod}


def _binary(parts: tuple) -> tuple[str, int | None]:
    (left_text, left), sign, (right_text, right) = parts
    known = left is not None and right is not None and not (sign in {"//", "%"} and right == 0)
    return f"({left_text} {sign} {right_text})", _SIGNS[sign](left, right) if known else None


_numbers = st.recursive(
    st.integers(0, 50).map(lambda value: (str(value), value)),
    lambda inner: st.tuples(inner, st.sampled_from(sorted(_SIGNS)), inner).map(_binary),
    max_leaves=8,
)


@given(_numbers)
def test_arithmetic_agrees_with_python(pair: tuple[str, int | None]) -> None:
    text, value = pair
    assert Expression.parse(text).evaluate({}) == value


_truths = st.sampled_from([True, False, None])


@given(_truths, _truths)
def test_kleene_tables(left: bool | None, right: bool | None) -> None:  # noqa: FBT001
    values = {"a": left, "b": right}
    pair = (left, right)
    both = False if False in pair else None if None in pair else True
    either = True if True in pair else None if None in pair else False
    assert Expression.parse("a and b").truth(values) is both
    assert Expression.parse("a or b").truth(values) is either
    assert Expression.parse("not (a and b)").truth(values) is Expression.parse("not a or not b").truth(values)
