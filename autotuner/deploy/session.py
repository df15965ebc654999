"""HostSession: a host is taken, tuned, and left as it was found."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Self

from autotuner.deploy.gpu_memory import GpuMemory
from autotuner.deploy.heartbeat import Heartbeat
from autotuner.deploy.launch import Launch
from autotuner.deploy.lease import Lease, take_lease
from autotuner.deploy.logs import LogFollower
from autotuner.deploy.production import ProductionState, foreign, read_production
from autotuner.deploy.recovery import bring_back, left_behind, not_restored, watched
from autotuner.deploy.server import Server
from autotuner.discover.ports import listener_on, port_open
from autotuner.engines.base import Engine
from autotuner.errors import AutotunerError, StopStudy, TransportError
from autotuner.loadgen.control import ControlClient
from autotuner.model.host import Host
from autotuner.model.outcome import Stage
from autotuner.services.base import Handle, LaunchSpec, ServiceManager
from autotuner.services.hostside import HostSide
from autotuner.services.onhost.processes import SESSION_MARK
from autotuner.services.process import ProcessManager
from autotuner.transports.base import Transport

TTL_S = 180.0
"""The host's watchdog brings production back when the tuner was not heard of for so long."""
STALL_S = 900.0
"""A tuner that made no progress for so long is not vouched for any more. The slowest single step is a cell at the longest context."""

_PORT_CLOSED_S = 5.0
_POLL_S = 0.2
_VERIFY_TIMEOUT_S = 25.0


