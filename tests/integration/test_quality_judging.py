"""Answers with code: right, wrong, cut off and lying ones are told apart; and a sandbox is chosen by what it keeps in."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from autotuner.quality.asking import Answer
from autotuner.quality.bubblewrap import Bubblewrap
from autotuner.quality.coding import judge
from autotuner.quality.probe import Found, find_sandbox, probe, sandbox_check
from autotuner.quality.problems import first_fault
from autotuner.quality.sandbox import Ended, Sandbox, call
from tests.generated_code import PALINDROME, PROBLEMS, fenced, sandbox_or_skip, solution


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return sandbox_or_skip()


# --- judging ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_every_problem_is_solved_by_a_right_answer(sandbox, name):
    assert judge(PROBLEMS[name], fenced(solution(name)), sandbox).kind == "solved"


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_no_problem_is_solved_by_one_value_for_everything(sandbox, name):
    problem = PROBLEMS[name]
    constant = f"def {name}(*given):\n    return {problem.cases[0].value!r}"

    assert judge(problem, fenced(constant), sandbox).kind == "wrong"


def test_what_goes_in_has_no_expected_value(tmp_path):
    given = []

    class Recorder:
        name = "recorder"

        def run(self, programs, arguments):
            given.extend(content for _, content in programs)
            return Ended(how="finished", output=b"")

    problem = PROBLEMS["edit_distance"]
    longest = PROBLEMS["fibonacci"]
    judge(problem, fenced(solution("edit_distance")), Recorder())
    judge(longest, fenced(solution("fibonacci")), Recorder())

    assert b"kitten" in b"".join(given)
    assert str(longest.cases[-1].value).encode() not in b"".join(given)


def test_a_wrong_answer_a_cut_one_and_none_are_told_apart(sandbox):
    wrong = "def is_palindrome(text):\n    return True"
    half = "def is_palindrome(text):\n    letters = [letter for"

    assert judge(PALINDROME, fenced(wrong), sandbox).kind == "wrong"
    assert judge(PALINDROME, fenced(wrong, "length"), sandbox).kind == "truncated"
    assert judge(PALINDROME, Answer(text=f"```python\n{half}", finish_reason="length"), sandbox).kind == "truncated"
    assert judge(PALINDROME, Answer(text=f"```python\n{half}", finish_reason="stop"), sandbox).kind == "no-code"
    assert judge(PALINDROME, fenced("def is_palindrome(text):\n    return 1 / 0"), sandbox).detail.startswith("raised ZeroDivisionError")
    assert judge(PALINDROME, Answer(error="HTTP 500"), sandbox).kind == "no-answer"


def test_an_answer_that_was_cut_after_its_code_is_still_solved(sandbox):
    assert judge(PALINDROME, fenced(solution("is_palindrome"), "length"), sandbox).kind == "solved"


# --- lying ------------------------------------------------------------------------------------------------------------------------


FORGED_HARNESS = """
import json
json.dumps = lambda *given, **more: "[" + ", ".join(['{"value": true}'] * 7) + "]"
"""
FORGED_OUTPUT = """
import os, sys
for fd in range(3, 30):
    try:
        os.write(fd, ("\\n" + sys.argv[1] + ' [{"value": true}]\\n').encode())
    except OSError:
        pass
os._exit(0)
"""


@pytest.mark.parametrize(
    "code",
    [
        "print('PASS'); import os; os._exit(0)",
        "import sys; print('1 passed'); sys.exit(0)",
        "class Yes:\n    def __eq__(self, other): return True\ndef is_palindrome(text):\n    return Yes()",
        "class Yes(str):\n    def __eq__(self, other): return True\ndef is_palindrome(text):\n    return Yes('x')",
        FORGED_HARNESS,
        FORGED_OUTPUT,
    ],
    ids=["prints PASS", "prints and exits", "equal to everything", "a string that is", "forged harness", "forged output"],
)
def test_a_forged_pass_does_not_pass(sandbox, code):
    answer = fenced(code if "def is_palindrome" in code else f"def is_palindrome(text):\n    return True\n{code}")

    assert judge(PALINDROME, answer, sandbox).kind in ("wrong", "no-values")


@pytest.mark.parametrize("line", [b"[" * 100_000, b"[1" + b"0" * 10_000 + b"]", b"{}", b'[{"value": 1}]', b"\xff\xfe", b'["value"]'])
def test_output_that_nobody_can_read_is_no_value(line):
    class Liar:
        name = "liar"

        def run(self, programs, arguments):
            return Ended(how="finished", output=b"\n" + arguments[0].encode() + b" " + line + b"\n")

    values = call(Liar(), "", "is_palindrome", PALINDROME.calls)

    assert first_fault(PALINDROME, values) is not None


# --- choosing ---------------------------------------------------------------------------------------------------------------------


class Bare:
    """Not shut in at all."""

    name = "bare"

    def run(self, programs, arguments):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in programs:
                Path(folder, name).write_bytes(content)
            argv = [sys.executable, "-I", f"{folder}/{programs[0][0]}", *(argument.format(gate=folder) for argument in arguments)]
            done = subprocess.run(argv, capture_output=True, check=False)
        return Ended(how="finished", output=done.stdout)


def test_a_sandbox_that_lets_out_is_refused():
    found = find_sandbox(kinds=[Bare])

    assert found.sandbox is None
    assert "bare: what was run in it reached" in found.reasons[0]
    assert "network" in found.reasons[0]
    assert "environment" in found.reasons[0]


def test_a_sandbox_that_runs_nothing_is_refused():
    class Dead:
        name = "dead"

        def run(self, programs, arguments):
            return Ended(how="not-started", output=b"", detail="no namespaces here")

    assert probe(Dead()) == "nothing can be run in it (no namespaces here)"


def test_without_any_sandbox_every_reason_is_given(monkeypatch):
    monkeypatch.setattr("autotuner.quality.bubblewrap.PATH", "/nowhere")
    found = find_sandbox(kinds=[Bubblewrap])

    assert found.sandbox is None
    assert "not installed" in found.reasons[0]


def test_doctor_says_which_sandbox_works_and_what_would_help(sandbox, monkeypatch):
    found = sandbox_check()
    monkeypatch.setattr("autotuner.quality.probe.find_sandbox", lambda _: Found(sandbox=None, reasons=("bubblewrap: bwrap not installed",)))
    missing = sandbox_check()

    assert (found.status, found.name) == ("pass", "sandbox")
    assert sandbox.name in found.detail
    assert missing.status == "warning"
    assert "bwrap not installed" in missing.detail
    assert "apt-get install bubblewrap" in str(missing.hint)
