"""Real processes for the tests of sessions, and the promise that none of them outlives its test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from autotuner.deploy import HostSession
from autotuner.engines.sglang.engine import SglangEngine
from autotuner.errors import TransportError
from autotuner.loadgen.control import ControlClient
from autotuner.model.host import Host
from autotuner.services.base import LaunchSpec
from autotuner.services.hostside import HostSide
from autotuner.services.onhost import processes
from autotuner.services.process import ProcessManager
from autotuner.transports.local import LocalTransport
from tests.ports import free_port

DATA = Path(__file__).parents[2] / "data" / "deploy"
SERVER = str(DATA / "sglang_like.py")
PATIENCE_S = 60.0
"""Far above anything that is waited for; a test never depends on how fast something was."""


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    process = processes.read(pid)
    return process is not None and process.state not in "ZXx"


@dataclass
class Stage:
    """One port of this machine with everything that a test puts on it."""

    folder: Path
    port: int
    limits: dict[str, float] = field(default_factory=lambda: {"stop_timeout_s": 5.0, "ready_timeout_s": 30.0, "stage_timeout_s": 20.0})
    service: dict[str, object] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    server: str = SERVER
    python: str = sys.executable
    until: ClassVar[Callable[[Callable[[], bool], str], None]] = staticmethod(until)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.transport = LocalTransport()
        self.side = HostSide(self.transport, state=str(self.folder / "state"), leases=str(self.folder / "leases"))
        self.services = ProcessManager(self.side)
        self.engine = SglangEngine()

    @property
    def host_document(self) -> dict[str, object]:
        return {
            "apiVersion": "autotuner/v1",
            "kind": "Host",
            "metadata": {"name": "here"},
            "transport": {"type": "local"},
            "engine": {"name": "sglang", "python": sys.executable},
            "model": {"path": str(self.folder)},
            "endpoint": {"port": self.port},
            "limits": self.limits,
            "service": self.service,
            "simulate": {"profile": "ct200", "gpu": {"name": "none", "memory_gib": 1.0, "sm": 90, "link": "pcie"}},
        }

    @property
    def host(self) -> Host:
        return Host.model_validate_json(json.dumps(self.host_document))

    def session(self, *, ttl_s: float = 60.0, stall_s: float = 600.0, holder: str = "a person") -> HostSession:
        return HostSession(
            self.host,
            self.engine,
            self.transport,
            self.services,
            holder=holder,
            purpose="a test",
            on_notice=self.notices.append,
            ttl_s=ttl_s,
            stall_s=stall_s,
        )

    def command(self, *arguments: str, label: str = "candidate") -> tuple[str, ...]:
        return (sys.executable, SERVER, "--port", str(self.port), "--label", label, *arguments)

    def spec(self, *arguments: str, name: str = "candidate-1") -> LaunchSpec:
        return LaunchSpec(name=name, argv=self.command(*arguments), cwd=str(self.folder), env={"MARKER": name})

    def produce(self, *arguments: str, wait: bool = True) -> subprocess.Popen[bytes]:
        """Start production, as a person would."""
        environment = {**os.environ, "MARKER": "as before", "MY_TOKEN": "s3cret"}
        with (self.folder / "production.out").open("ab") as out:
            process = subprocess.Popen(
                self.command(*arguments, label="production"),
                env=environment,
                cwd=self.folder,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.started.append(process)
        if wait:
            until(lambda: self.serving() is not None, "production")
        return process

    def produce_with(self, python: str, script: str = SERVER) -> subprocess.Popen[bytes]:
        """Start production with another interpreter or script."""
        argv = (python, script, "--port", str(self.port), "--label", "production")
        process = subprocess.Popen(argv, cwd=self.folder, stdin=subprocess.DEVNULL, start_new_session=True)
        self.started.append(process)
        until(lambda: self.serving() is not None, "production")
        return process

    def start_foreign(self) -> subprocess.Popen[bytes]:
        """A web server of somebody else on our port."""
        argv = [sys.executable, "-m", "http.server", str(self.port), "--bind", "127.0.0.1", "--directory", str(self.folder)]
        process = subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True)
        self.started.append(process)
        until(lambda: self.listener() is not None, "the foreign server")
        return process

    def get(self, path: str) -> int | None:
        with ControlClient(f"http://127.0.0.1:{self.port}", timeout_s=5) as client:
            return client.status(path)

    def serving(self) -> dict[str, object] | None:
        """What answers on the port now: label and the MARKER of its environment."""
        with ControlClient(f"http://127.0.0.1:{self.port}", timeout_s=5) as client:
            if client.status("/health_generate") is None:
                return None
            try:
                answer = client.get_json("/server_info")
            except TransportError:  # it was ended between the two questions
                return None
        assert isinstance(answer, dict)
        return answer

    def listener(self) -> int | None:
        owner = self.side.call("inspect", {"port": self.port}).get("owner")
        return int(owner["pid"]) if owner else None

    def candidates(self) -> set[int]:
        """Processes that carry a mark of this test's servers."""
        folder = str(self.folder / "state")
        found = set()
        for pid in processes.table():
            if processes.environment(pid).get(processes.SESSION_MARK, "").startswith(folder):
                found.add(pid)
        return found

    def ours(self) -> set[int]:
        """Everything that this test started anywhere: named by its folder or port in command line or environment."""
        marks = (str(self.folder).encode(), f"--port\0{self.port}\0".encode())
        found = set()
        for pid in processes.table():
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
                if pid != os.getpid() and any(mark in text for mark in marks):
                    found.add(pid)
        return found

    def clean(self) -> None:
        for pid in self.ours():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.started:
            process.wait()
        until(lambda: not self.ours(), "the end of every process of the test")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(folder=tmp_path, port=free_port())
    yield made
    made.clean()
