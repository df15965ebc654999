"""Faults for which a host must be a machine of its own, or the tuner must have a clock of its own, and what must come of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.hosts.machine import until
from tests.hosts.matrix.cells import PHASES as ALL_PHASES
from tests.hosts.matrix.controller import PORT, UNIT
from tests.hosts.matrix.scene import Fault, Scene
from tests.hosts.virtual import VirtualMachine

PHASES = tuple(phase for phase in ALL_PHASES if phase != "p6")
"""The gate runs on the tuner's machine: what it does has nothing of a virtual host in it."""
TTL_S = 60.0
"""For a host on which every command takes a second or two."""
BAD_LINE_TTL_S = 120.0
LINE_PATIENCE_S = 1200.0
DAY_S = 86400
EATER = """
import os, sys
for tree in ("/sys/fs/cgroup/system.slice/", "/sys/fs/cgroup/memory/system.slice/"):
    try:
        open(tree + sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
    except OSError:
        pass
held = []
while True:
    held.append(b"x" * (1 << 22))
"""
CLOCK = Path(__file__).with_name("jumping_clock.c")

VIRTUAL: dict[str, dict[str, str]] = {
    "power-cut": {"-": "p0 p1", "R": "p2 p3 p4 p5 p7 p8 p9 p10"},
    "power-cut-not-enabled": {"R": "p2 p4 p9"},
    "out-of-memory-main": {"T": "p3 p4 p5"},
    "out-of-memory-child": {"T": "p3 p4 p5"},
    "netem-line": {"C": " ".join(PHASES)},
    "host-clock-forward": {"C": " ".join(PHASES)},
    "host-clock-back": {"C": " ".join(PHASES)},
    "controller-clock-forward": {"C": " ".join(PHASES)},
    "controller-clock-back": {"C": " ".join(PHASES)},
}
"""As ``TABLE`` of the cells. The clock of the controller needs no virtual host, and its cells run on booted ones."""


def _virtual(scene: Scene) -> VirtualMachine:
    assert isinstance(scene.machine, VirtualMachine), "this fault needs a virtual host"
    return scene.machine


def _sync(scene: Scene) -> None:
    """What was there before the tuner is on the disk."""
    scene.machine.run(["sync"])


def _disable(scene: Scene) -> None:
    scene.machine.run(["systemctl", "disable", "-q", UNIT])
    _sync(scene)


def _power_cut(scene: Scene) -> None:
    scene.machine.kill()
    scene.controller.go()
    scene.machine.up()
    scene.watch.start()


def _group(scene: Scene) -> str:
    until(scene.candidate, "a candidate")
    return f"{scene.machine.slice}/{scene.candidate()}"


def _starve_main(scene: Scene) -> None:
    """The unit's limit falls below what its only process uses."""
    scene.machine.run(["sh", "-c", 'echo 1M >"$1/memory.max"', "sh", _group(scene)], check=False)


def _starve_child(scene: Scene) -> None:
    """A child that eats memory until the kernel ends it."""
    machine, group = scene.machine, _group(scene)
    machine.write("/run/eater.py", EATER)
    machine.run(["sh", "-c", 'echo 200M >"$1/memory.max"', "sh", group])
    machine.run(["python3", "-E", "-S", "/run/eater.py", scene.candidate()], check=False)


def _bad_line(scene: Scene) -> None:
    _virtual(scene).shape("loss", "10%", "delay", "100ms", "rate", "256kbit")


def _mend_line(scene: Scene) -> None:
    until(lambda: scene.controller.ended, "the end of the tuner over a bad line", patience_s=LINE_PATIENCE_S)
    _virtual(scene).widen()


def _host_clock(seconds: int) -> Fault:
    return Fault(
        act=lambda scene: _virtual(scene).jump(seconds),
        heal=lambda scene: _wait_and(scene, lambda: _virtual(scene).jump(0)),
        ttl_s=TTL_S,
        trials=1,
    )


def _controller_clock(seconds: int) -> Fault:
    return Fault(act=lambda scene: _set_clock(scene, seconds), prepare=_own_clock, ttl_s=8.0)


def _wait_and(scene: Scene, then: object) -> None:
    until(lambda: scene.controller.ended, "the end of the tuner", patience_s=600)
    assert callable(then)
    then()


def _own_clock(scene: Scene) -> None:
    """The tuner's wall clock is the machine's and what a file says."""
    library = scene.folder / "clock.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(CLOCK), "-ldl"], check=True)
    _set_clock(scene, 0)
    scene.controller.environment = {"LD_PRELOAD": str(library), "CLOCK_OFFSET_FILE": str(scene.folder / "clock")}


def _set_clock(scene: Scene, seconds: int) -> None:
    new = scene.folder / "clock.new"
    new.write_text(f"{seconds}\n")
    new.rename(scene.folder / "clock")


VIRTUAL_FAULTS: dict[str, Fault] = {
    "power-cut": Fault(act=_power_cut, prepare=_sync, strikes="after", boots=True, silences=True, ttl_s=TTL_S),
    "power-cut-not-enabled": Fault(act=_power_cut, prepare=_disable, strikes="after", boots=True, silences=True, ttl_s=TTL_S),
    "out-of-memory-main": Fault(act=_starve_main, strikes="after", launch=1, trials=2, ttl_s=TTL_S),
    "out-of-memory-child": Fault(act=_starve_child, strikes="after", launch=1, trials=2, ttl_s=TTL_S),
    "netem-line": Fault(act=_bad_line, heal=_mend_line, ttl_s=BAD_LINE_TTL_S),
    "host-clock-forward": _host_clock(DAY_S),
    "host-clock-back": _host_clock(-DAY_S),
    "controller-clock-forward": _controller_clock(DAY_S),
    "controller-clock-back": _controller_clock(-DAY_S),
}
VIRTUAL_CELLS: tuple[tuple[str, str, str], ...] = tuple(
    (fault, phase, code) for fault, row in VIRTUAL.items() for phase in PHASES for code, phases in row.items() if phase in phases.split()
)
"""Fault, phase and code of every cell of this tier."""


def out_of_memory(scene: Scene) -> list[str]:
    """The trial that was struck says that memory ran out."""
    struck = [record for record in scene.controller.records if record["number"] == scene.fault.launch]
    if not struck or struck[0]["outcome"] == "measured":
        return []
    cause = struck[0]["failure"]["cause"]
    return [] if "out of memory" in cause else [f"T: the trial did not fail for want of memory: {cause}"]


def power_cut_early(scene: Scene) -> list[str]:
    """A host that lost its power before anything was changed serves again because it was booted, and what is there is production."""
    later = [sample for sample in scene.watch.samples() if sample.t > scene.fault_at]
    held = {unit for sample in later for unit in sample.held}
    return [] if scene.controller.code == 0 or held <= {UNIT} else [f"O1: {held} ran on port {PORT} after the power cut"]
