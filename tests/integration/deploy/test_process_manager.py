from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autotuner.errors import StopStudy, TransportError, UsageError
from autotuner.services.base import Handle, LaunchSpec
from autotuner.services.hostside import HostSide
from autotuner.services.onhost import processes, supervise
from autotuner.services.process import ProcessManager
from autotuner.services.registry import manager_for
from autotuner.services.systemd import SystemdManager
from autotuner.transports.local import LocalTransport
from autotuner.transports.registry import transport_for
from tests.builders import host


def running(pid: int) -> bool:
    return pid in processes.table()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.05)


class Session(ProcessManager):
    """Starts everything for one session that may act."""

    @property
    def folder(self) -> Path:
        return Path(self.host_side.state) / "sessions" / "1"

    def begin(self, spec: LaunchSpec) -> Handle:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "live").touch()
        (self.folder / "snapshot.json").write_text(json.dumps({"token": "t"}))
        return self.start(spec, session=str(self.folder))


@pytest.fixture
def manager(tmp_path: Path) -> Session:
    return Session(HostSide(LocalTransport(), state=str(tmp_path / "state")))


def python(code: str, name: str = "server", **more: object) -> LaunchSpec:
    return LaunchSpec(name=name, argv=(sys.executable, "-u", "-c", code), **more)  # type: ignore[arg-type]


def test_exit_code_log_and_idempotent_stop(manager: Session) -> None:
    handle = manager.begin(python("print('one'); import sys; sys.exit(3)"))
    until(lambda: not manager.status(handle).running, "the end")
    assert manager.status(handle).exit_code == 3
    assert manager.log(handle) == b"one\n"
    assert manager.log(handle, offset=4) == b""
    manager.stop(handle, timeout_s=5)
    manager.stop(handle, timeout_s=5)


def test_a_server_is_told_its_name_beside_what_is_recorded(manager: Session) -> None:
    handle = manager.begin(python(f"import os; print(os.environ[{processes.SERVICE_MARK!r}])", name="candidate-7"))
    until(lambda: not manager.status(handle).running, "the end")
    assert processes.service_name(manager.log(handle).decode()) == "candidate-7"
    assert processes.service_name("") == ""


def test_death_by_signal_is_negative(manager: Session) -> None:
    handle = manager.begin(python("import time; time.sleep(600)"))
    assert manager.status(handle).running
    os.kill(handle.pid, signal.SIGKILL)
    until(lambda: not manager.status(handle).running, "the end")
    assert manager.status(handle).exit_code == -9


def test_a_second_manager_knows_the_server(manager: Session) -> None:
    handle = manager.begin(python("import time; print('up'); time.sleep(600)"))
    other = ProcessManager(HostSide(LocalTransport(), state=manager.host_side.state))
    assert other.status(handle).running
    until(lambda: other.log(handle) == b"up\n", "the log")
    other.stop(handle, timeout_s=5)
    assert not running(handle.pid)
    assert manager.status(handle).exit_code == -15


def test_the_same_name_is_not_started_twice(manager: Session) -> None:
    handle = manager.begin(python("import time; time.sleep(600)"))
    with pytest.raises(TransportError, match="runs already"):
        manager.begin(python("pass"))
    manager.stop(handle, timeout_s=5)
    again = manager.begin(python("print(2)"))
    until(lambda: not manager.status(again).running, "the end")


@pytest.mark.parametrize("env", ["None", "{'PATH': '/usr/bin:/bin'}"], ids=["marked", "without our environment"])
def test_stop_finds_what_left_the_group(manager: Session, tmp_path: Path, env: str) -> None:
    """A stubborn server whose grandchild has a session of its own, and whose child died: an orphan."""
    pid_file = tmp_path / "pid"
    grandchild = f"import subprocess; p = subprocess.Popen(['sleep', '600'], start_new_session=True, env={env}); print(p.pid)"
    code = (
        f"import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"subprocess.run([sys.executable, '-c', {grandchild!r}], stdout=open({str(pid_file)!r}, 'w')); time.sleep(600)"
    )
    handle = manager.begin(python(code))
    until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"), "the grandchild")
    pid = int(pid_file.read_text())
    assert running(pid)
    manager.stop(handle, timeout_s=1)
    assert not running(handle.pid)
    assert not running(pid)
    assert manager.status(handle).exit_code == -9


