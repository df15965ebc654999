"""Production and candidates as real units: what is refused, how candidates end, and who brings production back."""

from __future__ import annotations

import json
import random
import time

import pytest

from autotuner.errors import AutotunerError, Refused, StopStudy
from autotuner.services.hostside import grant_script
from tests.hosts.inside import LIGHT, Night
from tests.hosts.machine import Machine, until

pytestmark = pytest.mark.host

PROD = "prod.service"


def invocation(machine: Machine, unit: str = PROD) -> str:
    return machine.out("systemctl", "show", "--value", "-p", "InvocationID", unit)


@pytest.fixture(scope="module")
def shared(pool) -> Machine:
    """One host for tests that leave it as they found it."""
    return pool[0].fresh()


CLEAN = """
systemctl stop 'prod*' 'other*' 'autotuner*'
umount -l /etc/systemd/system /var/lib/autotuner 2>/dev/null
rm -rf /etc/systemd/system/prod* /etc/systemd/system/other* /run/systemd/system/prod* /var/lib/*.failures /var/lib/*.slow
rm -rf /etc/systemd/system/autotuner* /etc/systemd/system/*/autotuner* /var/lib/autotuner/* /var/tmp/autotuner-lease/* /run/autotuner
systemctl daemon-reload
systemctl reset-failed
"""


@pytest.fixture
def host(shared: Machine) -> Machine:
    shared.run(["sh", "-c", CLEAN])
    shared.light_production()
    return shared


class TestRefusals:
    """Each before anything is stopped."""

    def test_a_unit_as_it_should_be_is_not_refused(self, host: Machine):
        found = Night(host).look()
        assert found["problems"] == []
        unit = found["units"][0]
        assert (unit["active"], unit["answered"], unit["models"], unit["role"]) == (True, True, ["production"], "production")
        assert unit["argv"][-1] == "production"

    def test_auto_finds_the_unit_behind_the_port(self, host: Machine):
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
    def test_what_could_not_be_brought_back(self, host: Machine, script: str, expected: str):
        try:
            host.run(["sh", "-c", script.replace("$U", "/etc/systemd/system/prod.service")])
            before = invocation(host)
            assert expected in Night(host).problems()
            assert invocation(host) == before
        finally:
            for folder in ("/etc/systemd/system", "/var/lib/autotuner"):
                host.run(["umount", "-l", folder], check=False)
            host.run(["sh", "-c", "rm -f /run/systemd/system/prod.service /etc/systemd/system/prod.timer; systemctl daemon-reload"])

    def test_a_unit_that_is_not_there_or_is_starting(self, host: Machine):
        assert "nope.service does not exist" in Night(host, unit="nope").problems()
        host.light_production(directives={"ExecStartPost": "/bin/sleep 20"}, start=False)
        host.run(["systemctl", "restart", "--no-block", PROD])
        until(lambda: Night(host).show(PROD, "ActiveState") == "activating", "activating")
        assert "is activating right now" in Night(host).problems()

    def test_a_stranger_on_the_port(self, host: Machine):
        host.run(["systemctl", "stop", PROD])
        host.run(["systemd-run", "-q", "--scope", "sh", "-c", f"{LIGHT} -m http.server 30000 >/dev/null 2>&1 &"])
        try:
            until(lambda: "http.server" in Night(host).problems(), "the stranger")
            assert "is held by" in Night(host, unit="auto").problems()
        finally:
            host.run(["sh", "-c", "pkill -f 'http[.]server 30000'"])

    def test_a_changed_environment_file(self, host: Machine):
        host.write("/etc/default/prod", "A=1\n")
        host.run(["touch", "-d", "-1 day", "/etc/default/prod"])
        host.light_production(directives={"EnvironmentFile": "/etc/default/prod"})
        host.run(["systemctl", "restart", PROD])
        until(host.healthy, "production")
        assert Night(host).problems() == ""
        host.run(["touch", "-d", "+1 second", "/etc/default/prod"])
        until(lambda: "/etc/default/prod changed after" in Night(host).problems(), "the finding")

    def test_a_unit_started_through_a_shell_or_with_variables_is_only_remarked(self, host: Machine):
        argv = host.light_production(start=False)
        host.write("/usr/local/bin/serve", f"#!/bin/sh\nexec {' '.join(argv)}\n", mode=0o755)
        host.light_production(directives={"ExecStart": "/usr/local/bin/serve"}, start=False)
        host.run(["systemctl", "restart", PROD])
        until(host.healthy, "production")
        found = Night(host).look()
        assert found["problems"] == []
        assert "through a shell" in found["notes"][0]

    def test_what_would_be_stopped_along_is_started_again(self, host: Machine):
        host.write("/etc/systemd/system/other.service", f"[Unit]\nBindsTo={PROD}\nAfter={PROD}\n[Service]\nExecStart=sleep 600\n")
        host.run(["systemctl", "start", "other"])
        night = Night(host)
        assert [(unit["name"], unit["role"]) for unit in night.look()["units"]] == [(PROD, "production"), ("other.service", "dependent")]
        night.take()
        assert night.show("other.service", "ActiveState") == "inactive"
        night.ask(keep=False)
        night.assert_over()
        assert night.show("other.service", "ActiveState") == "active"

    def test_a_socket_that_starts_production_is_stopped_and_opened_again_with_it(self, host: Machine):
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


