"""Failures of a launch, raised by their consequence."""

from __future__ import annotations

from typing import NoReturn

from autotuner.errors import InfeasibleConfig, RetryTrial, StopStudy
from autotuner.model.host import Host
from autotuner.model.outcome import Consequence, Failure, Stage

TAIL_LINES = 20


class TransientFailure(RetryTrial):
    """A server failed for a reason that another try may not meet; ``failure`` says which."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause, hint=failure.remedy)
        self.failure = failure


class HostFailure(StopStudy):
    """A server failed because its host is in trouble; ``failure`` says how."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause, hint=failure.remedy)
        self.failure = failure


def raise_failure(failure: Failure) -> NoReturn:
    """Raise ``InfeasibleConfig``, ``RetryTrial`` or ``StopStudy``, each with the failure."""
    if failure.consequence is Consequence.TRANSIENT:
        raise TransientFailure(failure)
    if failure.consequence is Consequence.HOST_BROKEN:
        raise HostFailure(failure)
    raise InfeasibleConfig(failure)


def hung(stage: Stage, silent_s: float, limit_s: float, log: str) -> Failure:
    """No new progress marker for longer than ``limits.stage_timeout_s``."""
    cause = f"no progress for {silent_s:.0f} s in stage {stage} (limits.stage_timeout_s is {limit_s:g})"
    return _impatient("hung", stage, cause, "if this stage is merely slow on this host, raise limits.stage_timeout_s", log)


def never_ready(stage: Stage, limit_s: float, log: str) -> Failure:
    """The server did not generate a token within ``limits.ready_timeout_s``."""
    cause = f"not ready after {limit_s:g} s (limits.ready_timeout_s); last stage {stage}"
    return _impatient("never-ready", stage, cause, "if launches are merely slow on this host, raise limits.ready_timeout_s", log)


def _impatient(kind: str, stage: Stage, cause: str, remedy: str, log: str) -> Failure:
    return Failure(
        kind=kind,
        cls="hang",
        stage=stage,
        consequence=Consequence.INFEASIBLE,
        cause=cause,
        remedy=f"{remedy}; else see the end of the log",
        evidence=tail(log),
        confidence=0.5,
    )


def out_of_memory(stage: Stage, log: str) -> Failure:
    """The kernel ended it because memory of the host ran out."""
    return Failure(
        kind="host-oom",
        cls="memory",
        stage=stage,
        consequence=Consequence.INFEASIBLE,
        cause="the kernel ended it: the host, or the unit's limit, ran out of memory",
        remedy="look at journalctl -k; smaller CPU-side caches need less, and so do fewer processes beside it",
        evidence=tail(log),
        confidence=0.9,
    )


def interfered(host: Host, what: str, serving: str) -> StopStudy:
    """Somebody acted on the host while it was tuned: they win, and the host is not used any more."""
    return StopStudy(
        f"{host.name}: {what}; now {serving}. The host is left to whoever did that",
        hint="start again with the same command when the host is free; everything measured was kept",
    )


def tail(log: str) -> tuple[str, ...]:
    """The last lines of a log that say something."""
    return tuple([line.rstrip() for line in log.splitlines() if line.strip()][-TAIL_LINES:])
