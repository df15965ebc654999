"""What could not be brought back is refused before anything is stopped."""

from __future__ import annotations

import pytest

from tests.hosts.inside import LIGHT, PROD, Night, invocation
from tests.hosts.machine import Machine, until

pytestmark = pytest.mark.host


def test_a_unit_as_it_should_be_is_not_refused(host: Machine):
    found = Night(host).look()
    assert found["problems"] == []
    unit = found["units"][0]
    assert (unit["active"], unit["answered"], unit["models"], unit["role"]) == (True, True, ["production"], "production")
    assert unit["argv"][-1] == "production"


def test_auto_finds_the_unit_behind_the_port(host: Machine):
    assert Night(host, unit="auto").look()["production"] == PROD
    host.run(["systemctl", "stop", PROD])
    assert Night(host, unit="auto").look()["production"] is None


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("sed -i 's/TimeoutStopSec=5/TimeoutStopSec=6/' $U", "changed on disk and not reloaded"),
        ("sleep 1.1; touch -d '+3 seconds' $U; systemctl daemon-reload; sleep 2.5", "changed after prod.service was started"),
        (
            "sed -i 's/served-model-name/no-such-flag/' $U; touch -d '-1 day' $U; systemctl daemon-reload",
            "what runs is not what the unit",
        ),
        ("ln -sfn /dev/null /run/systemd/system/prod.service; rm $U; systemctl daemon-reload", "masked"),
        ("mv $U /run/systemd/system/; systemctl daemon-reload", "would be gone once stopped"),
        (
            "sed -i '/^.Unit/a RefuseManualStop=yes' $U; touch -d '-1 day' $U; systemctl daemon-reload",
            "refuses to be started or stopped",
        ),
        (
            "printf '[Timer]\nOnActiveSec=1h\n' >/etc/systemd/system/prod.timer; systemctl start prod.timer",
            "started again by prod.timer",
        ),
        ("mount --bind -o ro /etc/systemd/system /etc/systemd/system", "cannot be written"),
        (
            "mkdir -p /var/lib/autotuner; mount -t tmpfs -o size=1m small /var/lib/autotuner; chmod 700 /var/lib/autotuner",
            "too little room",
        ),
        ("sed -i 's/^ExecStart=.*/ExecStart=sleep 600/' $U; systemctl daemon-reload; systemctl restart prod", "does not answer"),
    ],
)
def test_what_could_not_be_brought_back(host: Machine, script: str, expected: str):
    try:
        host.run(["sh", "-c", script.replace("$U", "/etc/systemd/system/prod.service")])
        before = invocation(host)
        assert expected in Night(host).problems()
        assert invocation(host) == before
    finally:
        for folder in ("/etc/systemd/system", "/var/lib/autotuner"):
            host.run(["umount", "-l", folder], check=False)
        host.run(["sh", "-c", "rm -f /run/systemd/system/prod.service /etc/systemd/system/prod.timer; systemctl daemon-reload"])


def test_a_unit_that_is_not_there_or_is_starting(host: Machine):
    assert "nope.service does not exist" in Night(host, unit="nope").problems()
    host.light_production(directives={"ExecStartPost": "/bin/sleep 20"}, start=False)
    host.run(["systemctl", "restart", "--no-block", PROD])
    until(lambda: Night(host).show(PROD, "ActiveState") == "activating", "activating")
    assert "is activating right now" in Night(host).problems()


def test_a_template_is_said_to_be_one(host: Machine):
    assert "prod@.service is a template without an instance" in Night(host, unit="prod@").problems()


@pytest.mark.parametrize("name", ["ssh.service", "sshd.service", "ssh.socket", "ssh@0-10.0.0.1:22.service"])
def test_the_way_by_which_the_tuner_comes_is_not_in_conflict(host: Machine, name: str):
    request = {"unit": None, "conflicts": [name], "port": 30001, "address": "127.0.0.1", "ready_path": "/", "models_path": None}
    night = Night(host)
    for ssh in (True, False):
        said = "\n".join(problem["message"] for problem in night.call("units", **request, ssh=ssh)["problems"])
        assert ("is the way by which the tuner reaches this host" in said) is ssh  # under its own name, or the one it is an alias of