class TestCandidates:
    @pytest.fixture
    def night(self, host: Machine):
        night = Night(host)
        night.take()
        yield night
        night.ask(keep=False)
        night.assert_over()
        assert host.healthy()

    def test_it_serves_and_is_stopped_with_its_children(self, night: Night):
        script = "trap '' TERM; sh -c 'trap \"\" TERM; sleep 600 & wait; sleep 600' & echo up; while :; do sleep 1; done"
        handle = night.start("/bin/sh", "-c", script)
        until(lambda: night.services.log(handle) == b"up\n", "the log")
        assert night.services.status(handle).running
        group = night.show("autotuner-30000-candidate-1.service", "ControlGroup")
        night.services.stop(handle, timeout_s=2)
        night.services.stop(handle, timeout_s=2)
        assert night.machine.out("sh", "-c", f"cat /sys/fs/cgroup/systemd{group}/cgroup.procs") == ""
        status = night.services.status(handle)
        assert (status.running, status.by_hand) == (False, False)
        assert night.services.log(handle, offset=3) == b""

    def test_the_listener_is_known_as_its_own(self, night: Night):
        night.candidate()
        state = night.side.state
        assert night.call("owned", port=30000, manager="systemd", state=state, name="candidate-1")["ours"]
        assert not night.call("owned", port=30000, manager="systemd", state=state, name="candidate-2")["ours"]

    @pytest.mark.parametrize(
        ("script", "exit_code"), [("exit 3", 3), ("exit 0", 0), ("kill -KILL $$", -9), ("kill -SEGV $$", -11), ("kill -TERM $$", -15)]
    )
    def test_how_it_ended(self, night: Night, script: str, exit_code: int):
        handle = night.start("/bin/sh", "-c", f"echo said; {script}")
        until(lambda: not night.services.status(handle).running, "the end")
        status = night.services.status(handle)
        expected = 0 if script.startswith("kill -TERM") else exit_code  # systemd counts SIGTERM as a clean end
        assert status.exit_code in {expected, exit_code}
        assert (status.by_hand, status.out_of_memory) == (False, False)
        assert night.services.log(handle) == b"said\n"

    def test_the_same_name_can_be_started_again_after_it_failed(self, night: Night):
        first = night.start("/bin/false")
        until(lambda: not night.services.status(first).running, "the end")
        assert night.services.status(first).exit_code == 1
        second = night.start("/bin/sh", "-c", "echo again; sleep 600")
        until(lambda: night.services.log(second) == b"again\n", "the log of the second only")

    def test_a_stop_by_hand_is_told_from_an_end_of_its_own(self, night: Night):
        handle = night.candidate()
        night.machine.run(["systemctl", "stop", "autotuner-30000-candidate-1"])
        assert night.services.status(handle).by_hand

    def test_a_stop_by_hand_of_a_server_that_ends_with_an_error(self, night: Night):
        handle = night.start("/bin/sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.1; done")
        until(lambda: night.services.log(handle) == b"up\n", "the log")
        night.machine.run(["systemctl", "stop", "autotuner-30000-candidate-1"])
        status = night.services.status(handle)
        assert (status.exit_code, status.by_hand) == (7, True)

    def test_starting_production_by_hand_ends_the_candidate_and_the_session(self, night: Night):
        handle = night.candidate()
        night.machine.run(["systemctl", "start", PROD])
        until(lambda: night.services.status(handle).by_hand, "the verdict")
        assert night.state()["by_hand"] == "prod.service was started by hand"
        before = invocation(night.machine)
        assert night.call("stop-production", session=night.folder, token=night.token)["kind"] == "by-hand"
        with pytest.raises(StopStudy, match="started by hand"):
            night.candidate(name="candidate-2")
        night.ask(keep=True)
        night.until_restored()
        assert invocation(night.machine) == before

    def test_hostile_arguments_and_environment_arrive_byte_for_byte(self, night: Night):
        chosen = random.Random(7)
        alphabet = [
            "$",
            "${HOME}",
            "$$",
            "%H",
            "%%",
            "\\",
            "\\x41",
            "'",
            '"',
            " ",
            "\n",
            "\t",
            ";",
            "é",
            "漢",
            "\x01",
            "\udcff",
            "{}",
            "-",
            "a",
            "*",
        ]
        words = ["".join(chosen.choice(alphabet) for _ in range(chosen.randint(0, 12))) for _ in range(60)]
        argv = (
            "/bin/sh",
            "-c",
            'printf "%s\\0" "$@" | od -An -v -tx1 | tr -d " \\n"; echo; printf %s "$HOSTILE" | od -An -v -tx1 | tr -d " \\n"; echo',
            "sh",
        )
        handle = night.start(*argv, *words, env={"HOSTILE": "".join(words)})
        until(lambda: not night.services.status(handle).running, "the end")
        first, second = night.services.log(handle).decode().split()
        assert bytes.fromhex(first) == b"".join(word.encode(errors="surrogateescape") + b"\0" for word in words)
        assert bytes.fromhex(second) == "".join(words).encode(errors="surrogateescape")

    def test_secrets_reach_the_process_and_nothing_else(self, night: Night):
        night.machine.write("/root/token", "canary-7f3a\n", mode=0o600)
        script = 'test "${TOKEN%-7f3a}" = canary && echo yes; sleep 600'
        handle = night.start("/bin/sh", "-c", script, secrets={"TOKEN": "file:/root/token"})
        until(lambda: night.services.log(handle) == b"yes\n", "the log")
        found = night.machine.out("sh", "-c", "grep -rl canary-7f /run/systemd /run/autotuner /etc /var/lib/autotuner /var/log 2>/dev/null")
        assert found == ""
        shown = night.machine.out("systemctl", "show", "autotuner-30000-candidate-1") + night.machine.out("journalctl", "-o", "verbose")
        assert "canary-7f" not in shown
        with pytest.raises(StopStudy, match="/root/nope: No such file"):
            night.start("/bin/true", name="candidate-2", secrets={"TOKEN": "file:/root/nope"})

    def test_a_program_or_folder_that_is_not_there_is_named(self, night: Night):
        with pytest.raises(StopStudy, match="/no/python: No such file"):
            night.start("/no/python")
        with pytest.raises(StopStudy, match="/no/folder: No such file"):
            night.start("/bin/true", cwd="/no/folder")

    def test_a_log_that_is_not_text_and_not_short(self, night: Night):
        script = r"printf 'a\377b\n'; head -c 200000 /dev/zero | tr '\0' x; echo; seq 30000; echo end"
        handle = night.start("/bin/sh", "-c", script)
        until(lambda: not night.services.status(handle).running, "the end")
        text, chunk = b"", b"-"
        while chunk:
            chunk = night.services.log(handle, offset=len(text))
            text += chunk
        assert text == b"a\xffb\n" + b"x" * 200000 + b"\n" + b"".join(b"%d\n" % n for n in range(1, 30001)) + b"end\n"

    def test_out_of_memory_is_told_from_a_kill(self, night: Night):
        code = "import time; time.sleep(2); kept = [bytearray(1 << 20) for _ in range(300)]"
        handle = night.start(LIGHT, "-c", code)
        night.machine.run(["systemctl", "set-property", "--runtime", "autotuner-30000-candidate-1.service", "MemoryMax=60M"])
        until(lambda: not night.services.status(handle).running, "the end")
        status = night.services.status(handle)
        assert (status.exit_code, status.out_of_memory, status.by_hand) == (-9, True, False)
        night.machine.run(["sh", "-c", "rm -rf /run/systemd/system.control/autotuner*"])

    def test_the_same_start_again_is_answered_with_the_same_server(self, night: Night):
        request = {
            **night.services._request("candidate-1"),
            "session": night.folder,
            "mark": "candidate-1/1",
            "argv": ["/bin/sleep", "600"],
        }
        request = {**request, "env": {}, "cwd": "/", "secrets": {}}
        first = night.side.call("start", request)
        assert night.side.call("start", request) == first
        assert "runs already" in night.side.call("start", {**request, "mark": "candidate-1/2"})["error"]


