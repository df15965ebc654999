"""A transport to a booted host that needs no network, and a session on it as the tuner's own calls make one."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autotuner.deploy.lease import Lease
from autotuner.deploy.production import HostBefore, ProductionState
from autotuner.deploy.snapshot import snapshot_of
from autotuner.discover.units import read_units
from autotuner.engines.sglang.engine import SglangEngine
from autotuner.model.host import Host
from autotuner.services.base import Handle, LaunchSpec
from autotuner.services.hostside import HostSide
from autotuner.services.systemd import SystemdManager
from autotuner.transports.base import Completed
from tests import builders
from tests.hosts.machine import Machine, until

PROD = "prod.service"
LIGHT = "/usr/bin/python3"
TOKEN = "0123456789abcdef"  # noqa: S105 - tells sessions apart, and is no secret
LEASES = "/var/tmp/autotuner-lease"  # noqa: S108 - where the tuner keeps them


class Inside:
    """Runs commands in the host's namespaces as ``user``."""

    address = "inside"
    interruptions = 0
    rtt_s = None

    def __init__(self, machine: Machine, user: str | None = None) -> None:
        self.machine, self.user = machine, user

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"", env=None, cwd=None, again: bool = False) -> Completed:
        wanted = ["runuser", "-u", self.user, "--", *argv] if self.user else list(argv)
        command = ["nsenter", "-t", str(self.machine.leader), "-m", "-u", "-i", "-n", "-p", "--", *wanted]
        path = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=timeout_s, check=False, env=path, cwd="/")
        return Completed(returncode=done.returncode, stdout=done.stdout.decode(), stderr=done.stderr.decode())

    def exists(self, path: str) -> bool:
        return self.run(["test", "-e", path], timeout_s=30).ok

    def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        done = self.run(["cat", path], timeout_s=30)
        if not done.ok:
            raise FileNotFoundError(path)
        return done.stdout.encode()

    def write(self, path: str, data: bytes, *, mode: int = 0o644, owner: str | None = None) -> None:
        script = 'cat >"$1" && chmod "$2" "$1"'
        done = self.run(["sh", "-c", script, "sh", path, f"{mode:o}"], timeout_s=30, stdin=data)
        assert done.ok, done.stderr

    def remove(self, path: str) -> None:
        self.run(["rm", "-f", path], timeout_s=30)


