"""``autotuner service HOST …`` and ``autotuner status HOST`` over SSH, on a booted host whose production is a systemd unit."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotuner.cli.main import run
from autotuner.services.hostside import LEASES
from tests.hosts.machine import Machine, until

pytestmark = pytest.mark.host

TUNER = Path(__file__).with_name("dead_tuner.py")
PROD, OTHER = "prod.service", "other.service"


class Person:
    """Somebody at the command line, and the host that they look after."""

    def __init__(self, machine: Machine, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.machine, self.folder, self._capsys = machine, folder, capsys
        self.describe()

    def describe(self, *, lease_ttl_s: float = 600.0, ready_timeout_s: float = 30.0, user: str = "root") -> None:
        """Write the host document."""
        document = {
            "apiVersion": "autotuner/v1",
            "kind": "Host",
            "metadata": {"name": "far"},
            "transport": self.machine.ssh_document(user=user),
            "engine": {"name": "sglang", "python": "/usr/bin/python3"},
            "model": {"path": "/models/none"},
            "service": {"manager": "systemd", "production": {"unit": PROD}, "conflicts": [OTHER]},
            "limits": {"lease_ttl_s": lease_ttl_s, "stop_timeout_s": 10, "ready_timeout_s": ready_timeout_s},
        }
        (self.folder / "hosts").mkdir(exist_ok=True)
        (self.folder / "hosts" / "far.yaml").write_text(json.dumps(document))

    def types(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command: its exit code, standard output and standard error."""
        code = run(["--state-dir", str(self.folder / "state"), *arguments])
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err

    def service(self, *arguments: str) -> tuple[int, str, str]:
        return self.types("service", "far", *arguments)

    def shown(self) -> dict:
        code, out, err = self.service("show", "--json")
        assert code == 0, err
        return json.loads(out)

    def active(self) -> list[str]:
        """What the host itself says of production and conflict."""
        return self.machine.run(["systemctl", "is-active", PROD, OTHER], check=False).stdout.split()

    def candidates(self) -> list[str]:
        listed = self.machine.run(["systemctl", "list-units", "--all", "--plain", "--no-legend", "autotuner-30000-*"]).stdout
        return [line.split()[0] for line in listed.splitlines()]

    def left(self) -> list[str]:
        """Everything of a session that is on the host."""
        found = self.machine.run(["find", "/etc/systemd/system", LEASES, "/run/systemd/transient", "-name", "*.*"])
        return [line for line in found.stdout.splitlines() if "autotuner-" in Path(line).name or line.endswith(".json")]


