"""Answers with code in them, right ones and attacks, and the sandbox that they are run in."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from autotuner.quality.asking import Answer
from autotuner.quality.coding import judge
from autotuner.quality.probe import find_sandbox
from autotuner.quality.problems import questions
from autotuner.quality.sandbox import Sandbox, Values, call

SOLUTIONS = Path(__file__).parent / "data" / "quality" / "solutions.py"
PROBLEMS = {problem.name: problem for problem in questions().problems}
PALINDROME = PROBLEMS["is_palindrome"]


def sandbox_or_skip(*hidden: Path) -> Sandbox:
    found = find_sandbox(hidden)
    if found.sandbox is None:
        pytest.skip(f"no sandbox: {'; '.join(found.reasons)}")
    return found.sandbox


def solution(name: str) -> str:
    tree = ast.parse(SOLUTIONS.read_text())
    wanted = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) or getattr(node, "name", "") == name]
    return "\n".join(map(ast.unparse, wanted))


def solved(sandbox: Sandbox) -> bool:
    return judge(PALINDROME, fenced(solution("is_palindrome")), sandbox).kind == "solved"


def fenced(code: str, finish: str = "stop") -> Answer:
    return Answer(text=f"```python\n{code}\n```", finish_reason=finish)


def attack(sandbox: Sandbox, body: str, *arguments: object) -> Values:
    """Call ``attack(*arguments)`` with this body, whose ``return`` says what it reached."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    code = f"import os, sys, socket, time, ctypes, subprocess, threading, signal\ndef attack(*given):\n{lines}\n"
    return call(sandbox, code, "attack", [list(arguments)])


def value(values: Values) -> object:
    assert values.found, values
    return values.found[0].get("value", values.found[0])
