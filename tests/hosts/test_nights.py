"""Whole nights on booted hosts: a host with a production unit is tuned and left as it was, also two of them at once."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from autotuner.cli.main import run
from autotuner.services.hostside import LEASES, grant_script
from tests.hosts.inside import invocation
from tests.hosts.machine import Machine
from tests.hosts.matrix import oracle
from tests.hosts.matrix.controller import UNIT
from tests.hosts.matrix.scene import Fault, Scene
from tests.hosts.matrix.watch import now

pytestmark = pytest.mark.host

QUIET = Fault(act=lambda _: None, ttl_s=20.0)


def assert_as_before(scene: Scene) -> None:
    samples = scene.watch.samples()
    found = oracle.o1(samples, scene.before, scene.machine)
    found += oracle.o2(scene.machine) + oracle.o3(samples)
    found += oracle.o4(scene.controller, ended_itself=True) + oracle.o5(scene.controller, samples, ended_at=scene.ended_at)
    assert found == []


def test_a_night_measures_and_leaves_the_host_as_it_was(machine: Machine, tmp_path: Path) -> None:
    with Scene(machine, tmp_path, QUIET, "", trials=2) as scene:
        scene.controller.start()
        assert scene.controller.wait() == 0, scene.controller.errors
        scene.ended_at = now()
        scene.wait_restored()
        assert [record["outcome"] for record in scene.controller.records] == ["measured", "measured"]
        assert {sample.held for sample in scene.watch.samples()} > {("prod.service",)}, "no candidate was seen"
        assert_as_before(scene)


def inventory(machine: Machine) -> dict[str, str]:
    """What a night must leave as it was, beside production itself."""
    return {
        "settings": machine.out("sh", "-c", "find /etc /usr/local -xdev ! -type d | sort | xargs -d '\\n' sha256sum 2>/dev/null"),
        "links": machine.out("find", "/etc", "-type", "l", "-printf", "%p %l\n"),
        "unit files": machine.out("systemctl", "list-unit-files", "--no-legend", "--plain"),
        "units": "\n".join(sorted(machine.out("systemctl", "list-units", "--no-legend", "--plain", "--type=service,timer").splitlines())),
        "leases": machine.out("ls", "-A", LEASES),
        "candidates": machine.out("ls", "-A", "/run/autotuner"),
        "home": machine.out("find", "/home", "/root", "-xdev", "-newer", "/etc/autotuner/allow.json", "-not", "-path", "/root/.pyenv/*"),
    }


def test_a_granted_user_without_root_tunes_to_the_end_and_leaves_the_host_as_it_was(machine: Machine, tmp_path: Path) -> None:
    machine.light_production("beside.service", port=30001, label="beside")
    with Scene(machine, tmp_path, QUIET, "", trials=2) as scene:
        machine.add_user("tuner")
        machine.run(["chmod", "711", "/root"])  # the engine's interpreter may lie below it
        machine.write("/root/grant", grant_script("tuner", [UNIT, "beside.service"]))
        machine.run(["sh", "/root/grant"])
        before = inventory(machine)
        assert "/etc/sudoers.d/autotuner-tuner" in before["settings"]
        scene.controller.user, scene.controller.conflicts = "tuner", ("beside.service",)
        scene.controller.start()
        assert scene.controller.wait() == 0, scene.controller.errors
        scene.ended_at = now()
        scene.wait_restored()
        assert [record["outcome"] for record in scene.controller.records] == ["measured", "measured"]
        assert {sample.held for sample in scene.watch.samples()} > {(UNIT,)}, "no candidate was seen"
        assert_as_before(scene)
        assert inventory(machine) == before
        assert machine.healthy(30001)
        assert machine.out("ps", "-u", "tuner", "-o", "args=") == ""


def test_an_endpoint_of_a_unit_in_conflict_is_refused_by_tune_and_told_by_doctor(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.light_production("other.service", port=30001, label="other")
    with Scene(machine, tmp_path, QUIET, "") as scene:
        runs = [invocation(machine, unit) for unit in (UNIT, "other.service")]
        scene.controller.port, scene.controller.conflicts = 30001, ("other.service",)
        scene.controller.start()
        assert scene.controller.wait() == 4
        pids = [machine.out("systemctl", "show", "-P", "MainPID", unit) for unit in (UNIT, "other.service")]
        why = (
            f"{UNIT} (pid {pids[0]}) does not answer on port 30001: it listens on port 30000,"
            f" and port 30001 is held by other.service (pid {pids[1]})"
        )
        assert why in "".join(scene.controller.errors)
        monkeypatch.chdir(scene.controller.folder)
        run(["--state-dir", "state", "doctor", "cell.yaml", "--json"])
        checks = [check for check in json.loads(capsys.readouterr().out)["checks"] if check["name"] == "production"]
        assert [(check["status"], check["detail"]) for check in checks] == [("fail", why)]
        assert "write `port: 30000`" in checks[0]["hint"]
        assert oracle.untouched(scene.watch.samples(), scene.before) == []
        assert oracle.o2(machine) == []
        assert [invocation(machine, unit) for unit in (UNIT, "other.service")] == runs


def test_two_hosts_are_tuned_at_once_and_the_death_of_one_tuner_does_not_reach_the_other(
    two_machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    one, other = two_machines
    with Scene(one, tmp_path / "one", QUIET, "") as dying, Scene(other, tmp_path / "other", QUIET, "", trials=2) as living:
        living.controller.start()
        dying.controller.start("p5", hold=False)
        dying.controller.wait_reached()
        dying.fault_at = now()
        dying.controller.signal(signal.SIGKILL)
        assert living.controller.wait() == 0, living.controller.errors
        living.ended_at = now()
        dying.wait_restored()
        for scene in (dying, living):
            scene.wait_restored()
        assert_as_before(living)
        samples = dying.watch.samples()
        assert oracle.o1(samples, dying.before, one) == []
        assert oracle.o2(one) + oracle.o3(samples) == []
