"""Negative controls: with a part of the safety taken out, the cells that this part is for must fail. Else the matrix tests nothing.

Fsync is not among them: without it only a power cut of a machine with a page cache of its own loses anything. ``MUTATIONS`` is where a
run on a virtual machine takes it from.
"""

from __future__ import annotations

import signal
import struct
import time
import uuid
from pathlib import Path

import pytest

from tests.hosts.machine import Machine, until
from tests.hosts.matrix import results
from tests.hosts.matrix.faults import FAULTS
from tests.hosts.matrix.mutations import MUTATIONS
from tests.hosts.matrix.scene import Fault, Scene, play
from tests.hosts.matrix.verdict import judge
from tests.hosts.matrix.watch import now

pytestmark = pytest.mark.host

CONTROLS = [
    ("no-timer", "controller-sigkill", "p5"),
    ("no-timer", "link-long", "p4"),
    ("no-reset-failed", "production-start-limit", "p9"),
]
MINUTE_US = 60_000_000


def wakes_at_us(machine: Machine) -> int:
    """The moment of each minute at which PID 1 lets coarse timers fire: it is derived from the id of the boot."""
    halves = struct.unpack("<QQ", uuid.UUID(machine.read("/proc/sys/kernel/random/boot_id").strip()).bytes)
    return (halves[0] ^ halves[1]) % MINUTE_US


def kill_when_a_coarse_timer_is_late(scene: Scene) -> None:
    """At an instant after which a timer without its accuracy fires half a minute too late."""
    wakes = wakes_at_us(scene.machine)

    def late_s() -> float:
        due_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000 + int(scene.fault.ttl_s * 1e6)
        return (wakes - due_us) % MINUTE_US / 1e6

    until(lambda: 32 < late_s() < 50, "an instant far from the timers of PID 1", patience_s=70)
    scene.fault_at = now()
    scene.controller.signal(signal.SIGKILL)


@pytest.mark.parametrize(("mutation", "fault", "phase"), [pytest.param(*control, id="-".join(control)) for control in CONTROLS])
def test_without_its_safety_the_cell_fails(host: Machine, folder: Path, mutation: str, fault: str, phase: str) -> None:
    fails(host, folder, mutation, FAULTS[fault], phase)


def test_with_the_default_accuracy_of_timers_the_host_comes_back_too_late(host: Machine, folder: Path) -> None:
    """Whatever else wakes PID 1 meanwhile has it look at coarse timers, too: one late timer in three tries is enough."""
    fault = Fault(act=kill_when_a_coarse_timer_is_late, kills=True, silences=True)
    fails(host, folder, "default-accuracy", fault, "p4", tries=3)


def fails(host: Machine, folder: Path, mutation: str, fault: Fault, phase: str, *, tries: int = 1) -> None:
    violations: list[str] = []
    for attempt in range(1, tries + 1):
        with play(host, folder / f"try-{attempt}", fault, phase, mutations=MUTATIONS[mutation]) as scene:
            violations = judge(scene, "R")
            if violations or attempt == tries:
                results.keep("control", f"{mutation}-{phase}", scene, [] if violations else ["nothing was violated"], found=violations)
        if violations:
            break
    assert any(violation.startswith("O1") for violation in violations), f"{mutation}: {violations or 'nothing was violated'}"


def test_without_a_sandbox_code_is_seen_to_get_out(host: Machine, folder: Path) -> None:
    """Else the judge of ``sandbox-escape`` would be blind."""
    with play(host, folder / "sandbox-escape-p6", FAULTS["sandbox-escape"], "p6", code="T", bare=True) as scene:
        assert scene.evidence is not None
        reached = scene.evidence.found()
        results.keep("control", "no-sandbox-p6", scene, [] if len(reached) >= 6 else ["somebody got out and was not seen"], found=reached)
    written = [violation for violation in reached if "was written" in violation]
    assert len(written) == 5, reached
    assert "sandbox: a process of this machine was killed from inside" in reached
    assert "sandbox: a server of this machine was reached from inside" in reached
    assert scene.controller.code == -signal.SIGKILL, "it killed its parent as well"