class HostSession:
    """From taking the lease to giving it back. Production is stopped by the first launch, and brought back at the end.

    Bringing back is the work of a watchdog on the host, at the end of every session as after a tuner's death: nothing that happens to
    this process afterwards can prevent it.
    """

    def __init__(
        self,
        host: Host,
        engine: Engine,
        transport: Transport,
        services: ServiceManager,
        *,
        holder: str,
        purpose: str,
        on_notice: Callable[[str], None],
        host_side: HostSide | None = None,
        ttl_s: float = TTL_S,
        stall_s: float = STALL_S,
    ) -> None:
        """``holder`` and ``purpose`` are shown to whoever finds the host taken; ``on_notice`` hears what a person should read."""
        known = services.host_side if isinstance(services, ProcessManager) else None
        self._host = host
        self._engine = engine
        self._services = services
        self._host_side = host_side or known or HostSide(transport, pythons=("python3", host.engine.python))
        self._holder = holder
        self._purpose = purpose
        self._on_notice = on_notice
        self._ttl_s = ttl_s
        self._stall_s = stall_s
        self._lease: Lease | None = None
        self._heartbeat: Heartbeat | None = None
        self._memory: GpuMemory | None = None
        self._candidate: tuple[Handle, LogFollower] | None = None
        self._production_runs = False
        self.production: ProductionState | None = None
        """What serves when the session begins; ``None`` when nothing does."""

    @property
    def folder(self) -> str:
        """The session's folder on the host."""
        return f"{self._host_side.state}/sessions/{self._host.endpoint.port}"

    def __enter__(self) -> Self:
        """Take the lease, put in order what a dead tuner left, record production, arm the watchdog.

        Raises ``Refused`` before anything is stopped: the host is taken, its port is held by a foreign process, or what serves could not be
        brought back. Raises ``NotRestored`` when what a dead tuner left cannot be put in order.
        """
        host_side, host = self._host_side, self._host
        self._lease = take_lease(
            host,
            host_side,
            holder=self._holder,
            purpose=self._purpose,
            folder=self.folder,
            ttl_s=self._ttl_s,
            on_notice=self._on_notice,
        )
        try:
            bring_back(host, host_side, self.folder)
            self._stop_stray()
            self.production = read_production(host, self._engine, host_side)
            self._production_runs = self.production is not None
            self._memory = GpuMemory(host, host_side.transport)
            self._arm()
        except BaseException:
            self._abandon()
            raise
        return self

    def launch(self, spec: LaunchSpec, *, on_stage: Callable[[Stage, float], None], should_stop: Callable[[], bool]) -> Server:
        """Start a server where production or the last candidate was; returns when it has generated a token.

        Raises ``InfeasibleConfig``, ``RetryTrial``, ``StopStudy`` for what became of it, ``Refused`` when a foreign process holds the port,
        ``Interrupted`` when ``should_stop`` said so. Nothing of it is left then.
        """
        self._alive()
        self._fence()
        self._clear_port()
        marked = dataclasses.replace(spec, env={**spec.env, SESSION_MARK: self.folder})
        handle = self._services.start(marked)
        follower = LogFollower(self._services, handle)
        self._candidate = (handle, follower)
        launch = Launch(
            host=self._host,
            engine=self._engine,
            services=self._services,
            host_side=self._host_side,
            spec=spec,
            handle=handle,
            follower=follower,
            on_stage=on_stage,
            should_stop=should_stop,
            alive=self._alive,
            fence=self._fence,
        )
        try:
            facts, info = launch.wait()
        except AutotunerError:
            self.stop()
            raise
        return Server(
            services=self._services,
            handle=handle,
            engine=self._engine,
            follower=follower,
            facts=facts,
            info=info,
            alive=self._alive,
            fence=self._fence,
        )

    def stop(self) -> None:
        """Stop the candidate if there is one; returns when its port is closed and its GPU memory is back. Raises ``StopStudy`` if not."""
        self._alive()
        if self._candidate is None:
            return
        handle, follower = self._candidate
        if self._lost():  # the watchdog has stopped it, and production serves again
            self._candidate = None
            return
        self._services.stop(handle, timeout_s=self._host.limits.stop_timeout_s)
        self._candidate = None
        follower.lines()
        self._await_silence()

    def touch(self) -> None:
        """Tell the watchdog that the tuner makes progress. Called by everything here that waits; call it in long work elsewhere."""
        self._alive()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Have production brought back, see for ourselves that it serves, give the lease back.

        Signals that arrive meanwhile do not cut it short. Raises ``NotRestored`` with the command for a person.
        """
        with _signals_wait(lambda: self._on_notice(f"{self._host.name}: bringing production back first")):
            try:
                lost = self._end()
            except TransportError as unreachable:
                why = f"it cannot be reached ({unreachable.message}); its watchdog brings production back within {self._ttl_s:g} s"
                raise not_restored(self._host, self._host_side, self.folder, why) from unreachable
        if lost and kind is None:
            raise _lease_lost(self._host)

    def _end(self) -> bool:
        """Whether the lease had been lost before. A host that another tuner holds by now is left alone."""
        self._alive()
        self._candidate = None
        token = self._held().token
        lost, left = self._lost(), left_behind(self._host_side.transport, self.folder)
        try:
            bring_back(self._host, self._host_side, self.folder, token=token)
        finally:
            if self._heartbeat is not None:
                self._heartbeat.stop()
        if left in {None, token}:
            self._verify()
        return lost

    def _verify(self) -> None:
        """Ask over a new connection, from here: what the host's own watchdog says is not evidence enough."""
        if self.production is None:
            return
        port = self._host.endpoint.port
        if self.production.answered:
            with ControlClient(self._host.base_url, timeout_s=_VERIFY_TIMEOUT_S) as client:
                status = client.status(self._engine.endpoints.ready)
            if status == 200:
                return
            why = f"its health check says {status or 'nothing'}"
        elif listener_on(port, self._host_side).listening:
            return
        else:
            why = "nothing listens"
        raise not_restored(self._host, self._host_side, self.folder, why)

    def _arm(self) -> None:
        lease, host, transport = self._held(), self._host, self._host_side.transport
        for leftover in ("request", "fenced", "outcome.json"):
            transport.remove(f"{self.folder}/{leftover}")
        snapshot: dict[str, Any] = {
            "token": lease.token,
            "holder": lease.holder,
            "leases": list(lease.paths),
            "state": self._host_side.state,
            "port": host.endpoint.port,
            "address": host.endpoint.address,
            "ready_path": self._engine.endpoints.ready,
            "answered": self.production is not None and self.production.answered,
            "production": self.production.details if self.production is not None else None,
            "ttl_s": self._ttl_s,
            "stop_timeout_s": host.limits.stop_timeout_s,
            "ready_timeout_s": host.limits.ready_timeout_s,
        }
        path = f"{self.folder}/snapshot.json"
        transport.write(path, json.dumps(snapshot).encode(), mode=0o600)
        if json.loads(transport.read(path)) != snapshot:
            raise StopStudy(f"{host.name}: {path} does not read back as written", hint="is the disk full?")
        self._heartbeat = Heartbeat(transport, f"{self.folder}/heartbeat", ttl_s=self._ttl_s, stall_s=self._stall_s)
        self._heartbeat.start()
        self._ensure_watchdog()

    def _ensure_watchdog(self) -> None:
        reply = self._host_side.call("arm", {"session": self.folder})
        if "error" in reply:
            raise StopStudy(f"{self._host.name}: the watchdog cannot be started: {reply['error']}", hint=f"see {self.folder}/guard.log")

    def _abandon(self) -> None:
        """Leave a session that did not come about; nothing was stopped yet."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        with _signals_wait(lambda: None):
            lease = self._held()
            bring_back(self._host, self._host_side, self.folder, token=lease.token)
            for path in lease.paths:
                self._host_side.call("break-lease", {"path": path, "token": lease.token})

    def _stop_stray(self) -> None:
        """Stop a candidate that was left on the port without a session to restore."""
        owner = listener_on(self._host.endpoint.port, self._host_side).owner
        if owner is not None and owner.left_by_tuner and owner.service:
            self._on_notice(f"{self._host.name}: stopping {owner}, which a dead tuner left")
            self._services.stop(Handle(name=owner.service, pid=owner.pid, log=""), timeout_s=self._host.limits.stop_timeout_s)

    def _clear_port(self) -> None:
        self.stop()
        if self._production_runs:
            limit = self._host.limits.stop_timeout_s
            reply = self._host_side.call("stop-production", {"session": self.folder}, timeout_s=limit + 60)
            if reply.get("left") or "error" in reply:
                raise StopStudy(f"{self._host.name}: production would not stop: {reply}", hint="stop it yourself and start again")
            self._production_runs = False
        self._await_silence()

    def _await_silence(self) -> None:
        """Until nothing listens on the port and the GPUs are idle."""
        deadline = time.monotonic() + _PORT_CLOSED_S
        port = self._host.endpoint.port
        while port_open(port, self._host_side.transport):
            if time.monotonic() > deadline and (listener := listener_on(port, self._host_side)).listening:
                raise foreign(self._host, listener)
            time.sleep(_POLL_S)
        if self._memory is not None:
            self._memory.settle()

    def _alive(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.touch()

    def _fence(self) -> None:
        """Nothing is done on a host that was given back meanwhile; a watchdog that was killed is started again."""
        if self._lost():
            raise _lease_lost(self._host)
        if not watched(self._host_side.transport, self.folder, self._held().token):
            self._ensure_watchdog()

    def _lost(self) -> bool:
        """Whether the host was given back meanwhile: a restore has begun, or ended, or another tuner came after it."""
        transport = self._host_side.transport
        return transport.exists(f"{self.folder}/fenced") or left_behind(transport, self.folder) != self._held().token

    def _held(self) -> Lease:
        if self._lease is None:
            raise StopStudy("the session was not entered", hint="use it as a context manager")
        return self._lease


def _lease_lost(host: Host) -> StopStudy:
    return StopStudy(
        f"{host.name}: the lease was lost: this tuner was not heard of for too long, and the host brought production back",
        hint="start again with the same command to resume; everything measured was kept",
    )


@contextlib.contextmanager
def _signals_wait(say: Callable[[], None]) -> Iterator[None]:
    """SIGINT and SIGTERM are heard and answered, and change nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def answer(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a signal handler
        say()

    before = {number: signal.signal(number, answer) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
