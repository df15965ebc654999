"""The correctness gate: are the answers of a launch as good as those of the baseline without speculation?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from autotuner.model.quality import QualityPart, QualityReport
from autotuner.quality import coding
from autotuner.quality.asking import Answer, Asker
from autotuner.quality.comparing import agreement, broken, judge_canary, judge_coding, judge_greedy
from autotuner.quality.probe import Found
from autotuner.quality.problems import Questions, questions
from autotuner.quality.reference import Reference, References

GREEDY_TOKENS = 128
CANARY_TOKENS = 256
"""Room to think aloud before one word."""
AT_ONCE = 6
"""Coding questions in flight: answers under load are checked as well, and the time is bounded."""
LIMIT_S = 600.0
"""What is not asked by then is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the gate found, and everything that it rests on, as plain values."""

    report: QualityReport
    details: Mapping[str, object] = field(default_factory=dict)
    notice: str = ""
    """What a person should hear of it; empty for nothing."""


class Gate(Protocol):
    """Judges the answers of one launch."""

    def check(self, asker: Asker, *, number: int, speculative: bool) -> Checked:
        """Judge launch ``number``; ``speculative`` says that it drafts tokens, so that it can be no reference.

        Raises only what ``asker`` raises, and ``Refused`` when the place of a new reference belongs to another user.
        """
        ...


class NotChecked:
    """The gate that asks nothing, and says why."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def check(self, asker: Asker, *, number: int, speculative: bool) -> Checked:
        """As in ``Gate``."""
        return Checked(report=QualityReport.not_checked(self._reason))


class AnswerGate:
    """Asks the questions of ``data``, runs code in a sandbox, and compares with the reference in ``folder``."""

    def __init__(self, *, folder: Path, model: str, sandbox: Found, asked: Questions | None = None) -> None:
        self._references = References(folder)
        self._model = model
        self._found = sandbox
        self._questions = asked or questions()

    def check(self, asker: Asker, *, number: int, speculative: bool) -> Checked:
        """As in ``Gate``."""
        asked = self._questions
        canary = asker.ask([asked.canary], tokens=CANARY_TOKENS, at_once=1)[0]
        greedy = asker.ask(asked.greedy, tokens=GREEDY_TOKENS, at_once=1)
        verdicts, coded = self._code(asker)
        details: dict[str, object] = {"canary": canary.as_dict(), "greedy": _plain(greedy), "coding": coded}
        reference = self._references.load(digest=asked.digest, model=self._model)
        # A reference from before there was a sandbox is completed by the next launch that can.
        if not speculative and (reference is None or (verdicts and not reference.rounds)):
            reference = self._make(asker, number=number, canary=canary, greedy=greedy, verdicts=verdicts, details=details) or reference
        parts = (
            judge_canary(canary, asked.canary_answer, greedy, reference.canary if reference else None),
            judge_greedy(greedy, reference.greedy if reference else None, reference.agreement if reference else None),
            self._judge_code(verdicts, reference.rounds if reference else ()),
        )
        report = QualityReport.of(
            parts, sandbox=self._found.sandbox.name if self._found.sandbox else "", reference=reference.trial if reference else None
        )
        return Checked(report=report, details={**details, "report": asdict(report)}, notice=self._references.trouble)

    def _make(
        self,
        asker: Asker,
        *,
        number: int,
        canary: Answer,
        greedy: Sequence[Answer],
        verdicts: Mapping[str, str],
        details: dict[str, object],
    ) -> Reference | None:
        """Ask once more and keep both as the reference; ``None`` when these answers cannot be one."""
        again = asker.ask(self._questions.greedy, tokens=GREEDY_TOKENS, at_once=len(self._questions.greedy))
        verdicts_again, coded_again = self._code(asker)
        details |= {"greedy_again": _plain(again), "coding_again": coded_again}
        found = agreement(again, greedy)
        everything = (canary, *greedy, *again)
        if found is None or any(answer.error for answer in everything) or sum(broken(answer) is not None for answer in everything) > 1:
            return None
        made = Reference(
            digest=self._questions.digest,
            model=self._model,
            trial=number,
            greedy=tuple(greedy),
            agreement=round(found, 4),
            canary=canary,
            rounds=(dict(verdicts), verdicts_again) if verdicts else (),
        )
        self._references.save(made)
        return made

    def _code(self, asker: Asker) -> tuple[dict[str, str], list[dict[str, object]]]:
        """Problem → verdict, and the answers with what became of each; nothing without a sandbox."""
        sandbox = self._found.sandbox
        if sandbox is None:
            return {}, []
        problems = self._questions.problems
        answers = asker.ask([coding.WORDING + problem.ask for problem in problems], tokens=coding.TOKENS, at_once=AT_ONCE)
        verdicts: dict[str, str] = {}
        told: list[dict[str, object]] = []
        for problem, answer in zip(problems, answers, strict=True):
            asker.going_on()
            verdict = coding.judge(problem, answer, sandbox)
            verdicts[problem.name] = verdict.kind
            told.append({"problem": problem.name, "verdict": verdict.kind, "detail": verdict.detail, **answer.as_dict()})
        return verdicts, told

    def _judge_code(self, verdicts: Mapping[str, str], rounds: Sequence[Mapping[str, str]]) -> QualityPart:
        if self._found.sandbox is None:
            reason = f"no sandbox on this machine, and generated code is never run without one: {'; '.join(self._found.reasons)}"
            return QualityPart(name="coding", status="not_checked", reason=reason)
        return judge_coding(verdicts, rounds)


def _plain(answers: Sequence[Answer]) -> list[dict[str, str]]:
    return [answer.as_dict() for answer in answers]
