from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.base import REPOSITORY
from tests.hosts.machine import Machine, until

pytestmark = pytest.mark.host


def ssh(machine: Machine, *argv: str, timeout_s: float = 20) -> subprocess.CompletedProcess[str]:
    known = ["-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={machine.known_hosts}", "-o", "StrictHostKeyChecking=yes"]
    command = ["ssh", "-F", "none", "-i", str(machine.base.key), *known, "-o", "ConnectTimeout=3", f"root@{machine.address}", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL)


def test_a_host_answers_over_ssh_with_the_key_that_is_on_its_disk(machine: Machine):
    done = ssh(machine, "hostname")
    assert (done.returncode, done.stdout.strip()) == (0, machine.name), done.stderr
    assert machine.out("systemctl", "is-system-running") == "running"


def test_a_host_with_another_key_is_not_spoken_to(machine: Machine):
    machine.new_host_key()
    machine.run(["systemctl", "restart", "ssh"])
    assert "HOST IDENTIFICATION HAS CHANGED" in ssh(machine, "true").stderr


def test_the_network_of_a_host_can_be_taken_away_and_given_back(machine: Machine):
    for take, give in (
        (machine.cut, machine.join),
        (machine.drop, machine.undrop),
        (lambda: machine.drop(direction="out"), machine.undrop),
    ):
        take()
        assert not machine.reachable()
        give()
        until(machine.reachable, "sshd over the network that came back")


def test_a_power_cut_keeps_the_disk_and_starts_what_is_enabled(machine: Machine):
    machine.light_production()
    machine.write("/var/lib/kept", "still here")
    machine.write("/run/lost", "gone")
    before = machine.out("cat", "/proc/1/stat").split()[21]
    machine.kill()
    assert not machine.reachable()
    machine.up()
    assert machine.read("/var/lib/kept") == "still here"
    assert not machine.exists("/run/lost")
    assert machine.out("cat", "/proc/1/stat").split()[21] != before
    until(machine.healthy, "production after the boot")


def test_a_full_disk_is_full_and_can_be_freed(machine: Machine):
    machine.small_disk("/srv/small", 1)
    machine.fill("/srv/small")
    assert "No space left" in machine.run(["cp", "/etc/passwd", "/srv/small/"], check=False).stderr
    machine.unfill("/srv/small")
    machine.run(["cp", "/etc/passwd", "/srv/small/"])


def test_the_simulated_engine_serves_in_a_unit_with_the_projects_own_interpreter(machine: Machine):
    argv = machine.production(label="kimi")
    pid = machine.out("systemctl", "show", "-P", "MainPID", "prod.service")
    assert machine.read(f"/proc/{pid}/cmdline").split("\0")[:-1] == argv
    assert '"kimi"' in machine.out("curl", "-s", "http://127.0.0.1:30000/v1/models")


def test_units_of_two_hosts_do_not_reach_each_other(two_machines: tuple[Machine, Machine]):
    one, other = two_machines
    for host in two_machines:
        host.light_production()
    one.run(["systemctl", "stop", "prod.service"])
    assert not one.healthy()
    assert other.healthy()


def test_what_a_killed_run_left_of_a_host_is_cleared_by_the_next_one(machine: Machine):
    machine.down()
    boot = f"Machine(Base(), {machine.name!r}, {machine.number}).up()"
    code = f"from tests.hosts.machine import *; {boot}; print('up', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "up\n"
        other.kill()
    assert machine.root.is_mount()

    machine.clear_leftovers()

    assert not machine.folder.exists()
    assert not Path(f"/sys/class/net/{machine.link}").exists()
    assert list(Path("/sys/fs/cgroup").glob(f"*/host-{machine.name}")) == []
    assert machine.up().out("hostname") == machine.name
