"""Booted hosts for tests. Where none can be booted the tests are skipped with the reason; in CI that is an error."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import IO

import pytest

from tests.hosts.base import STATE, Base, missing
from tests.hosts.machine import Machine

NUMBERS = range(80, 100)
"""Numbers of the hosts of a pool; every run of pytest takes free ones."""
POOL = 3


class Pool:
    """Up to three hosts, booted when they are first asked for."""

    def __init__(self, base: Base) -> None:
        self.base = base
        self._machines: list[Machine] = []
        self._locks: list[IO[str]] = []

    def __getitem__(self, index: int) -> Machine:
        """Host 0, 1 or 2 as the last test left it; it may be down."""
        assert 0 <= index < POOL, f"a pool has {POOL} hosts"
        while len(self._machines) <= index:
            self._machines.append(self._take())
        return self._machines[index]

    def close(self) -> None:
        """Power off what was booted and give the numbers back."""
        with ExitStack() as stack:
            for lock in self._locks:
                stack.callback(lock.close)
            for machine in self._machines:
                stack.callback(machine.down)

    def _take(self) -> Machine:
        """A host under a number that no other run of pytest uses now."""
        for number in NUMBERS:
            lock = (STATE / f"number-{number}.lock").open("a")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                continue
            self._locks.append(lock)
            machine = Machine(self.base, f"at{number}", number)
            machine.clear_leftovers()
            return machine
        raise AssertionError(f"all numbers of test hosts are in use: {NUMBERS}")


@pytest.fixture(scope="session")
def base() -> Base:
    """The base system of test hosts."""
    if reason := missing():
        if os.environ.get("CI"):
            pytest.fail(f"host tests must run in CI: {reason}")
        pytest.skip(reason)
    return Base().ensure()


@pytest.fixture(scope="session")
def pool(base: Base) -> Iterator[Pool]:
    """Hosts that stay up from test to test: ``pool[0]`` to ``pool[2]``. Ask for ``machine`` and ``machines`` to get clean ones."""
    made = Pool(base)
    yield made
    made.close()


@pytest.fixture
def machine(pool: Pool) -> Machine:
    """A host that was just booted with a fresh disk."""
    return pool[0].fresh()


@pytest.fixture
def two_machines(pool: Pool) -> tuple[Machine, Machine]:
    """Two hosts that were just booted with fresh disks."""
    return pool[0].fresh(), pool[1].fresh()
