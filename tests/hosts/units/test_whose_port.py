"""The endpoint's port must be production's own: shown before anything is stopped, and looked at again before it is called restored."""

from __future__ import annotations

import pytest

from tests.hosts.inside import LIGHT, PROD, Night, invocation
from tests.hosts.machine import Machine, until
from tests.hosts.production import LIGHT_SERVER

pytestmark = pytest.mark.host

OTHER = "other.service"


def where_told(host: Machine) -> None:
    """Production listens where a file on the host says."""
    host.write("/var/lib/prod-port", "30000")
    command = f"exec {LIGHT} -S -E {LIGHT_SERVER} --host 127.0.0.1 --port $$(cat /var/lib/prod-port) --served-model-name production"
    host.light_production(directives={"ExecStart": f"/bin/sh -c '{command}'"}, start=False)
    host.run(["systemctl", "restart", PROD])
    until(host.healthy, "production")


def test_a_port_on_which_a_unit_in_conflict_listens_is_refused(host: Machine):
    host.light_production(OTHER, port=30001)
    before = [invocation(host, unit) for unit in (PROD, OTHER)]
    night = Night(host, conflicts=("other",), port=30001)
    (problem,) = night.look()["problems"]
    pids = {unit: night.show(unit, "MainPID") for unit in (PROD, OTHER)}
    assert problem["message"] == (
        f"{PROD} (pid {pids[PROD]}) does not answer on port 30001: it listens on port 30000,"
        f" and port 30001 is held by {OTHER} (pid {pids[OTHER]})"
    )
    assert "write `port: 30000`" in problem["hint"]
    assert [invocation(host, unit) for unit in (PROD, OTHER)] == before


def test_a_host_is_not_armed_for_a_port_that_is_not_productions(host: Machine):
    """Whoever took the snapshot is not believed."""
    host.light_production(OTHER, port=30001)
    snapshot = Night(host, conflicts=("other",)).snapshot()
    night = Night(host, port=30001)
    reply = night.call("arm", session=night.folder, snapshot={**snapshot, "port": 30001})
    assert reply["kind"] == "changed"
    assert f"{PROD} does not answer on port 30001: it listens on port 30000" in reply["error"]
    assert night.units("--all") == ""
    night.call("break-lease", path=snapshot["leases"][0], token=night.token)
    night.assert_over()


def test_a_unit_that_is_production_and_in_conflict_at_once_is_refused(host: Machine):
    host.light_production(OTHER, port=30001)
    assert (
        f"{OTHER} is production, and in service.conflicts as well" in Night(host, unit="auto", conflicts=("other",), port=30001).problems()
    )


def test_a_unit_in_conflict_that_listens_while_production_does_not_run_is_refused(host: Machine):
    host.light_production(OTHER, port=30001)
    for unit in (PROD, None):
        host.run(["systemctl", "stop", PROD])
        assert f"port 30001 is held by {OTHER} (pid " in Night(host, unit=unit, conflicts=("other",), port=30001).problems()


def test_what_listens_beside_production_on_another_address_is_refused(host: Machine):
    host.light_production(OTHER, address="127.0.0.2")
    assert f"port 30000 is held by {OTHER} (pid " in Night(host).problems()


def test_production_that_fails_keeps_no_unit_in_conflict_down(host: Machine):
    host.light_production(OTHER, port=30001)
    night = Night(host, conflicts=("other",), limits={"stop_timeout_s": 3.0, "ready_timeout_s": 3.0})
    night.take()
    assert night.show(OTHER, "ActiveState") == "inactive"
    host.fail_starts(1_000_000)
    night.ask(keep=False)
    until(lambda: (night.state()["outcome"] or {}).get("ok") is False, "the outcome")
    assert (night.show(OTHER, "ActiveState"), host.healthy(30001)) == ("active", True)
    assert OTHER not in night.state()["outcome"]["detail"]
    before = invocation(host, OTHER)
    host.fail_starts(0)
    night.assert_over()
    assert host.healthy()
    assert invocation(host, OTHER) == before, "what is back is left alone"


def test_another_server_on_the_port_is_not_taken_for_production(host: Machine):
    where_told(host)
    host.light_production(OTHER, port=30001)
    night = Night(host, conflicts=("other",), limits={"stop_timeout_s": 3.0, "ready_timeout_s": 3.0})
    night.take()
    host.write("/var/lib/prod-port", "30005")
    host.light_production("otherwise.service", label="production")
    night.ask(keep=False)
    until(lambda: (night.state()["outcome"] or {}).get("ok") is False, "the outcome")
    pid = night.show("otherwise.service", "MainPID")
    assert (
        f"{PROD} is active, but after 3 s it does not answer on port 30000: it listens on port 30005,"
        f" and port 30000 is held by otherwise.service (pid {pid})"
    ) in night.state()["outcome"]["detail"]
    assert night.show(OTHER, "ActiveState") == "active"
    host.run(["systemctl", "stop", "otherwise.service"])
    host.write("/var/lib/prod-port", "30000")
    host.run(["systemctl", "restart", PROD])
    night.assert_over(reloaded=True)
    assert host.healthy()
