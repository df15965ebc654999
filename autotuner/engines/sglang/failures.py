"""Why a launch or a server failed: from its log, how it ended and where it was, to one ``Failure``."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from autotuner.engines.sglang import logtext, stages
from autotuner.engines.sglang.catalogue import Rule, notice_rules, rules
from autotuner.model.outcome import Consequence, Failure, Stage

TAIL_LINES = 20
TAIL_WIDTH = 400
_RECENT = 1000
_ORDER = {stage: index for index, stage in enumerate(Stage)}
_LATE = (Stage.READY, Stage.SERVE, Stage.STOP)
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
STOPPED = (0, *KILLED, *(code for asked in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT) for code in (-asked, 128 + asked)))


@dataclass(frozen=True, slots=True)
class _Found:
    rule: Rule
    match: re.Match[str]
    text: str


def classify(log: str, *, exit_code: int | None, stage: Stage) -> Failure:
    """The first rank's last exception decides; wrappers and what other ranks print because of it count only when it says nothing known.

    ``exit_code`` is as a shell gives it, negative for a signal, ``None`` while the process still runs. ``stage`` is where the caller saw
    it last; the log's own markers are finer, except that only the caller knows whether it served.
    """
    lines, told_to_stop = logtext.until_stopped(log)
    where = stage if stage in _LATE else (stages.last_stage("\n".join(lines)) or stage)
    tracebacks = logtext.blocks(lines)
    cleaned = [logtext.clean(line) for line in lines]
    plain = "\n".join(line for line in cleaned if not logtext.quiet(line))
    tail = _tail(cleaned)
    found = _known(tracebacks, plain)
    if found is not None:
        return _failure(found, where, tail)
    secondary = [rule for rule in rules() if rule.secondary]
    unknown = next((block for block in tracebacks if block.last and not _first(secondary, block.last)), None)
    said = unknown.last.splitlines()[0] if unknown else None
    wrapper = _first(secondary, unknown.text if unknown else plain)
    if wrapper is not None:
        return _failure(wrapper, where, tail, said)
    return _without_words(_ending(exit_code, where, said, told_to_stop=told_to_stop), where, tail)


def notices(log: str) -> tuple[str, ...]:
    """What the engine says that it changed, one sentence each, every sentence once."""
    said: dict[str, None] = {}
    for line in log.splitlines():
        text = logtext.clean(line)
        if logtext.quiet(text):
            continue
        for notice in notice_rules():
            match = notice.pattern.search(text)
            if match is not None:
                said.setdefault(notice.text.format(**match.groupdict()).strip())
    return tuple(said)


def _known(tracebacks: list[logtext.Block], plain: str) -> _Found | None:
    """The best match of a rule that names a cause; an exception may stand in a log without its traceback (a tail cut short)."""
    primary = [rule for rule in rules() if not rule.secondary]
    everywhere = [rule for rule in primary if rule.anywhere]
    found = next((hit for text in _exception_texts(tracebacks) if (hit := _first(primary, text))), None)
    return found or _first(everywhere, plain) or _first(primary, plain)


def _exception_texts(tracebacks: list[logtext.Block]) -> Iterator[str]:
    """From the most to the least telling: per traceback, first rank first, its last exception and then all of it."""
    for block in tracebacks:
        yield block.last
        yield block.text


def _first(candidates: Iterable[Rule], text: str) -> _Found | None:
    for rule in candidates:
        match = rule.pattern.search(text)
        if match is not None:
            return _Found(rule, match, text)
    return None


def _failure(found: _Found, where: Stage, tail: tuple[str, ...], said: str | None = None) -> Failure:
    """``said`` is the exception that a wrapper hides."""
    rule = found.rule
    at = where if where in rule.at or rule.stage is None else rule.stage
    meaning = rule.at.get(Stage.SERVE if at in _LATE else at, rule.meaning)
    line = said or next((line for line in found.text.splitlines() if rule.pattern.search(line)), found.match[0].splitlines()[-1])
    return Failure(
        kind=rule.id,
        cls=rule.cls,
        stage=at,
        consequence=meaning.consequence,
        cause=meaning.cause,
        remedy=meaning.remedy,
        evidence=(line.strip()[:TAIL_WIDTH], *tail),
        confidence=rule.confidence,
        facts=rule.facts(found.match),
    )


@dataclass(frozen=True, slots=True)
class _Ending:
    """What the way in which a server ended says by itself."""

    kind: str
    consequence: Consequence
    confidence: float
    cause: str
    remedy: str


def _without_words(ending: _Ending, where: Stage, tail: tuple[str, ...]) -> Failure:
    return Failure(
        kind=ending.kind,
        cls="unknown",
        stage=where,
        consequence=ending.consequence,
        cause=ending.cause,
        remedy=ending.remedy,
        evidence=tail,
        confidence=ending.confidence,
    )


def _ending(exit_code: int | None, where: Stage, said: str | None, *, told_to_stop: bool) -> _Ending:
    """What to make of a log that says nothing known.

    A crash is learned, with little confidence, so that it is not tried all night; a kill may come from anybody, so it is tried again.
    """
    if told_to_stop and exit_code in STOPPED:
        cause = "The server was told to stop by something else than this tuner."
        remedy = "Find out who stops it (a service manager, another operator), and keep them off while tuning."
        return _Ending("terminated", Consequence.TRANSIENT, 0.9, cause, remedy)
    if exit_code in KILLED:
        cause = "The server was killed (SIGKILL) without a word; the kernel does so when memory of the host runs out."
        return _Ending("killed", Consequence.TRANSIENT, 0.3, cause, "Look for 'Out of memory' or 'oom-kill' in: journalctl -k")
    if exit_code is None:
        cause = f"The server stopped making progress at stage {where}."
        remedy = "Read the end of the log; a hang at dist-init is often peer-to-peer access between GPUs (NCCL_P2P_DISABLE=1)."
        return _Ending("hang", Consequence.INFEASIBLE, 0.5, cause, remedy)
    how = f"{_how(exit_code)}: {said[:TAIL_WIDTH]}" if said else _how(exit_code)
    cause = f"The server ended at stage {where} for a reason that is not in the catalogue ({how})."
    return _Ending("unknown", Consequence.INFEASIBLE, 0.4, cause, "Read the end of the log.")


def _how(exit_code: int) -> str:
    try:
        return f"signal {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exit code {exit_code}"
    except ValueError:
        return f"signal {-exit_code}"


def _tail(lines: list[str]) -> tuple[str, ...]:
    """The last lines that tell something, and the very last one, whatever it says (progress, where a launch hangs)."""
    recent = [line[:TAIL_WIDTH] for line in lines[-_RECENT:] if line.strip()]
    telling = [line for line in recent[:-1] if not logtext.quiet(line)]
    return (*telling[-TAIL_LINES + 1 :], *recent[-1:])
