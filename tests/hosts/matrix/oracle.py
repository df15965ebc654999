"""What must hold after a cell. Judged from the observer's log, the host's inventory and what the tuner said and kept.

O1 production serves again within T_r, with the command line, text, enablement and models of before, or never stopped
O2 nothing of ours is left on the host: no unit, timer, lease, session or process
O3 at most one engine at every sample
O4 every acknowledged result is kept, once, and no trial is left open by a tuner that ended by itself
O5 what the tuner said, and its exit code, are true
O6 other hosts are unaffected: cells run side by side, each on a host of its own that it judges
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hosts.machine import Machine
from tests.hosts.matrix.controller import LABEL, PORT, STOP_S, UNIT, Controller
from tests.hosts.matrix.watch import Sample

START_S = 10.0
"""Start-to-healthy of production on a busy machine, and the observer's own period."""
BOOT_S = 15.0
UNDER_WAY_S = 1.0
NOT_RESTORED = 5


@dataclass(frozen=True, slots=True)
class Before:
    """What the host was like before the cell."""

    argv: str
    invocation: str
    text: str
    enabled: str

    @classmethod
    def of(cls, machine: Machine, sample: Sample) -> Before:
        return cls(sample.argv, sample.invocation, unit_text(machine), machine.out("systemctl", "is-enabled", UNIT))


def unit_text(machine: Machine) -> str:
    """Digest of production's unit file."""
    return hashlib.sha256(machine.read(f"/etc/systemd/system/{UNIT}").encode()).hexdigest()[:12]


def healthy(sample: Sample) -> bool:
    """Whether production, and nothing else, holds the engine's place, and what answers is production."""
    return sample.held == (UNIT,) and sample.status == 200 and sample.models == (LABEL,)


def restored_at(samples: list[Sample]) -> float | None:
    """Since when production has been healthy without a break; ``None`` when it is not at the end."""
    since = None
    for sample in samples:
        if not healthy(sample):
            since = None
        elif since is None:
            since = sample.asked
    return since


def first_restored_at(samples: list[Sample], fault_at: float) -> float | None:
    """When production was healthy for the first time after the fault, and after a step that was under way on the host."""
    return next((sample.asked for sample in samples if sample.asked > fault_at + UNDER_WAY_S and healthy(sample)), None)


def t_r(ttl_s: float, *, boots: bool, pace: float = 1.0) -> float:
    """The longest that a host may take until production serves again, counted from the fault."""
    return ttl_s + 0.1 + (STOP_S + START_S + (BOOT_S if boots else 0)) * pace


def o1(samples: list[Sample], before: Before, machine: Machine, *, edited: bool = False) -> list[str]:
    """Production serves as before at the end. ``edited``: an operator changed its file meanwhile, and keeps that change."""
    if restored_at(samples) is None:
        last = samples[-1]
        return [f"O1: production does not serve at the end: held by {last.held or 'nothing'}, status {last.status}, models {last.models}"]
    found = []
    if samples[-1].argv != before.argv:
        found.append("O1: production's command line is another one")
    if (unit_text(machine) == before.text) == edited:
        found.append("O1: the operator's change of the unit's file was lost" if edited else "O1: the text of production's unit changed")
    enabled = machine.out("systemctl", "is-enabled", UNIT)
    if enabled != before.enabled:
        found.append(f"O1: production was {before.enabled} and is {enabled}")
    return found


def in_time(samples: list[Sample], *, fault_at: float, limit_s: float) -> list[str]:
    """A host that hears nothing restores itself within T_r, and whoever comes back afterwards touches nothing."""
    first = first_restored_at(samples, fault_at)
    if first is None:
        return [f"O1: production was not seen to serve after the fault; at most {limit_s:.1f} s"]
    found = (
        [f"O1: production served {first - fault_at:.1f} s after the fault; at most {limit_s:.1f} s"] if first - fault_at > limit_s else []
    )
    runs = {sample.invocation for sample in samples if sample.t > first + 0.5}
    return found + ([f"O1: production was stopped again after it had been restored: {len(runs)} runs"] if len(runs) > 1 else [])


def untouched(samples: list[Sample], before: Before) -> list[str]:
    """Production never stopped and was never started anew."""
    runs = {sample.invocation for sample in samples}
    stopped = [sample for sample in samples if UNIT not in sample.held]
    found = [f"O1: production was started anew: {len(runs)} runs"] if runs != {before.invocation} else []
    return found + ([f"O1: production did not run at {len(stopped)} samples"] if stopped else [])