@dataclass
class Night:
    """What a tuner does to a host with units, call by call."""

    machine: Machine
    unit: str | None = PROD
    conflicts: tuple[str, ...] = ()
    port: int = 30000
    ttl_s: float = 60.0
    user: str | None = None
    token: str = TOKEN
    limits: dict[str, float] = field(default_factory=lambda: {"stop_timeout_s": 3.0, "ready_timeout_s": 30.0})

    def __post_init__(self) -> None:
        self.side = HostSide(Inside(self.machine, self.user), system=True)
        self.services = SystemdManager(self.side, port=self.port)
        self.folder = f"/var/lib/autotuner/sessions/{self.port}"

    def call(self, command: str, *, timeout_s: float = 120, **request: object) -> dict[str, Any]:
        return self.side.call(command, request, timeout_s=timeout_s)

    def look(self) -> dict[str, Any]:
        return self.call(
            "units",
            unit=self.unit,
            conflicts=list(self.conflicts),
            port=self.port,
            address="127.0.0.1",
            ready_path="/health_generate",
            models_path="/v1/models",
        )

    def problems(self) -> str:
        return "\n".join(problem["message"] for problem in self.look()["problems"])

    def snapshot(self) -> dict[str, Any]:
        """Exactly what the tuner sends."""
        found = self.look()
        assert not found["problems"], found["problems"]
        identity = {"machine": "elsewhere", "pid": 1, "started": 1, "node": "elsewhere"}
        held = {"token": self.token, "session": self.folder, "ttl_s": self.ttl_s, **identity}
        taken = self.call("acquire", folder=self.side.leases, names=[f"port-{self.port}"], content=held)["taken"]
        units = read_units(found)
        unit = units.production
        serves = None
        if unit is not None and unit.active:
            serves = ProductionState(argv=unit.argv, env={}, cwd="/", pid=unit.pid, answered=bool(unit.details["answered"]), details={})
        before = HostBefore(production=serves, recorded=dict(unit.details) if unit else None, units=units.all)
        lease = Lease(token=self.token, paths=tuple(taken), holder=identity)
        return snapshot_of(self.host, SglangEngine(), self.side, lease, before, ttl_s=self.ttl_s)

    @property
    def host(self) -> Host:
        production = {"unit": self.unit} if self.unit else "none"
        return builders.host(
            "inside", service={"manager": "systemd", "production": production}, endpoint={"port": self.port}, limits=self.limits
        )

    def arm(self) -> dict[str, Any]:
        return self.call("arm", session=self.folder, snapshot=self.snapshot())

    def arm_again(self) -> dict[str, Any]:
        """Arm without having taken the lease anew."""
        snapshot = {"token": self.token, "manager": "systemd", "leases": [f"{LEASES}/gone.json"], "units": []}
        return self.call("arm", session=self.folder, snapshot=snapshot)

    def take(self) -> None:
        """Arm, and stop production."""
        armed = self.arm()
        assert armed == {}, armed
        assert self.call("stop-production", session=self.folder, token=self.token) == {"left": []}

    def candidate(self, *flags: str, name: str = "candidate-1", wait: bool = True, **more: Any) -> Handle:
        argv = (LIGHT, "-S", "-E", str(self.light), "--unit", name, "--host", "127.0.0.1", "--port", str(self.port))
        spec = LaunchSpec(name=name, argv=(*argv, "--served-model-name", name, *flags), **more)
        handle = self.services.start(spec, session=self.folder)
        if wait:
            until(lambda: self.machine.healthy(self.port), "the candidate")
        return handle

    @property
    def light(self) -> str:
        from tests.hosts.production import LIGHT_SERVER

        return str(LIGHT_SERVER)

    def start(self, *argv: str, name: str = "candidate-1", **more: Any) -> Handle:
        return self.services.start(LaunchSpec(name=name, argv=argv, **more), session=self.folder)

    def ask(self, *, keep: bool) -> None:
        assert self.call("request-restore", session=self.folder, token=self.token, keep=keep) == {}

    def state(self) -> dict[str, Any]:
        return self.call("session", session=self.folder)

    def until_restored(self) -> None:
        until(lambda: (self.state()["outcome"] or {}).get("ok") is True, f"the restore: {self.machine.read(self.folder + '/guard.log')}")

    def assert_over(self, *, reloaded: bool = False) -> None:
        """Nothing is left of the session.

        Once somebody has reloaded systemd meanwhile, it remembers the restore service without its file until the next reload.
        """
        until(lambda: self.state()["snapshot"] is None, f"the end of the session: {self.machine.read(self.folder + '/guard.log')}")
        until(lambda: self.units(*(() if reloaded else ("--all",))) == "", f"units left: {self.units('--all')}")
        left = self.machine.out(
            "sh", "-c", "ls -d /etc/systemd/system/autotuner* /etc/systemd/system/*/autotuner* /run/autotuner 2>/dev/null"
        )
        left += self.machine.out("sh", "-c", f"ls /var/lib/autotuner/sessions {LEASES}")
        assert left.split() == ["/var/lib/autotuner/sessions:", f"{LEASES}:"], left

    def units(self, *options: str) -> str:
        return self.machine.out("systemctl", "list-units", *options, "--plain", "--no-legend", "autotuner*")

    def show(self, unit: str, name: str) -> str:
        return self.machine.out("systemctl", "show", "--value", "-p", name, unit)


def invocation(machine: Machine, unit: str = PROD) -> str:
    return machine.out("systemctl", "show", "--value", "-p", "InvocationID", unit)
