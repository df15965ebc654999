"""Production comes back as it was, whoever fails meanwhile."""

from __future__ import annotations

import time

import pytest

from autotuner.errors import AutotunerError
from tests.hosts.inside import PROD, Night, invocation
from tests.hosts.machine import Machine, until

pytestmark = pytest.mark.host


def test_silence(host: Machine):
    night = Night(host, ttl_s=8.0)
    night.take()
    night.candidate()
    for _ in range(10):
        time.sleep(1.0)  # longer than the time to live in all
        assert night.call("renew", session=night.folder, token=night.token) == {"live": True}
    assert night.units("--all").count("running") == 1
    night.assert_over()
    until(host.healthy, "production")
    assert night.call("renew", session=night.folder, token=night.token) == {"live": False}
    assert night.arm_again()["kind"] == "fenced"


def test_a_kept_restore_is_verified_and_disarmed_and_a_repeated_restore_changes_nothing(host: Machine):
    night = Night(host)
    night.take()
    night.candidate()
    night.ask(keep=True)
    night.until_restored()
    before = invocation(host)
    assert night.call("verify", session=night.folder) == {"problems": [], "notes": [], "running": []}
    night.ask(keep=True)
    night.until_restored()
    assert invocation(host) == before
    assert night.state()["armed"]
    for _ in range(2):
        assert night.call("disarm", session=night.folder, token=night.token) == {}
    night.assert_over()


def test_a_kept_restore_that_nobody_looks_at_is_repaired_and_ended(host: Machine):
    night = Night(host, ttl_s=3.0)
    night.take()
    night.ask(keep=True)
    night.until_restored()
    host.run(["systemctl", "kill", "-s", "KILL", PROD])
    night.assert_over()
    until(host.healthy, "production")


@pytest.mark.parametrize("failures", [3, 7])
def test_production_that_fails_a_few_times_then_works(host: Machine, failures: int):
    """Seven are more than the start limit allows."""
    night = Night(host)
    night.take()
    host.fail_starts(failures)
    night.ask(keep=False)
    night.assert_over()
    assert host.healthy()


def test_production_that_never_works_is_loud_and_retried_until_it_does(host: Machine):
    night = Night(host, limits={"stop_timeout_s": 3.0, "ready_timeout_s": 3.0})
    night.take()
    host.fail_starts(1_000_000)
    night.ask(keep=False)
    until(lambda: (night.state()["outcome"] or {}).get("ok") is False, "the outcome")
    assert "prod.service is" in night.state()["outcome"]["detail"]
    host.fail_starts(0)
    night.assert_over()
    assert host.healthy()


def test_a_slow_start_is_waited_for(host: Machine):
    night = Night(host)
    night.take()
    host.slow_starts(6)
    night.ask(keep=True)
    night.until_restored()
    assert host.healthy()
    host.slow_starts(0)
    night.call("disarm", session=night.folder, token=night.token)
    night.assert_over()


def test_inactive_before_stays_inactive_and_an_edit_is_kept(host: Machine):
    host.light_production("other.service", port=30001)
    host.run(["systemctl", "stop", PROD])
    night = Night(host, conflicts=("other",))
    night.take()
    night.candidate()
    assert night.show("other.service", "ActiveState") == "inactive"
    host.run(["sh", "-c", "echo '# mine' >>/etc/systemd/system/other.service; systemctl daemon-reload"])
    night.ask(keep=True)
    night.until_restored()
    assert night.show(PROD, "ActiveState") == "inactive"
    assert night.show("other.service", "ActiveState") == "active"
    assert "changed on disk by somebody else" in night.call("verify", session=night.folder)["notes"][0]
    night.call("disarm", session=night.folder, token=night.token)
    night.assert_over(reloaded=True)
    assert "# mine" in host.read("/etc/systemd/system/other.service")


def test_a_timer_that_somebody_stopped_or_removed_is_there_again_after_a_renewal(host: Machine):
    night = Night(host)
    night.take()
    host.run(["sh", "-c", "systemctl stop 'autotuner-restore*.timer'; rm /etc/systemd/system/autotuner*.timer"])
    host.run(["sh", "-c", "rm /etc/systemd/system/*/autotuner*.service /etc/systemd/system/autotuner*.service"])
    assert not night.state()["armed"]
    assert night.call("renew", session=night.folder, token=night.token) == {"live": True}
    assert night.state()["armed"]
    night.ask(keep=False)
    night.assert_over()
    assert host.healthy()


def test_without_a_message_bus(host: Machine):
    night = Night(host)
    host.run(["systemctl", "stop", "dbus.socket", "dbus.service"])
    try:
        night.take()
        night.services.stop(night.candidate(), timeout_s=3)
        night.ask(keep=False)
        night.assert_over()
        assert host.healthy()
    finally:
        host.run(["systemctl", "start", "dbus.socket"])


def test_nothing_can_be_armed(host: Machine):
    night = Night(host)
    snapshot = night.snapshot()
    before = invocation(host)
    host.read_only("/etc/systemd/system")
    try:
        with pytest.raises(AutotunerError, match="Read-only file system"):
            night.call("arm", session=night.folder, snapshot=snapshot)
    finally:
        host.writable("/etc/systemd/system")
    assert invocation(host) == before
    night.call("break-lease", path=snapshot["leases"][0], token=night.token)
    night.assert_over()


def test_power_cut_with_production_not_enabled(host: Machine):
    host.run(["systemctl", "disable", "-q", PROD])
    night = Night(host)
    night.take()
    night.candidate()
    host.run(["sync"])
    host.kill()
    host.up()
    until(host.healthy, "production")
    night.assert_over()
    assert night.show(PROD, "UnitFileState") == "disabled"


def test_full_disk(host: Machine):
    host.run(["rm", "-rf", "/var/lib/autotuner"])
    host.small_disk("/var/lib/autotuner", 8)
    host.run(["chmod", "700", "/var/lib/autotuner"])
    try:
        night = Night(host)
        night.take()
        handle = night.candidate()
        host.fill("/var/lib/autotuner")
        assert night.call("renew", session=night.folder, token=night.token) == {"live": True}
        night.services.stop(handle, timeout_s=3)
        night.candidate(name="candidate-2")
        night.ask(keep=True)
        night.until_restored()
        assert host.healthy()
        assert night.call("disarm", session=night.folder, token=night.token) == {}
        night.assert_over()
    finally:
        host.writable("/var/lib/autotuner")
