"""What people ask for by hand, and what a user without root may."""

from __future__ import annotations

import json

import pytest

from autotuner.errors import Refused, StopStudy
from autotuner.services.hostside import grant_script
from tests.hosts.inside import PROD, Night
from tests.hosts.machine import Machine, until

pytestmark = pytest.mark.host


def test_what_people_ask_for_by_hand(host: Machine):
    night = Night(host)
    stopped = night.call("unit-do", verb="stop", units=["prod"], timeout_s=10)["units"]
    assert [(unit["name"], unit["ActiveState"]) for unit in stopped] == [(PROD, "inactive")]
    assert night.call("unit-do", verb="start", units=["prod"], timeout_s=10)["units"][0]["ActiveState"] == "active"
    assert night.call("unit-show", units=["prod"])["units"][0]["FragmentPath"] == "/etc/systemd/system/prod.service"
    assert "Started prod.service" in night.call("unit-log", unit="prod", lines=5)["text"]


def test_a_user_without_root(host: Machine):
    host.light_production("other.service", port=30001)
    host.add_user("tuner")
    host.write("/root/grant", grant_script("tuner", [PROD]))
    with pytest.raises(Refused, match="without root"):
        Night(host, user="tuner").side.state  # noqa: B018 - asked for the first time
    host.run(["sh", "/root/grant"])
    night = Night(host, user="tuner")
    night.take()
    handle = night.start("/bin/sh", "-c", "id -un; exec sleep 600", cwd="/home/tuner")
    until(lambda: night.services.log(handle) == b"tuner\n", "the log")
    host.write("/root/token", "x", mode=0o600)
    with pytest.raises(StopStudy, match="Permission denied"):
        night.start("/bin/true", name="candidate-2", secrets={"TOKEN": "file:/root/token"})
    night.services.stop(handle, timeout_s=3)
    night.ask(keep=False)
    night.assert_over()
    assert host.healthy()
    for command, request in (
        ("unit-do", {"verb": "stop", "units": ["other"]}),
        ("unit-do", {"verb": "stop", "units": [PROD, "ssh"]}),
        ("unit-log", {"unit": "ssh.service"}),
        (
            "arm",
            {
                "session": night.folder,
                "snapshot": {"manager": "process", "production": {}, "units": [], "leases": [], "state": "/var/lib/autotuner"},
            },
        ),
        ("arm", {"session": "/elsewhere", "snapshot": {}}),
        ("restore", {"session": "/home/tuner/sessions/1"}),
        ("start", {"manager": "process", "state": "/home/tuner", "session": "/home/tuner", "name": "x"}),
        ("break-lease", {"path": "/etc/passwd", "token": "t"}),
    ):
        assert night.side.call(command, request)["kind"] == "not-allowed", command
    assert "may not touch other.service" in Night(host, user="tuner", conflicts=("other",)).problems()
    done = host.run(["runuser", "-u", "tuner", "--", "sudo", "-n", "/usr/local/lib/autotuner/host", "exec", "/root/x"], check=False)
    assert done.returncode != 0
    assert json.loads(host.run(["cat", "/etc/autotuner/allow.json"]).stdout) == {"users": {"tuner": {"units": [PROD]}}}
