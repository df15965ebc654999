"""The sandbox of systemd: every attack of tests/integration/test_quality_sandbox.py once more, on a host whose first process it is."""

from __future__ import annotations

import re
import sys

import pytest

from tests.hosts.base import REPOSITORY
from tests.hosts.inside import Inside
from tests.hosts.machine import Machine

pytestmark = pytest.mark.host

ATTACKS = "tests/integration/test_quality_sandbox.py"
SHOWN = (
    "from autotuner.quality.probe import find_sandbox; found = find_sandbox(); print(found.sandbox and found.sandbox.name, found.reasons)"
)


def test_every_attack_is_contained_by_systemd_as_well(machine: Machine) -> None:
    inside = Inside(machine)
    env = ["env", f"PYTHONPATH={REPOSITORY}", "PYTHONDONTWRITEBYTECODE=1", "CI=true"]

    shown = inside.run([*env, sys.executable, "-c", SHOWN], timeout_s=120)
    assert shown.stdout.startswith("systemd "), shown.stdout + shown.stderr

    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(REPOSITORY), f"{REPOSITORY}/{ATTACKS}"]
    done = inside.run([*env, *pytest_, "-k", "not ends_with_the_tuner and not who_is_not_root"], timeout_s=900)

    assert done.ok, done.stdout[-8000:] + done.stderr[-2000:]
    assert re.search(r"^\d{2,} passed", done.stdout.splitlines()[-1]), done.stdout[-500:]
    units = inside.run(["systemctl", "list-units", "--all", "--no-legend", "--plain", "autotuner-gate-*"], timeout_s=30)
    assert units.stdout == ""
    assert not inside.run(["sh", "-c", "ls -d /run/autotuner-gate-*"], timeout_s=30).ok