def test_a_reused_pid_is_not_ours(manager: Session) -> None:
    handle = manager.begin(python("import time; time.sleep(600)"))
    record = next(iter(supervise.records(Path(manager.host_side.state))))
    assert supervise.members(record) != set()
    stranger = {**record, "started": record["started"] - 1, "mark": "other", "supervisor_started": 0}
    assert supervise.members(stranger) == set()
    manager.stop(handle, timeout_s=5)


def test_killed_supervisor_leaves_a_server_that_can_be_stopped(manager: Session) -> None:
    handle = manager.begin(python("import time; time.sleep(600)"))
    record = next(iter(supervise.records(Path(manager.host_side.state))))
    os.kill(record["supervisor"], signal.SIGKILL)
    until(lambda: not running(record["supervisor"]), "the end of the supervisor")
    assert manager.status(handle).running
    manager.stop(handle, timeout_s=5)
    assert not running(handle.pid)
    status = manager.status(handle)
    assert (status.running, status.exit_code) == (False, None)


def test_secrets_are_resolved_on_the_host_and_never_in_argv(manager: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("from-file\n")
    monkeypatch.setenv("THE_TOKEN", "from-env")
    secrets = {"A": "env:THE_TOKEN", "B": f"file:{tmp_path}/token"}
    handle = manager.begin(python("import os; print(os.environ['A'], os.environ['B'])", secrets=secrets))
    until(lambda: manager.log(handle) == b"from-env from-file\n", "the secrets")
    for path in (tmp_path / "state").rglob("*.json"):
        assert "from-env" not in path.read_text()


def test_missing_secret_program_and_folder_are_named(manager: Session) -> None:
    with pytest.raises(StopStudy, match="secret A: the variable NO_SUCH is not set"):
        manager.begin(python("pass", secrets={"A": "env:NO_SUCH"}))
    with pytest.raises(StopStudy, match="/no/such/python: No such file"):
        manager.begin(LaunchSpec(name="x", argv=("/no/such/python",)))
    with pytest.raises(StopStudy, match="/no/such/folder: No such file"):
        manager.begin(python("pass", cwd="/no/such/folder"))


def test_the_log_of_a_chatty_server_is_bounded_and_offsets_stay(tmp_path: Path) -> None:
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, b"head" + b"x" * (8 << 20) + b"tail")
    os.fsync(descriptor)
    supervise.bound(descriptor, head=1 << 20, tail=1 << 20, limit=4 << 20)
    status = os.fstat(descriptor)
    os.close(descriptor)
    assert status.st_blocks * 512 < 4 << 20
    assert status.st_size == (8 << 20) + 8
    content = path.read_bytes()
    assert content.startswith(b"headxxx")
    assert content.endswith(b"xxxtail")


def test_old_servers_logs_are_pruned(manager: Session) -> None:
    for number in range(supervise.KEPT + 3):
        handle = manager.begin(python("pass", name=f"candidate-{number}"))
        until(lambda handle=handle: not manager.status(handle).running, "the end")
    assert len(list((Path(manager.host_side.state) / "services").iterdir())) <= supervise.KEPT + 1


def test_a_document_chooses_its_manager_and_what_there_is_none_for_is_said() -> None:
    with pytest.raises(UsageError, match="service manager container is not available in this version"):
        manager_for(host(service={"manager": "container"}), LocalTransport())
    with pytest.raises(UsageError, match=r"service\.conflicts names units"):
        manager_for(host(service={"conflicts": ("other.service",)}), LocalTransport())
    unsaid = host(service={})
    assert isinstance(manager_for(unsaid, transport_for(unsaid)), ProcessManager)
    assert isinstance(manager_for(host(service={"manager": "systemd", "conflicts": ("other",)}), LocalTransport()), SystemdManager)
