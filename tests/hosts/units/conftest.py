"""A host with a production unit, as every test of units finds it."""

from __future__ import annotations

import pytest

from tests.hosts.machine import Machine

_CLEAN = """
systemctl stop 'prod*' 'other*' 'autotuner*'
umount -l /etc/systemd/system /var/lib/autotuner 2>/dev/null
rm -rf /etc/systemd/system/prod* /etc/systemd/system/other* /run/systemd/system/prod* /var/lib/*.failures /var/lib/*.slow
rm -rf /etc/systemd/system/autotuner* /etc/systemd/system/*/autotuner* /var/lib/autotuner/* /var/tmp/autotuner-lease/* /run/autotuner
systemctl daemon-reload
systemctl reset-failed
"""


@pytest.fixture(scope="module")
def shared(pool) -> Machine:
    """One host for tests that leave it as they found it."""
    return pool[0].fresh()


@pytest.fixture
def host(shared: Machine) -> Machine:
    shared.run(["sh", "-c", _CLEAN])
    shared.light_production()
    return shared
