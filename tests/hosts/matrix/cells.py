"""The matrix: which fault strikes in which phase, and what must come of it.

p0 snapshot  p1 arm  p2 stop production  p3 start  p4 loading  p5 measuring  p6 gate  p7 record  p8 stop the candidate
p9 restore  p10 verify

A launch goes through p6 before p5: nothing is measured before its answers were judged.
"""

from __future__ import annotations

from collections import Counter

from tests.hosts.matrix.faults import FAULTS

PHASES = ("p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9", "p10")
CODES = {
    "R": "production is restored",
    "-": "production is not touched; where the fault passes and the tuner lives, it may go on as under C",
    "C": "the session continues, and production is restored at its end",
    "T": "the trial fails with a cause or is measured again, the next ones are measured, production is restored at the end",
    "L": "loud: exit code 5 with the command for a person; production is restored as soon as it can start",
    "E": "production is restored, the operator's change of its unit is kept and told",
    "O": "the operator wins: the session ends, says so, and never touches what the operator started",
    "S": "one tuner works, the other is refused",
}
_EARLY = "p0 p1"
_LATER = "p2 p3 p4 p5 p6 p7 p8 p9 p10"
_RESTORED = {"-": _EARLY, "R": _LATER}
_CONTINUES = {"C": f"{_EARLY} {_LATER}"}

TABLE: dict[str, dict[str, str]] = {
    "controller-sigkill": _RESTORED,
    "controller-sigterm": _RESTORED,
    "controller-double-sigint": _RESTORED,
    "controller-sigstop": _RESTORED,
    "link-short": _CONTINUES,
    "link-long": _RESTORED,
    "black-hole": _RESTORED,
    "bad-line": _CONTINUES,
    "session-killed": _CONTINUES,
    "sshd-stopped": _CONTINUES,
    "sshd-frozen": _CONTINUES,
    "host-killed": _RESTORED,
    "candidate-segfault": {"T": "p3 p4 p5 p6"},
    "candidate-exits": {"T": "p5 p6"},
    "candidate-sigkill": {"T": "p3 p4 p5 p6"},
    "candidate-never-ready": {"T": "p4"},
    "candidate-no-tokens": {"T": "p5 p6"},
    "candidate-stubborn": {"C": "p8", "R": "p9"},
    "candidate-in-band-error": {"T": "p5 p6"},
    "candidate-truncated": {"T": "p5 p6"},
    "candidate-http-500": {"T": "p5 p6"},
    "candidate-wrong-answers": {"T": "p6"},
    "production-fails-thrice": {"R": "p9"},
    "production-start-limit": {"R": "p9"},
    "production-slow": {"R": "p9"},
    "production-never": {"L": "p9 p10"},
    "unit-edited": {"-": _EARLY, "E": "p9 p10"},
    "operator-starts-production": {"O": "p2 p3 p4 p5 p6 p8", "R": "p9 p10"},
    "operator-stops-candidate": {"O": "p4 p5 p6 p8"},
    "second-controller": {"S": "p0 p1 p5"},
    "host-disk-full": {"-": _EARLY, "R": "p2 p3 p9 p10"},
    "host-disk-full-for-a-moment": {"T": "p4 p5 p6", "C": "p7 p8"},
    "controller-disk-full": {"-": _EARLY, "R": "p2 p3 p4 p6 p9 p10"},
    "controller-disk-full-for-a-moment": {"C": "p5 p6 p7 p8"},
    "database-locked": _CONTINUES,
    "database-read-only": _CONTINUES,
    "dbus-down": {"-": _EARLY, "C": "p2 p3 p4 p5 p6 p7 p8", "R": "p9 p10"},
    "timer-unarmable": {"-": "p1"},
    "load-worker-killed": {"T": "p5"},
    "load-worker-stuck": {"T": "p5"},
    "sandbox-fork-bomb": {"T": "p6"},
    "sandbox-memory": {"T": "p6"},
    "sandbox-flood": {"T": "p6"},
    "sandbox-forged-pass": {"T": "p6"},
    "sandbox-escape": {"T": "p6"},
    "host-key-changed": {"-": _EARLY, "R": "p4 p5 p6 p9 p10"},
}

CELLS: tuple[tuple[str, str, str], ...] = tuple(
    (fault, phase, code) for fault, row in TABLE.items() for phase in PHASES for code, phases in row.items() if phase in phases.split()
)
"""Fault, phase and code of every cell."""


def _representative() -> frozenset[str]:
    """Less than a third of the cells: the killed tuner in every phase, of every other fault each thing that must come of it once.

    Phases are taken in turn: each time the one that was taken least.
    """
    taken = Counter(PHASES)
    chosen = [("controller-sigkill", phase) for phase in PHASES]
    rows = [(fault, phases.split()) for fault, row in TABLE.items() if fault != "controller-sigkill" for phases in row.values()]
    for fault, phases in sorted(rows, key=lambda row: len(row[1])):
        phase = min(phases, key=lambda phase: (taken[phase], PHASES.index(phase)))
        taken[phase] += 1
        chosen.append((fault, phase))
    return frozenset(name(*cell) for cell in chosen)


def name(fault: str, phase: str) -> str:
    """The id of a cell: ``controller-sigkill-p4``."""
    return f"{fault}-{phase}"


REPRESENTATIVE = _representative()
"""Cells that run in CI: a fixed list, the same every time."""

assert set(TABLE) == set(FAULTS)