def test_a_unit_that_the_tuner_itself_belongs_to_is_not_in_conflict(host: Machine):
    program = host.out("sh", "-c", "ls /var/lib/autotuner/onhost-*.pyz") if Night(host).look() else ""
    asked = '{"unit": null, "conflicts": ["other.service"], "port": 30001, "address": "127.0.0.1", "ready_path": "/", "models_path": null}'
    script = f"echo '{asked}' | python3 {program} units; exit 0"
    said = host.out("systemd-run", "-q", "--unit=other", "--wait", "--pipe", "sh", "-c", script)
    assert "other.service is the way by which the tuner reaches this host" in said


def test_a_stranger_on_the_port(host: Machine):
    host.run(["systemctl", "stop", PROD])
    host.run(["systemd-run", "-q", "--scope", "sh", "-c", f"{LIGHT} -m http.server 30000 >/dev/null 2>&1 &"])
    try:
        until(lambda: "http.server" in Night(host).problems(), "the stranger")
        assert "is held by" in Night(host, unit="auto").problems()
    finally:
        host.run(["sh", "-c", "pkill -f 'http[.]server 30000'"])


def test_a_changed_environment_file(host: Machine):
    host.write("/etc/default/prod", "A=1\n")
    host.run(["touch", "-d", "-1 day", "/etc/default/prod"])
    host.light_production(directives={"EnvironmentFile": "/etc/default/prod"})
    host.run(["systemctl", "restart", PROD])
    until(host.healthy, "production")
    assert Night(host).problems() == ""
    host.run(["touch", "-d", "+1 second", "/etc/default/prod"])
    until(lambda: "/etc/default/prod changed after" in Night(host).problems(), "the finding")


def test_a_unit_started_through_a_shell_or_with_variables_is_only_remarked(host: Machine):
    argv = host.light_production(start=False)
    host.write("/usr/local/bin/serve", f"#!/bin/sh\nexec {' '.join(argv)}\n", mode=0o755)
    host.light_production(directives={"ExecStart": "/usr/local/bin/serve"}, start=False)
    host.run(["systemctl", "restart", PROD])
    until(host.healthy, "production")
    found = Night(host).look()
    assert found["problems"] == []
    assert "through a shell" in found["notes"][0]


def test_what_would_be_stopped_along_is_started_again(host: Machine):
    host.write("/etc/systemd/system/other.service", f"[Unit]\nBindsTo={PROD}\nAfter={PROD}\n[Service]\nExecStart=sleep 600\n")
    host.run(["systemctl", "start", "other"])
    night = Night(host)
    assert [(unit["name"], unit["role"]) for unit in night.look()["units"]] == [(PROD, "production"), ("other.service", "dependent")]
    night.take()
    assert night.show("other.service", "ActiveState") == "inactive"
    night.ask(keep=False)
    night.assert_over()
    assert night.show("other.service", "ActiveState") == "active"


def test_a_socket_that_starts_production_is_stopped_and_opened_again_with_it(host: Machine):
    host.write("/etc/systemd/system/prod.socket", "[Socket]\nListenStream=127.0.0.1:30099\n")
    host.run(["sh", "-c", "systemctl daemon-reload; systemctl stop prod; systemctl start prod.socket prod.service"])
    until(host.healthy, "production")
    assert "started again by prod.socket" in Night(host).problems()
    night = Night(host, conflicts=("prod.socket",))
    night.take()
    assert night.show("prod.socket", "ActiveState") == "inactive"
    night.candidate()
    night.ask(keep=False)
    night.assert_over()
    assert (night.show("prod.socket", "ActiveState"), night.show(PROD, "ActiveState")) == ("active", "active")
