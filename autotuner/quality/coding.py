"""One answer to a coding problem: its code is taken out, run in the sandbox, and what it returned is compared here."""

from __future__ import annotations

from dataclasses import dataclass

from autotuner.quality.asking import Answer
from autotuner.quality.extract import code_of
from autotuner.quality.problems import Problem, first_fault
from autotuner.quality.sandbox import Sandbox, call

TOKENS = 1024
WORDING = "Answer with Python code in one code block, without examples. "


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one answer."""

    kind: str
    """``solved``, ``wrong`` (a wrong value or an exception), ``no-code``, ``truncated``, ``timeout``, ``killed``, ``no-values``,
    ``not-started`` or ``no-answer``."""
    detail: str = ""


def judge(problem: Problem, answer: Answer, sandbox: Sandbox) -> Verdict:
    """Run an answer. One that was cut off at its longest and is not right is truncated, not wrong."""
    if answer.error:
        return Verdict(kind="no-answer", detail=answer.error)
    found = _run(problem, answer.text, sandbox)
    if found.kind != "solved" and answer.truncated:
        return Verdict(kind="truncated", detail=f"cut off after {TOKENS} tokens")
    return found


def _run(problem: Problem, text: str, sandbox: Sandbox) -> Verdict:
    code = code_of(text, problem.name)
    if code is None:
        return Verdict(kind="no-code", detail=f"no code that defines {problem.name}")
    values = call(sandbox, code, problem.name, problem.calls)
    fault = first_fault(problem, values)
    if fault is None:
        return Verdict(kind="solved")
    return Verdict(kind="wrong" if values.found else values.how, detail=fault)