@pytest.fixture
def person(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Person:
    """Production on port 30000, a unit in conflict on another one."""
    monkeypatch.chdir(tmp_path)
    machine.light_production(PROD)
    machine.light_production(OTHER, port=30001, label="other", enabled=False)
    return Person(machine, tmp_path, capsys)


@contextlib.contextmanager
def tuning(person: Person) -> Iterator[subprocess.Popen[str]]:
    """A tuner that holds the host and has a candidate in production's place; killed at the end if it was not before."""
    argv = [sys.executable, str(TUNER), "hosts/far.yaml"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=person.folder)
    assert process.stdout is not None
    said: list[str] = []
    try:
        for line in process.stdout:
            said.append(line)
            if line == "candidate started\n":
                break
        assert process.poll() is None, "".join(said)
        until(person.machine.healthy, "the candidate")
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_host_is_shown_as_it_is(person: Person) -> None:
    shown = person.shown()
    pid = int(person.machine.out("systemctl", "show", "-P", "MainPID", PROD))
    assert shown["production"] == {
        "name": PROD, "role": "production", "active": True, "state": "active", "enabled": "enabled", "pid": pid, "answers": True,
    }  # fmt: skip
    assert [(unit["name"], unit["role"], unit["active"], unit["enabled"]) for unit in shown["conflicts"]] == [
        (OTHER, "conflict", True, "disabled")
    ]
    assert (shown["candidates"], shown["lease"], shown["left_to_restore"], shown["last_restore"]) == ([], None, False, None)
    assert (shown["listener"]["pid"], shown["listener"]["left_by_tuner"]) == (pid, False)

    code, out, _ = person.service("show")
    assert code == 0
    assert f"  production        {PROD}: active (running), pid {pid}, enabled, answers\n" in out
    assert "  lease             free: nobody tunes this host\n" in out

    code, out, _ = person.types("status", "far")
    assert (code, out) == (0, "far now: free: nobody tunes this host\n")


def test_production_is_stopped_and_started_alone_or_with_what_is_in_conflict(person: Person) -> None:
    code, out, _ = person.service("stop")
    assert (code, out) == (0, f"far: stopped {PROD}\n")
    assert person.active() == ["inactive", "active"]
    assert "production        prod.service: inactive, enabled\n" in person.service("show")[1]

    code, out, _ = person.service("stop", "--conflicts")
    assert (code, out) == (0, f"far: stopped {OTHER}\nfar: stopped {PROD}\n")
    assert person.active() == ["inactive", "inactive"]

    code, out, _ = person.service("start", "--conflicts")
    assert (code, out) == (0, f"far: started {PROD}\nfar: started {OTHER}\n")
    assert person.active() == ["active", "active"]


def test_a_unit_that_is_not_there_is_said_to_be_so_and_a_masked_one_is_not_started(person: Person) -> None:
    person.machine.run(["systemctl", "stop", OTHER])
    person.machine.run(["rm", f"/etc/systemd/system/{OTHER}"])
    person.machine.run(["systemctl", "daemon-reload"])
    for verb in ("start", "stop"):
        code, _, err = person.service(verb, "--conflicts")
        assert (code, "far: other.service does not exist on the host\nhint: correct the unit's name" in err) == (1, True), err
        assert person.active()[0] == "active", "nothing was touched"
    assert f"{OTHER}: does not exist on the host\n" in person.service("show")[1]

    person.machine.run(["systemctl", "stop", PROD])
    text = person.machine.read(f"/etc/systemd/system/{PROD}")
    person.machine.run(["rm", f"/etc/systemd/system/{PROD}"])
    person.machine.run(["systemctl", "mask", "-q", PROD])
    code, _, err = person.service("start")
    assert (code, f"{PROD} is masked" in err, f"hint: on the host: systemctl unmask {PROD}" in err) == (1, True, True), err
    person.machine.run(["systemctl", "unmask", "-q", PROD])
    assert "Started prod.service" in person.service("logs")[1], "its journal is there all the same"
    person.machine.run(["sh", "-c", "journalctl -q --rotate; journalctl -q --vacuum-time=1ms"])
    code, _, err = person.service("logs")
    assert (code, f"{PROD} does not exist on the host" in err) == (1, True), err

    person.machine.write(f"/etc/systemd/system/{PROD}", text)
    person.machine.run(["systemctl", "daemon-reload"])
    assert person.service("start")[0] == 0


def test_a_host_without_a_free_byte_is_shown_all_the_same(person: Person) -> None:
    person.machine.small_disk("/var/lib/autotuner", 1)
    person.machine.run(["chmod", "700", "/var/lib/autotuner"])
    person.machine.fill("/var/lib/autotuner")
    code, out, err = person.service("show")
    assert code == 0, err
    assert f"  production        {PROD}: active (running)" in out
    assert "  problem           too little room on the disk of /var/lib/autotuner" in out
    assert person.types("status", "far")[:2] == (0, "far now: free: nobody tunes this host\n")
    assert "Started prod.service" in person.service("logs")[1]
    assert person.service("stop")[0] == 1, "what changes something is put on the host first"
    assert person.active() == ["active", "active"]


def test_the_journal_of_production_is_printed(person: Person) -> None:
    person.machine.run(["systemctl", "stop", PROD])
    directives = {"ExecStart": '"/bin/echo" "ünï %%d $$x"', "Type": "oneshot"}
    lines = ["[Service]", *(f"{key}={value}" for key, value in directives.items())]
    person.machine.write(f"/etc/systemd/system/{PROD}", "\n".join([*lines, ""]))
    person.machine.run(["systemctl", "daemon-reload"])
    for _ in range(2):
        person.machine.run(["systemctl", "start", PROD])

    code, out, err = person.service("logs")
    assert code == 0
    assert out.count("ünï %d $x\n") == 2
    assert err == f"far: {PROD}\n"
    assert len(person.service("logs", "-n", "3")[1].splitlines()) == 3
    code, _, err = person.service("logs", "--candidate")
    assert code == 2
    assert "no candidate has left a log" in err


def test_a_host_that_is_tuned_is_left_alone_until_it_is_taken_over(person: Person) -> None:
    with tuning(person):
        shown = person.shown()
        assert (shown["lease"]["holder"], shown["lease"]["purpose"], shown["lease"]["alive"]) == ("ada@farbox", "tune far", True)
        assert 0 < shown["lease"]["expires_s"] <= 600
        assert shown["dead_man_switch"]["armed"] is True
        assert 0 < shown["dead_man_switch"]["remaining_s"] <= 600
        assert [unit["name"] for unit in shown["candidates"]] == ["autotuner-30000-candidate-1-30000.service"]
        assert shown["listener"]["left_by_tuner"] is True
        assert shown["problems"] == []
        assert person.active() == ["inactive", "inactive"]
        assert "ada@farbox since " in person.types("status", "far")[1]
        for verb in ("stop", "start", "restore"):
            code, _, err = person.service(verb)
            assert code == 4
            assert "far is being tuned by ada@farbox since " in err
            assert "autotuner service far restore --take-over" in err
        assert person.active() == ["inactive", "inactive"]
        assert "candidate-1" in person.service("logs", "--candidate")[2]

        # A tuner elsewhere counts as long as the host has heard of it; of one on this machine it is seen at once that it is gone.
        code, out, err = person.service("restore", "--take-over")
        assert code == 0, err
        assert "far: restored; the host was held by ada@farbox since " in out
        assert "lease             free" in out
    assert person.active() == ["active", "active"]
    assert person.machine.healthy()
    assert (person.candidates(), person.left()) == ([], [])
    assert person.service("restore")[:2] == (0, "far: nothing is left to restore\n")
    assert person.shown()["last_restore"]["ok"] is True


def test_what_a_dead_tuner_left_on_a_host_without_its_timer_is_brought_back(person: Person) -> None:
    person.describe(lease_ttl_s=6)
    with tuning(person) as tuner:
        tuner.kill()
        tuner.wait()
        person.machine.run(["systemctl", "stop", "autotuner-restore-30000-*.timer"])
        until(lambda: person.shown()["left_to_restore"], "the end of the lease")
        code, _, err = person.service("start")
        assert code == 4
        assert "hint: first: autotuner service far restore" in err
        code, out, err = person.service("restore")
        assert code == 0, err
        assert "last restore      production is as it was\n" in out
    assert person.active() == ["active", "active"]
    assert (person.candidates(), person.left()) == ([], [])


def test_production_that_does_not_start_again_ends_with_five(person: Person) -> None:
    person.describe(ready_timeout_s=5.0)
    with tuning(person):
        person.machine.fail_starts(1000, PROD)
        code, _, err = person.service("restore", "--take-over")
    assert code == 5
    assert "far: production on port 30000 is not as it was" in err
    assert "hint: on the host: " in err


def test_a_user_without_root_manages_the_granted_units_and_no_others(person: Person) -> None:
    person.machine.add_user("tuner")
    person.describe(user="tuner")
    code, _, err = person.service("show")
    assert code == 4
    assert "hint: have an administrator of the host run what `autotuner service far grant` prints" in err

    code, script, err = person.service("grant")
    assert (code, err) == (0, "")
    assert f"Lets tuner have these units stopped and started by autotuner, and nothing else: '{PROD}' '{OTHER}'" in script
    person.machine.run(["/bin/sh", "-s"], stdin=script)

    assert person.shown()["production"]["active"] is True
    assert person.service("stop", "--conflicts")[0] == 0
    assert person.active() == ["inactive", "inactive"]
    assert person.service("start")[0] == 0
    assert person.service("logs", "-n", "1")[0] == 0

    document = (person.folder / "hosts" / "far.yaml").read_text()
    (person.folder / "hosts" / "far.yaml").write_text(document.replace(PROD, "systemd-journald.service"))
    code, _, err = person.service("stop")
    assert code == 4
    assert "tuner may not touch systemd-journald.service" in err
    assert "hint: an administrator allows it: autotuner service far grant" in err
    assert person.machine.out("systemctl", "is-active", "systemd-journald.service") == "active"
