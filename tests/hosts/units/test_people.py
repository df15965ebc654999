"""What people ask for by hand, and what a user without root may."""

from __future__ import annotations

import json

import pytest

from autotuner.errors import Refused, StopStudy
from autotuner.services.hostside import grant_script
from tests.hosts.inside import LEASES, PROD, Night
from tests.hosts.machine import Machine, until

pytestmark = pytest.mark.host


def granted(host: Machine) -> None:
    """A user to whom an administrator granted production."""
    if not host.out("id", "-u", "tuner"):
        host.add_user("tuner")
    host.write("/root/grant", grant_script("tuner", [PROD]))
    host.run(["sh", "/root/grant"])


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


def test_what_a_granted_user_says_of_units_is_not_believed(host: Machine):
    granted(host)
    night = Night(host, user="tuner")
    snapshot = night.snapshot()
    for said in ({"limits": {"LimitNICE": "40:40"}}, {"active": False}, {"sha256": "0" * 64}, {"User": "tuner"}):
        production = {**snapshot["production"], **said}
        reply = night.call("arm", session=night.folder, snapshot={**snapshot, "units": [production], "production": production})
        assert (reply["kind"], reply["error"]) == ("changed", f"{PROD} changed while the host was looked at"), said
    assert night.call("arm", session=night.folder, snapshot={**snapshot, "production": None})["kind"] == "not-allowed"
    assert night.units("--all") == ""
    assert night.call("arm", session=night.folder, snapshot=snapshot) == {}
    night.ask(keep=False)
    night.assert_over()


def test_a_granted_user_does_not_reach_the_session_of_another_unit(host: Machine):
    host.light_production("other.service", port=30001)
    granted(host)
    roots = Night(host, unit="other", port=30001)
    roots.take()
    try:
        user = Night(host, user="tuner")
        assert user.call("session", session=roots.folder)["live"], "that somebody tunes is no secret"
        for command, request in (
            ("request-restore", {"session": roots.folder, "keep": False}),
            ("restore", {"session": roots.folder}),
            ("stop-production", {"session": roots.folder, "token": roots.token}),
            ("disarm", {"session": roots.folder, "token": roots.token}),
            ("break-lease", {"path": f"{LEASES}/port-30001.json", "token": roots.token}),
        ):
            reply = user.side.call(command, request)
            assert (reply["kind"], "may not touch other.service" in reply["error"]) == ("not-allowed", True), command
        assert roots.state()["live"]
        assert host.exists(f"{LEASES}/port-30001.json")
    finally:
        roots.ask(keep=False)
        roots.assert_over()
