"""Sessions on booted hosts over ssh, with units of systemd: whatever happens, the host serves afterwards what it served before."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from autotuner.deploy import HostSession, Server, recovery
from autotuner.engines.sglang.engine import SglangEngine
from autotuner.errors import NotRestored, Refused, StopStudy
from autotuner.model.host import Host
from autotuner.services.base import LaunchSpec
from autotuner.services.registry import manager_for
from autotuner.transports.ssh.transport import RETRY_S, SshTransport
from tests.hosts.machine import Machine, until

pytestmark = pytest.mark.host

DATA = Path(__file__).parents[1] / "data" / "deploy"
PORT = 30000
TTL_S = 6.0
PROD = "prod.service"
ANY = "0.0.0.0"  # noqa: S104 - the test host is in a network of its own


@dataclass
class Tuned:
    """One host as a tuner sees it, and as it really is."""

    machine: Machine
    service: dict[str, object] = field(default_factory=lambda: {"manager": "systemd", "production": {"unit": PROD}})
    endpoint: dict[str, object] = field(default_factory=lambda: {"port": PORT})
    load: dict[str, object] = field(default_factory=dict)
    limits: dict[str, float] = field(
        default_factory=lambda: {"stop_timeout_s": 5.0, "ready_timeout_s": 30.0, "stage_timeout_s": 20.0, "lease_ttl_s": TTL_S}
    )
    notices: list[str] = field(default_factory=list)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def document(self) -> dict[str, object]:
        return {
            "apiVersion": "autotuner/v1",
            "kind": "Host",
            "metadata": {"name": "far"},
            "transport": self.machine.ssh_document(),
            "engine": {"name": "sglang", "python": "/usr/bin/python3"},
            "model": {"path": "/srv"},
            "service": self.service,
            "endpoint": self.endpoint,
            "load": self.load,
            "limits": self.limits,
            "simulate": {"profile": "ct200", "gpu": {"name": "none", "memory_gib": 1.0, "sm": 90, "link": "pcie"}},
        }

    @contextlib.contextmanager
    def session(self, ttl_s: float = TTL_S, holder: str = "a person", retry_s: float = RETRY_S) -> Iterator[HostSession]:
        host = Host.model_validate_json(json.dumps(self.document))
        assert host.transport.type == "ssh"
        transport = SshTransport(host.transport, retry_s=retry_s)
        with contextlib.closing(transport):
            yield HostSession(
                host,
                SglangEngine(),
                transport,
                manager_for(host, transport),
                holder=holder,
                purpose="a test",
                on_notice=self.notices.append,
                ttl_s=ttl_s,
            )

    def command(self, *arguments: str) -> tuple[str, ...]:
        return ("/usr/bin/python3", "-S", str(DATA / "sglang_like.py"), "--port", str(PORT), *arguments)

    def launch(self, session: HostSession, *arguments: str, name: str = "candidate-1-30000") -> Server:
        spec = LaunchSpec(name=name, argv=self.command(*arguments), env={"MARKER": name})
        return session.launch(spec, on_stage=lambda *_: None, should_stop=lambda: False)

    def tuner(self, phase: str, *, candidate: tuple[str, ...] = (), ttl_s: float = TTL_S) -> subprocess.Popen[str]:
        """A tuner of its own process that waits in ``phase``."""
        task = {"host": self.document, "phase": phase, "ttl_s": ttl_s, "candidate": self.command(*candidate)}
        process = subprocess.Popen([sys.executable, str(DATA / "controller.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None
        assert process.stdout is not None
        self.started.append(process)
        process.stdin.write(json.dumps(task))
        process.stdin.close()
        said = []
        for line in process.stdout:
            said.append(line.strip())
            if line.strip() == phase:
                return process
        raise AssertionError(f"the tuner ended before phase {phase}: {said}")

    def of(self, name: str, unit: str = PROD) -> str:
        return self.machine.out("systemctl", "show", "-P", name, unit)

    def invocation(self, unit: str = PROD) -> str:
        return self.of("InvocationID", unit)

    def argv(self, unit: str = PROD) -> list[str]:
        return self.machine.read(f"/proc/{self.of('MainPID', unit)}/cmdline").split("\0")[:-1]

    def candidate_runs(self) -> bool:
        units = self.machine.out("systemctl", "list-units", "--plain", "--no-legend", "--state=active", "autotuner-30000-*")
        return "autotuner-30000-" in units

    def left(self) -> list[str]:
        """What the tuner left on the host that speaks of a session."""
        states = "--state=active,activating,deactivating,reloading,failed"
        units = self.machine.out("systemctl", "list-units", states, "--plain", "--no-legend", "autotuner*").split("\n")
        script = "ls -d /etc/systemd/system/autotuner* /etc/systemd/system/*.wants/autotuner* /run/autotuner/* /var/tmp/autotuner-lease/*"
        files = self.machine.out("sh", "-c", f"{script} /var/lib/autotuner/sessions/* 2>/dev/null").split("\n")
        return [line for line in (*units, *files) if line.strip()]

    def assert_as_before(self, argv: list[str]) -> None:
        until(self.machine.healthy, "production")
        until(lambda: not self.left(), f"the end of the session: {self.left()}")
        assert self.argv() == argv
        assert self.of("ActiveState") == "active"
        assert self.of("UnitFileState") == "enabled"


@pytest.fixture
def tuned(machine: Machine) -> Iterator[Tuned]:
    made = Tuned(machine)
    yield made
    machine.undrop()
    for process in made.started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_whole_session_leaves_the_unit_as_it_was(tuned: Tuned) -> None:
    tuned.service["production"] = "auto"
    argv = tuned.machine.production(label="kimi")
    before = tuned.invocation()
    with tuned.session() as made, made as session:
        assert session.production is not None
        assert (session.production.unit, session.production.models) == (PROD, ("kimi",))
        assert session.production.argv == tuple(argv)
        assert session.load_path.source == "host"
        assert tuned.invocation() == before
        server = tuned.launch(session)
        assert tuned.of("ActiveState") == "inactive"
        assert server.info == {"label": "candidate", "marker": "candidate-1-30000"}
        assert server.facts.load_from == "host"
        server.check()
        second = tuned.launch(session, name="candidate-2-30000")
        assert second.info["marker"] == "candidate-2-30000"
        assert "ready to roll" in server.log()
        assert json.dumps(session.snapshot)
    tuned.assert_as_before(argv)
    assert tuned.invocation() != before
    assert tuned.notices == []


def test_a_session_that_launches_nothing_does_not_touch_production(tuned: Tuned) -> None:
    argv = tuned.machine.light_production()
    before = tuned.invocation()
    with tuned.session() as made, made:
        pass
    tuned.assert_as_before(argv)
    assert tuned.invocation() == before


def test_production_that_was_inactive_stays_inactive(tuned: Tuned) -> None:
    tuned.machine.light_production(start=False)
    with tuned.session() as made, made as session:
        assert session.production is None
        tuned.launch(session)
    until(lambda: not tuned.left(), "the end of the session")
    assert tuned.of("ActiveState") == "inactive"
    assert tuned.invocation() == ""


def test_units_in_conflict_are_stopped_and_started_again(tuned: Tuned) -> None:
    argv = tuned.machine.light_production()
    tuned.machine.light_production("beside.service", port=30001)
    tuned.service["conflicts"] = ["beside.service"]
    with tuned.session() as made, made as session:
        tuned.launch(session)
        assert tuned.of("ActiveState", "beside.service") == "inactive"
    tuned.assert_as_before(argv)
    assert tuned.of("ActiveState", "beside.service") == "active"


def test_a_host_that_could_not_be_reverted_is_refused_untouched_with_every_reason(tuned: Tuned) -> None:
    tuned.machine.light_production()
    before = tuned.invocation()
    tuned.machine.run(["sh", "-c", f"sleep 1; echo '# edited' >>/etc/systemd/system/{PROD}"])
    tuned.service["conflicts"] = ["nowhere.service"]
    with tuned.session() as made, pytest.raises(Refused, match="for 2 reasons") as refused, made:
        pass
    assert "not reloaded" in refused.value.message
    assert "nowhere.service does not exist" in refused.value.message
    assert tuned.invocation() == before
    assert tuned.left() == []


def test_a_second_tuner_is_refused_by_name(tuned: Tuned) -> None:
    tuned.machine.light_production()
    with tuned.session() as made, made as session:
        tuned.launch(session)
        with tuned.session(holder="bob") as other, pytest.raises(Refused, match="far is being tuned by a person since 20"), other:
            pass
        assert tuned.candidate_runs()


@pytest.mark.parametrize("phase", ["entered", "stage-load", "measuring", "stopped"])
def test_a_killed_tuner_is_replaced_by_production_within_its_time_to_live(tuned: Tuned, phase: str) -> None:
    argv = tuned.machine.light_production()
    before = tuned.invocation()
    tuner = tuned.tuner(phase, candidate=("--start-s", "1"))
    tuner.kill()
    tuned.assert_as_before(argv)
    assert (tuned.invocation() == before) is (phase == "entered")


def test_ctrl_c_restores_before_the_tuner_exits(tuned: Tuned) -> None:
    argv = tuned.machine.light_production()
    tuner = tuned.tuner("measuring", ttl_s=60.0)
    tuner.send_signal(signal.SIGINT)
    tuner.wait()
    assert tuned.machine.healthy()
    assert tuned.left() == []
    tuned.assert_as_before(argv)


def test_the_next_start_restores_what_tuner_and_timer_left(tuned: Tuned) -> None:
    argv = tuned.machine.light_production()
    tuned.tuner("measuring").kill()
    tuned.machine.run(["sh", "-c", "systemctl stop 'autotuner-restore-*.timer'; rm -f /etc/systemd/system/autotuner-restore-*"])
    until(lambda: _taken_over(tuned), "the end of the dead tuner's lease")
    assert any("taking over from test since" in notice for notice in tuned.notices)
    tuned.assert_as_before(argv)


def _taken_over(tuned: Tuned) -> bool:
    with tuned.session() as made:
        try:
            with made as session:
                assert session.production is not None
                assert session.production.unit == PROD
        except Refused:
            return False
    return True


def test_a_network_that_is_gone_for_longer_loses_the_host_and_nothing_on_it_is_touched(tuned: Tuned) -> None:
    argv = tuned.machine.light_production()
    tuner = tuned.tuner("measuring")
    tuned.machine.drop()
    until(lambda: tuned.of("ActiveState") == "active", "the restore by the host itself")
    until(lambda: not tuned.left(), "the end of the session, by the host itself")
    restored = tuned.invocation()
    tuned.machine.undrop()
    assert tuner.stdout is not None
    said = tuner.stdout.read()
    assert (tuner.wait(), "the lease was lost" in said) == (1, True), said
    assert tuned.invocation() == restored
    tuned.assert_as_before(argv)


def test_a_network_that_is_gone_for_a_moment_changes_nothing(tuned: Tuned) -> None:
    argv = tuned.machine.light_production()
    with tuned.session(ttl_s=30.0) as made, made as session:
        server = tuned.launch(session)
        running = tuned.invocation("autotuner-30000-candidate-1-30000.service")
        assert running
        before = session.interruptions
        tuned.machine.drop()
        until(lambda: session.interruptions != before, "the gap being noticed")
        tuned.machine.undrop()
        session.check()
        server.check()
        assert tuned.invocation("autotuner-30000-candidate-1-30000.service") == running
    tuned.assert_as_before(argv)


def test_whoever_starts_production_by_hand_wins(tuned: Tuned) -> None:
    argv = tuned.machine.light_production()
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(StopStudy, match=r"prod\.service was started by hand"))
        session = stack.enter_context(stack.enter_context(tuned.session()))
        server = tuned.launch(session)
        tuned.machine.run(["systemctl", "start", PROD])
        by_hand = tuned.invocation()
        until(lambda: not tuned.candidate_runs(), "the end of the candidate, by the units' conflict")
        server.check()
    assert tuned.invocation() == by_hand
    tuned.assert_as_before(argv)


def test_whoever_stops_the_candidate_by_hand_wins(tuned: Tuned) -> None:
    argv = tuned.machine.light_production()
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(StopStudy, match="somebody stopped the candidate by hand"))
        session = stack.enter_context(stack.enter_context(tuned.session()))
        server = tuned.launch(session)
        tuned.machine.run(["systemctl", "stop", "autotuner-30000-candidate-1-30000.service"])
        server.check()
    tuned.assert_as_before(argv)


def test_production_that_cannot_start_any_more_is_said_loudly(tuned: Tuned) -> None:
    tuned.machine.light_production(directives={"ExecStartPre": "/bin/sh -c 'test ! -e /opt/broken'"})
    tuned.limits["ready_timeout_s"] = 8.0
    with contextlib.ExitStack() as stack:
        caught = stack.enter_context(pytest.raises(NotRestored, match="production on port 30000 is not as it was"))
        session = stack.enter_context(stack.enter_context(tuned.session()))
        tuned.launch(session)
        tuned.machine.write("/opt/broken", "")
    assert caught.value.exit_code == 5
    assert "restore /var/lib/autotuner/sessions/30000" in (caught.value.hint or "")
    tuned.machine.run(["rm", "/opt/broken"])
    until(tuned.machine.healthy, "production, once it can start, without anybody's help")
    until(lambda: not tuned.left(), "the end of the session")


def test_a_unit_that_somebody_edits_meanwhile_is_started_as_they_want_it(tuned: Tuned) -> None:
    argv = tuned.machine.light_production(label="kimi")
    with tuned.session() as made, made as session:
        tuned.launch(session)
        path = f"/etc/systemd/system/{PROD}"
        tuned.machine.write(path, tuned.machine.read(path).replace('"kimi"', '"other"'))
        tuned.machine.run(["systemctl", "daemon-reload"])
    assert any("their version is kept" in notice for notice in tuned.notices), tuned.notices
    tuned.assert_as_before([word.replace("kimi", "other") for word in argv])


def test_a_host_that_cannot_be_reached_at_the_end_is_not_called_restored(tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = tuned.machine.light_production()
    monkeypatch.setattr(recovery, "SLACK_S", 1.0)
    tuned.limits["ready_timeout_s"] = 5.0
    with contextlib.ExitStack() as stack:
        caught = stack.enter_context(pytest.raises(NotRestored, match=r"nobody has seen .* By itself it .* brings production back, by 2"))
        session = stack.enter_context(stack.enter_context(tuned.session(retry_s=2.0)))
        tuned.launch(session)
        tuned.machine.drop()
    assert caught.value.exit_code == 5
    assert "restore /var/lib/autotuner/sessions/30000" in (caught.value.hint or "")
    tuned.machine.undrop()
    tuned.assert_as_before(argv)


def test_the_load_comes_from_here_where_the_port_is_open_and_from_the_host_where_it_is_not(tuned: Tuned) -> None:
    argv = tuned.machine.light_production(address=ANY)
    tuned.endpoint["address"] = ANY
    with tuned.session() as made, made as session:
        assert session.load_path.source == "controller"
        assert session.load_path.base_url == f"http://{tuned.machine.address}:{PORT}"
        assert session.load_path.rtt_s is not None
        assert session.load_path.rtt_s > 0
        with session.control() as client:
            assert client.status("/health_generate") == 200
    tuned.machine.run(["iptables", "-A", "INPUT", "-p", "tcp", "-i", "host0", "--dport", str(PORT), "-j", "REJECT"])
    with tuned.session() as made, made as session:
        assert (session.load_path.source, session.load_path.base_url) == ("host", f"http://127.0.0.1:{PORT}")
        with session.control() as client:
            assert client.status("/health_generate") == 200
    tuned.assert_as_before(argv)
