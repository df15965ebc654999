"""The cells for which a host must be a machine of its own. By hand: ``make test-hosts-vm``. One cell: ``-k power-cut-p4``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.base import Base
from tests.hosts.machine import Machine
from tests.hosts.matrix import results
from tests.hosts.matrix.cells import name
from tests.hosts.matrix.mutations import MUTATIONS
from tests.hosts.matrix.scene import Scene, play
from tests.hosts.matrix.verdict import judge
from tests.hosts.matrix.virtual_faults import VIRTUAL_CELLS, VIRTUAL_FAULTS, out_of_memory, power_cut_early
from tests.hosts.virtual import VirtualMachine
from tests.hosts.virtual_image import missing

SWITCH = "AUTOTUNER_VM_TESTS"
ON = os.environ.get(SWITCH) == "1"
"""Read when the module is loaded: the tests' own environment is cleaned later."""
NUMBER = int(os.environ.get("AUTOTUNER_VM_NUMBER", "100"))
"""Of the virtual host; runs side by side need one each."""

pytestmark = [
    pytest.mark.host,
    pytest.mark.vm,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not ON, reason=f"emulates a whole machine, by hand: set {SWITCH}=1 to run it"),
]
ON_VIRTUAL = [cell for cell in VIRTUAL_CELLS if not cell[0].startswith("controller-")]
ON_BOOTED = [cell for cell in VIRTUAL_CELLS if cell[0].startswith("controller-")]


class Kept:
    """A virtual host that is booted anew only when the cell before left it in doubt: a boot takes longer than most cells."""

    def __init__(self, base: Base) -> None:
        self.machine = VirtualMachine(base, f"v{NUMBER}", NUMBER)
        self.machine.clear_leftovers()
        self.clean = False

    def take(self) -> VirtualMachine:
        if not self.clean:
            self.machine.fresh()
        self.clean = False
        return self.machine


@pytest.fixture(scope="session")
def kept(base: Base) -> Iterator[Kept]:
    if reason := missing():
        pytest.skip(reason)
    held = Kept(base)
    yield held
    held.machine.down()


@pytest.mark.parametrize(("fault", "phase", "code"), [pytest.param(*cell, id=name(*cell[:2])) for cell in ON_VIRTUAL])
def test_the_virtual_host_comes_back(kept: Kept, folder: Path, fault: str, phase: str, code: str) -> None:
    violations = _judged(kept.take(), folder, fault, phase, code)
    assert not violations, "\n".join([*violations, f"see {folder}"])
    kept.clean = True


@pytest.mark.parametrize(("fault", "phase", "code"), [pytest.param(*cell, id=name(*cell[:2])) for cell in ON_BOOTED])
def test_the_host_comes_back_from_a_tuner_whose_clock_jumped(host: Machine, folder: Path, fault: str, phase: str, code: str) -> None:
    violations = _judged(host, folder, fault, phase, code)
    assert not violations, "\n".join([*violations, f"see {folder}"])


def test_without_fsync_a_power_cut_loses_production(kept: Kept, folder: Path) -> None:
    fault = VIRTUAL_FAULTS["power-cut-not-enabled"]
    with play(kept.take(), folder, fault, "p2", mutations=MUTATIONS["no-fsync"]) as scene:
        violations = judge(scene, "R")
        results.keep("control", "no-fsync-p2", scene, [] if violations else ["nothing was violated"], found=violations)
    assert any(violation.startswith("O1") for violation in violations), violations or "nothing was violated"


def _judged(machine: Machine, folder: Path, fault: str, phase: str, code: str) -> list[str]:
    cell = name(fault, phase)
    try:
        with play(machine, folder, VIRTUAL_FAULTS[fault], phase, code=code) as scene:
            violations = _judge(scene, fault, code)
            results.keep("cell", cell, scene, violations, code=code)
    except AssertionError as error:
        results.keep_failure("cell", cell, str(error))
        raise
    return [*violations, *(scene.controller.errors if violations else [])]


def _judge(scene: Scene, fault: str, code: str) -> list[str]:
    found = _judge_code(scene, fault, code)
    if fault.startswith("power-cut") and any("by hand" in error for error in scene.controller.errors):
        found.append(f"O5: nobody's hand did anything: {scene.controller.errors}")
    return found


def _judge_code(scene: Scene, fault: str, code: str) -> list[str]:
    if code == "-":  # booted anew, production has another run in any case
        return [*judge(scene, "R"), *power_cut_early(scene)]
    return [*judge(scene, code), *(out_of_memory(scene) if fault.startswith("out-of-memory") else [])]
