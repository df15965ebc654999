from __future__ import annotations

import pytest

from autotuner.quality.extract import code_of

CODE = "def double(n):\n    return 2 * n\n"


def runs(answer: str, value: int = 21) -> object:
    code = code_of(answer, "double")
    assert code is not None
    names: dict[str, object] = {"__name__": "answer"}
    exec(code, names)  # noqa: S102 - code of this test
    return names["double"](value)  # type: ignore[operator]


@pytest.mark.parametrize(
    "answer",
    [
        f"Here it is:\n```python\n{CODE}```\nIt doubles.",
        f"```\n{CODE}```",
        f"```javascript\n{CODE}```",
        f"~~~py\n{CODE}~~~",
        f"````markdown\n{CODE}````",
        CODE,
        f"Sure! This is it.\n\n{CODE}\nThat doubles a number, as you wanted.",
        "1. First\n   ```python\n   def double(n):\n       return 2 * n\n   ```\n",
        f"<think>perhaps ```python\ndef double(n):\n    return n\n``` or not</think>\n```python\n{CODE}```",
        f"```python\r\n{CODE}```".replace("\n", "\r\n"),
        f"```python\n{CODE}",
        f"```bash\npip install nothing\n```\n```python\n{CODE}```",
        f"```python\nprint(double(2))\n```\n```python\n{CODE}```\n```python\ndouble('x', 1)\n```",
    ],
    ids=[
        "fence",
        "no tag",
        "wrong tag",
        "tildes",
        "four ticks",
        "no fence",
        "no fence, prose around",
        "in a list",
        "after a thought",
        "carriage returns",
        "fence never closed",
        "shell beside",
        "examples beside",
    ],
)
def test_the_code_is_found(answer):
    assert runs(answer) == 42


def test_helpers_of_other_blocks_come_along():
    answer = "```python\nimport math\nFACTOR = 2\ndef times(n):\n    return math.prod([FACTOR, n])\n```\nand\n"
    answer += "```python\nfrom __future__ import annotations\ndef double(n):\n    return times(n)\n```"

    assert runs(answer) == 42


def test_of_two_definitions_the_first_counts():
    assert runs(f"```python\n{CODE}```\nor worse\n```python\ndef double(n):\n    return n\n```") == 42


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "I cannot do that.",
        "```python\ndef double(n):\n    return 2 *",
        "```python\ndef other(n):\n    return n\n```",
        "def double(n):\0",
    ],
)
def test_without_code_there_is_none(answer):
    assert code_of(answer, "double") is None


@pytest.mark.parametrize(
    "answer", ["(" * 5000, "```python\n" + "-" * 50_000 + "1\n```", "def double(n): return " + "[" * 3000, "```" * 20_000]
)
def test_hostile_text_is_only_text(answer):
    assert code_of(answer, "double") is None