def o2(machine: Machine, *, lease_may_lie: bool = False) -> list[str]:
    """Nothing is left. A lease that a tuner left which died before it had armed anything is out of force by itself."""
    found = [f"O2: unit {name} is left" for name in units_left(machine)]
    files = machine.out(
        "sh", "-c", "ls -d /etc/systemd/system/autotuner-* /etc/systemd/system/*.wants/autotuner-* /run/systemd/*/autotuner-*"
    )
    found += [f"O2: {path} is left" for path in files.split()]
    session = f"/var/lib/autotuner/sessions/{PORT}"
    found += [f"O2: {session}/{name} is left" for name in ("snapshot.json", "live", "request") if machine.exists(f"{session}/{name}")]
    leases = machine.out("sh", "-c", "ls /var/tmp/autotuner-lease").split()
    found += [] if lease_may_lie else [f"O2: lease {name} is left" for name in leases]
    return found + [f"O2: process {line} is left" for line in strays(machine)]


def units_left(machine: Machine) -> list[str]:
    """Units of ours that PID 1 holds for more than a memory.

    What a boot has pulled in is listed as dead until somebody reloads PID 1, though its file is gone.
    """
    lines = machine.out("systemctl", "list-units", "--all", "--plain", "--no-legend", "autotuner-*").splitlines()
    return [line.split()[0] for line in lines if line.split()[2:4] != ["inactive", "dead"]]


def strays(machine: Machine) -> list[str]:
    """Processes of ours on the host that are not production: by command line and by unit."""
    production = set(machine.out("cat", f"{machine.slice}/{UNIT}/cgroup.procs").split())
    listed = [line.strip() for line in machine.out("ps", "-eo", "pid=,args=").splitlines()]
    ours = [line for line in listed if "autotuner" in line and "observer.py" not in line and line.split()[0] not in production]
    return [line[:120] for line in ours if not line.split(maxsplit=1)[1].startswith(("ps ", "systemd-nspawn"))]


def o3(samples: list[Sample]) -> list[str]:
    """At most one engine at a time."""
    both = [sample for sample in samples if len(sample.held) > 1]
    return [f"O3: {' and '.join(both[0].held)} ran together at {len(both)} samples"] if both else []


def o4(controller: Controller, *, ended_itself: bool) -> list[str]:
    """Acknowledged results are kept, once."""
    kept = Counter(record["number"] for record in controller.records)
    lost = [number for number in controller.acknowledged if kept[number] == 0 and not _interrupted(controller, number)]
    found = [f"O4: acknowledged launch {number} is not in the records" for number in lost]
    found += [f"O4: launch {number} is kept {count} times" for number, count in kept.items() if count > 1]
    if ended_itself and (running := controller.running_trials()):
        found.append(f"O4: {running} trials are left running in the database")
    return found


def lost_results(controller: Controller) -> int:
    """Acknowledged results that are not kept."""
    kept = {record["number"] for record in controller.records}
    return sum(number not in kept and not _interrupted(controller, number) for number in controller.acknowledged)


def o5(controller: Controller, samples: list[Sample], *, ended_at: float | None) -> list[str]:
    """The exit code and the words are true. ``ended_at``: when it ended by itself."""
    found = []
    told = "\n".join([*controller.errors, *(line for line in controller.said.splitlines() if not line.startswith("{"))])
    if "Traceback" in told or "this is a bug" in told:
        found.append(f"O5: the tuner ended with a traceback: {told[-1500:]}")
    code = controller.code
    if ended_at is None or code is None or code < 0:
        return found
    if code not in (0, 130) and not controller.errors:
        found.append(f"O5: exit code {code} without a message")
    about = [sample for sample in samples if ended_at - 1.0 <= sample.t <= ended_at + 2.0]
    if code == NOT_RESTORED:
        told = " ".join(controller.errors)
        if about and all(map(healthy, about)) and "cannot be reached" not in told:
            found.append(f"O5: exit code 5 while production serves: {told}")
    elif about and not any(map(healthy, about)):
        found.append(f"O5: exit code {code} says that production is as before, and it does not serve: {controller.errors}")
    return found


def calls(folder: Path) -> list[dict[str, Any]]:
    """The steps that a controller made, in order."""
    path = folder / "control" / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _interrupted(controller: Controller, number: int) -> bool:
    """A launch that a person stopped leaves no result, and the tuner says so."""
    ends = [event for event in controller.events if event["event"] == "TrialEnded" and event["number"] == number]
    return bool(ends) and ends[-1]["outcome"]["outcome"] == "interrupted"
