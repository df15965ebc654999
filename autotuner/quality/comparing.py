"""Pure comparisons of answers: prefix agreement at temperature 0, answers that are no language at all, problems that were lost."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from statistics import fmean

from autotuner.model.quality import QualityPart, QualityStatus
from autotuner.quality.asking import Answer

FLOOR_SHARE = 0.5
"""The floor is this share of how far the baseline agrees with itself. Rounding flips a word here and there, after which two healthy
answers part; what a broken configuration says parts within a few words of every answer."""
USEFUL_AGREEMENT = 0.2
"""A baseline that agrees with itself on less says nothing about others."""
LEAST_LOST = 2
"""So many problems may be lost to rounding in any case."""
_UNJUDGED = ("truncated", "no-answer", "not-started")
_LOOP_WORDS = 48
_LOOP_DISTINCT = 3
_GARBAGE_SHARE = 0.2
_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[str]:
    """Words and signs, which stand for tokens: the server's own are not part of a chat answer."""
    return _WORD.findall(text)


def agreement(answers: Sequence[Answer], reference: Sequence[Answer]) -> float | None:
    """How far answers agree with a reference, from 0 to 1: the mean share of words before the first that differs.

    Questions without an answer on either side are left out; ``None`` when no other is left.
    """
    both = [(mine, other) for mine, other in zip(answers, reference, strict=True) if not (mine.error or other.error)]
    pairs = [(words(mine.text), words(other.text)) for mine, other in both]
    shares = [_common(mine, other) / max(len(mine), len(other)) for mine, other in pairs if mine or other]
    return fmean(shares) if shares else None


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    return next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))


def broken(answer: Answer) -> str | None:
    """Why an answer is no language at all, whatever was asked; ``None`` when it may be."""
    if answer.error or (answer.truncated and not answer.text.strip()):  # a long thought has no text yet
        return None
    text = answer.text.strip()
    if not text:
        return "empty"
    strange = sum(letter == "\ufffd" or unicodedata.category(letter) in ("Cc", "Cn", "Co") for letter in text if letter not in "\n\r\t")
    if strange > _GARBAGE_SHARE * len(text):
        return "no text"
    said = words(text)
    if len(said) >= _LOOP_WORDS and len(set(said)) <= _LOOP_DISTINCT:
        return f"nothing but {' '.join(sorted(set(said)))!r}"
    return None


def judge_greedy(answers: Sequence[Answer], first: Sequence[Answer] | None, self_agreement: float | None) -> QualityPart:
    """Greedy equality with the baseline that does not speculate: ``first`` are its answers, ``self_agreement`` how far they agreed."""
    if first is None or self_agreement is None:
        reason = "no reference yet: the baseline without speculation has not been asked"
        return QualityPart(name="greedy", status="not_checked", reason=reason)
    score = agreement(answers, first)
    if score is None:
        return QualityPart(name="greedy", status="not_checked", reason="no question was answered")
    floor = round(self_agreement * FLOOR_SHARE, 4)
    if self_agreement < USEFUL_AGREEMENT:
        reason = f"the baseline agrees with itself on {self_agreement:.0%} only, so that nothing can be told from agreement with it"
        return QualityPart(name="greedy", status="not_checked", score=round(score, 4), reason=reason)
    reason = (
        f"agrees with the baseline on {score:.0%} of the words; the floor is {floor:.0%}, the baseline with itself {self_agreement:.0%}"
    )
    return QualityPart(name="greedy", status="failed" if score < floor else "passed", score=round(score, 4), floor=floor, reason=reason)


def judge_canary(answer: Answer, expected: str, others: Sequence[Answer], reference: Answer | None) -> QualityPart:
    """The canary question, and whether most answers are language. A wrong answer counts only where the baseline's is right."""
    faults = [fault for other in (answer, *others) if (fault := broken(other)) is not None]
    given = [other for other in (answer, *others) if not other.error]
    counts = {"answers": len(given), "broken": len(faults)}

    def part(status: QualityStatus, reason: str, *, score: float | None = None, floor: float | None = None) -> QualityPart:
        return QualityPart(name="canary", status=status, score=score, floor=floor, reason=reason, counts=counts)

    if faults and len(faults) * 2 > len(given):
        return part("failed", f"{len(faults)} of {len(given)} answers are no language: {faults[0]}", score=0.0, floor=1.0)
    if expected in answer.text.lower():
        return part("passed", "the right answer", score=1.0, floor=1.0)
    said = f"answered {answer.text.strip()[:60]!r} instead of {expected!r}"
    if answer.error or answer.truncated:
        found = part("not_checked", f"no answer: {answer.error}" if answer.error else f"truncated before it was answered: {said}")
    elif reference is None:
        found = part("not_checked", f"{said}; no reference yet", score=0.0)
    elif expected not in reference.text.lower():
        found = part("passed", f"{said}, and so did the baseline", score=0.0)
    else:
        found = part("failed", f"{said}, which the baseline answered", score=0.0, floor=1.0)
    return found


def judge_coding(verdicts: Mapping[str, str], rounds: Sequence[Mapping[str, str]]) -> QualityPart:
    """Problems solved, against those that the baseline solved both times (``rounds``, its verdicts). Truncated ones are no loss."""
    counts = {kind: sum(verdict == kind for verdict in verdicts.values()) for kind in dict.fromkeys(verdicts.values())}
    solved, judged = counts.get("solved", 0), sum(verdict not in _UNJUDGED for verdict in verdicts.values())
    score = round(solved / judged, 4) if judged else None
    told = f"{solved} of {len(verdicts)} solved" + (f", {counts['truncated']} truncated" if "truncated" in counts else "")
    if score is None:
        return QualityPart(name="coding", status="not_checked", reason=f"{told}; nothing that could be judged", counts=counts)
    if not rounds:
        reason = f"{told}; no reference yet: the baseline without speculation has not been asked"
        return QualityPart(name="coding", status="not_checked", score=score, reason=reason, counts=counts)
    stable = [name for name in verdicts if all(earlier.get(name) == "solved" for earlier in rounds)]
    flips = sum(len({earlier.get(name) == "solved" for earlier in rounds}) > 1 for name in verdicts)
    cut = [name for name in stable if verdicts[name] in _UNJUDGED]
    lost = [name for name in stable if verdicts[name] != "solved" and name not in cut]
    allowed = max(LEAST_LOST, 2 * flips)
    floor = round(max(0, len(stable) - allowed) / judged, 4)
    if len(lost) > allowed:
        reason = f"{told}; {len(lost)} that the baseline solves are lost, {allowed} may be: {', '.join(lost[:5])}"
        return QualityPart(name="coding", status="failed", score=score, floor=floor, reason=reason, counts=counts)
    if len(cut) > allowed:
        reason = f"{told}; {len(cut)} that the baseline solves were cut off, not answered or not run"
        return QualityPart(name="coding", status="not_checked", score=score, reason=reason, counts=counts)
    if len(stable) <= allowed:
        reason = f"{told}; the baseline solves {len(stable)}, too few to lose any"
        return QualityPart(name="coding", status="passed", score=score, reason=reason, counts=counts)
    reason = f"{told}; {len(lost)} of the baseline's {len(stable)} lost, {allowed} may be"
    return QualityPart(name="coding", status="passed", score=score, floor=floor, reason=reason, counts=counts)
