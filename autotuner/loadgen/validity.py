"""When a measurement says more about the load generator than about the server: the limits, and the judgement. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from autotuner.loadgen.selfcheck import LoadCheck
from autotuner.model.measurement import ClientReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """What the load generator may cost a measurement. A cell in which one is broken is measured again, and never scored.

    Stamps are the kernel's, so lag does not falsify them until two chunks of one stream wait together; before that it only delays the next
    request of a lane. The limits lie where that begins to show in the numbers.
    """

    lag_p99_ms: float = 10.0
    """From the kernel's receive stamp to the read in user space. A lane asks again so much later than it could."""
    coalesced_share: float = 0.01
    """Of the chunks that bear tokens, how many may carry the stamp of a later one while the load generator stood still."""
    cpu_share: float = 0.85
    """Of one core, by one process."""
    steal_share: float = 0.05
    gc_pause_ms: float = 5.0
    clock_step_ms: float = 1.0
    repeats: int = 2
    """How often an invalid cell is measured again."""


_Limits = TypeVar("_Limits", bound=ClientLimits)


def relaxed(limits: _Limits) -> _Limits:
    """The same plan with limits that only a client that has come to a halt breaks.

    For servers whose numbers nobody takes for a machine's: a simulated engine shares its processors with the load generator and with the
    person's other work. A clock that is set is told all the same.
    """
    return replace(limits, lag_p99_ms=1000.0, coalesced_share=0.9, cpu_share=2.0, steal_share=0.9, gc_pause_ms=1000.0, clock_step_ms=50.0)


def client_report(clock: str, checks: Sequence[LoadCheck], *, coalesced: float, limits: ClientLimits) -> ClientReport:
    """The worst of all workers. ``coalesced`` is the share of chunks that carry the stamp of a later one."""

    def worst(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return max(known, default=None)

    kind: Literal["kernel", "user"] = "kernel" if clock == "kernel" else "user"
    report = ClientReport(
        clock=kind,
        reads=sum(check.reads for check in checks),
        lag_p50_ms=worst([check.lag_p50_ms for check in checks]),
        lag_p99_ms=worst([check.lag_p99_ms for check in checks]),
        lag_max_ms=worst([check.lag_max_ms for check in checks]),
        coalesced=coalesced,
        cpu=worst([check.cpu for check in checks]) or 0.0,
        steal=worst([check.steal for check in checks]),
        stalled=worst([check.stalled for check in checks]) or 0.0,
        gc_pause_max_ms=worst([check.gc_pause_max_ms for check in checks]) or 0.0,
        clock_step_ms=max((check.clock_step_ms for check in checks), key=abs, default=0.0),
    )
    return replace(report, invalid=tuple(_broken(report, limits)))


def _broken(report: ClientReport, limits: ClientLimits) -> Iterator[str]:
    lag_ms = report.lag_p99_ms
    if lag_ms is not None and lag_ms > limits.lag_p99_ms:
        yield f"answers waited {lag_ms:.1f} ms to be read (99th percentile), {limits.lag_p99_ms:g} ms are allowed"
    # A server or a proxy may send chunks together as well. Then the client was there, and only gaps between chunks cannot be had.
    if min(report.coalesced, report.stalled) > limits.coalesced_share:
        yield (
            f"{report.coalesced:.1%} of the chunks were read together with a later one while the load generator stood still for "
            f"{report.stalled:.1%} of the window, {limits.coalesced_share:.0%} are allowed"
        )
    if report.cpu > limits.cpu_share:
        yield f"a process of the load generator used {report.cpu:.0%} of a core, {limits.cpu_share:.0%} are allowed"
    if report.steal is not None and report.steal > limits.steal_share:
        yield f"the hypervisor took {report.steal:.1%} of the CPU time where the load is driven, {limits.steal_share:.0%} are allowed"
    if report.gc_pause_max_ms > limits.gc_pause_ms:
        yield f"garbage collection held the load generator for {report.gc_pause_max_ms:.1f} ms, {limits.gc_pause_ms:g} ms are allowed"
    if abs(report.clock_step_ms) > limits.clock_step_ms:
        yield f"the wall clock of the load generator moved by {report.clock_step_ms:+.1f} ms, {limits.clock_step_ms:g} ms are allowed"
