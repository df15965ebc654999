"""Tests on several workers, by pytest-xdist: how many there are, and turns for tests that must be alone.

A test that is marked ``alone`` measures: it runs while no other test does. Those of a file run first and one after the other, so that
the other workers wait for them once.
"""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Generator
from pathlib import Path

import pytest

MOST_WORKERS = 6
"""Each may boot two hosts, and hosts have twenty numbers."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: many tests wait for something."""
    return min(MOST_WORKERS, len(os.sched_getaffinity(0)) + 1)


def pytest_configure(config: pytest.Config) -> None:
    """Let the workers of a run take turns."""
    if "PYTEST_XDIST_WORKER" in os.environ and config.option.basetemp:
        folder = Path(config.option.basetemp).parent  # one for all workers of a run
        folder.mkdir(parents=True, exist_ok=True)
        config.pluginmanager.register(Turns(folder))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what must be alone first in its file."""
    files = [list(found) for _, found in itertools.groupby(items, key=lambda item: item.path)]
    items[:] = [item for found in files for item in sorted(found, key=lambda item: not _is_alone(item))]


class Turns:
    """Any number of tests at once, or one that is alone. Who waits at the gate is let in before those who come later."""

    def __init__(self, folder: Path) -> None:
        self._gate = (folder / "gate.lock").open("a")
        self._room = (folder / "room.lock").open("a")
        self._kept = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # before the clock of the test's timeout starts
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
        if not self._kept:
            fcntl.flock(self._gate, fcntl.LOCK_EX)
            fcntl.flock(self._room, fcntl.LOCK_EX if _is_alone(item) else fcntl.LOCK_SH)
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            self._kept = nextitem is not None and _is_alone(item) and _is_alone(nextitem)
            if not self._kept:
                fcntl.flock(self._room, fcntl.LOCK_UN)


def _is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None
