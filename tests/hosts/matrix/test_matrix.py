"""Every fault in every phase in which it means something: what must hold, holds. One cell: ``-k controller-sigkill-p4``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.machine import Machine
from tests.hosts.matrix import results
from tests.hosts.matrix.cells import CELLS, name
from tests.hosts.matrix.faults import FAULTS
from tests.hosts.matrix.scene import play
from tests.hosts.matrix.verdict import judge

pytestmark = [pytest.mark.host, pytest.mark.cell]


@pytest.mark.parametrize(("fault", "phase", "code"), [pytest.param(*cell, id=name(*cell[:2])) for cell in CELLS])
def test_the_host_comes_back(host: Machine, folder: Path, fault: str, phase: str, code: str) -> None:
    cell = name(fault, phase)
    try:
        with play(host, folder, FAULTS[fault], phase, code=code) as scene:
            violations = judge(scene, code)
            results.keep("cell", cell, scene, violations, code=code)
    except AssertionError as error:
        results.keep_failure("cell", cell, str(error))
        raise
    assert not violations, "\n".join([*violations, f"see {folder}", *scene.controller.errors])