class TestComingBack:
    def test_silence(self, host: Machine):
        night = Night(host, ttl_s=3.0)
        night.take()
        night.candidate()
        for _ in range(4):
            time.sleep(1.0)  # longer than the time to live in all
            assert night.call("renew", session=night.folder, token=night.token) == {"live": True}
        assert night.units("--all").count("running") == 1
        night.assert_over()
        until(host.healthy, "production")
        assert night.call("renew", session=night.folder, token=night.token) == {"live": False}
        assert night.arm_again()["kind"] == "fenced"

    def test_a_kept_restore_is_verified_and_disarmed_and_a_repeated_restore_changes_nothing(self, host: Machine):
        night = Night(host)
        night.take()
        night.candidate()
        night.ask(keep=True)
        night.until_restored()
        before = invocation(host)
        assert night.call("verify", session=night.folder) == {"problems": [], "notes": []}
        night.ask(keep=True)
        night.until_restored()
        assert invocation(host) == before
        assert night.state()["armed"]
        for _ in range(2):
            assert night.call("disarm", session=night.folder, token=night.token) == {}
        night.assert_over()

    def test_a_kept_restore_that_nobody_looks_at_is_repaired_and_ended(self, host: Machine):
        night = Night(host, ttl_s=3.0)
        night.take()
        night.ask(keep=True)
        night.until_restored()
        host.run(["systemctl", "kill", "-s", "KILL", PROD])
        night.assert_over()
        until(host.healthy, "production")

    @pytest.mark.parametrize("failures", [3, 7])
    def test_production_that_fails_a_few_times_then_works(self, host: Machine, failures: int):
        """Seven are more than the start limit allows."""
        night = Night(host)
        night.take()
        host.fail_starts(failures)
        night.ask(keep=False)
        night.assert_over()
        assert host.healthy()

    def test_production_that_never_works_is_loud_and_retried_until_it_does(self, host: Machine):
        night = Night(host, limits={"stop_timeout_s": 3.0, "ready_timeout_s": 3.0})
        night.take()
        host.fail_starts(1_000_000)
        night.ask(keep=False)
        until(lambda: (night.state()["outcome"] or {}).get("ok") is False, "the outcome")
        assert "prod.service is" in night.state()["outcome"]["detail"]
        host.fail_starts(0)
        night.assert_over()
        assert host.healthy()

    def test_a_slow_start_is_waited_for(self, host: Machine):
        night = Night(host)
        night.take()
        host.slow_starts(6)
        night.ask(keep=True)
        night.until_restored()
        assert host.healthy()
        host.slow_starts(0)
        night.call("disarm", session=night.folder, token=night.token)
        night.assert_over()

    def test_inactive_before_stays_inactive_and_an_edit_is_kept(self, host: Machine):
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

    def test_a_timer_that_somebody_stopped_or_removed_is_there_again_after_a_renewal(self, host: Machine):
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

    def test_without_a_message_bus(self, host: Machine):
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

    def test_nothing_can_be_armed(self, host: Machine):
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

    def test_power_cut_with_production_not_enabled(self, host: Machine):
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

    def test_full_disk(self, host: Machine):
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
