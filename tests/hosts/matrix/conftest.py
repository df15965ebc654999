"""Which cells run, and hosts for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hosts.conftest import Pool
from tests.hosts.machine import Machine
from tests.hosts.matrix.cells import REPRESENTATIVE

CELLS = os.environ.get("AUTOTUNER_MATRIX", "representative")
"""``representative``, ``whole`` or ``none``. Everything here is read when the module is loaded: the tests' own environment is cleaned
later."""
KILLS = int(os.environ.get("AUTOTUNER_MATRIX_KILLS", "30"))
"""How often a tuner is killed at a random instant, on all hosts together."""

VIRTUAL = os.environ.get("AUTOTUNER_VM_TESTS") == "1"
"""Whether the cells on virtual hosts run, and nothing else."""


def pytest_configure(config: pytest.Config) -> None:
    """Say what marks a cell."""
    config.addinivalue_line("markers", "cell: a cell of the fault matrix; a representative third runs without AUTOTUNER_MATRIX=whole")
    config.addinivalue_line("markers", "vm: emulates a whole machine; runs by hand, with AUTOTUNER_VM_TESTS=1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A whole run of the tests leaves the matrix out, which takes long and has a command of its own.

    Asked for by its folder it is what ``AUTOTUNER_MATRIX`` says; asked for by name a cell always runs.
    """
    mine = [item for item in items if Path(__file__).parent in item.path.parents]
    arguments = [str(argument) for argument in config.args]
    if config.option.keyword or any("::" in argument for argument in arguments):
        return
    chosen = [item for item in mine if _wanted(item)] if any("matrix" in argument for argument in arguments) else []
    gone = set(mine) - set(chosen)
    config.hook.pytest_deselected(items=list(gone))
    items[:] = [item for item in items if item not in gone]


def _wanted(item: pytest.Item) -> bool:
    if VIRTUAL or item.get_closest_marker("vm"):
        return VIRTUAL and item.get_closest_marker("vm") is not None
    if not item.get_closest_marker("cell"):
        return CELLS != "none" or item.path.name == "test_kills.py"
    return CELLS == "whole" or (CELLS == "representative" and item.name.partition("[")[2].rstrip("]") in REPRESENTATIVE)


@pytest.fixture
def host(pool: Pool) -> Machine:
    """A host with a fresh disk for one cell."""
    return pool[0].fresh()


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Where the cell keeps what the tuner and the observer wrote; named like the cell."""
    made = tmp_path / (request.node.name.partition("[")[2].rstrip("]") or "cell")
    made.mkdir()
    return made
