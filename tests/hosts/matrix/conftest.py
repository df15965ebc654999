"""Which cells run, and hosts for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hosts.conftest import Pool
from tests.hosts.machine import Machine
from tests.hosts.matrix.cells import REPRESENTATIVE

WHOLE = os.environ.get("AUTOTUNER_MATRIX") == "whole"
KILLS = int(os.environ.get("AUTOTUNER_MATRIX_KILLS", "30"))
"""Read when the module is loaded: the tests' own environment is cleaned later."""


def pytest_configure(config: pytest.Config) -> None:
    """Say what marks a cell."""
    config.addinivalue_line("markers", "cell: a cell of the fault matrix; a representative third runs without AUTOTUNER_MATRIX=whole")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without ``AUTOTUNER_MATRIX=whole`` the representative cells are left, unless cells are asked for by name."""
    if WHOLE or config.option.keyword or any("::" in str(argument) for argument in config.args):
        return
    cells = [item for item in items if item.get_closest_marker("cell")]
    left_out = [item for item in cells if item.name.partition("[")[2].rstrip("]") not in REPRESENTATIVE]
    if left_out:
        gone = set(left_out)
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in gone]


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
