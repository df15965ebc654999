"""HostSession: a host is taken, tuned, and left as it was found."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from autotuner.deploy.ending import Ending
from autotuner.deploy.failures import interfered
from autotuner.deploy.gpu_memory import SETTLE_S, GpuMemory
from autotuner.deploy.heartbeat import STALL_S, Heartbeat
from autotuner.deploy.launch import Launch
from autotuner.deploy.lease import Lease, take_lease
from autotuner.deploy.logs import LogFollower
from autotuner.deploy.observing import observed
from autotuner.deploy.patience import patiently
from autotuner.deploy.production import HostBefore, ProductionState, foreign, read_host
from autotuner.deploy.reach import Route
from autotuner.deploy.recovery import bring_back
from autotuner.deploy.server import Server
from autotuner.deploy.signals import signals_wait
from autotuner.deploy.snapshot import redacted, snapshot_of
from autotuner.deploy.watch import Watch, lease_lost
from autotuner.discover.ports import Listener, listener_on, port_open
from autotuner.engines.base import Engine
from autotuner.errors import AutotunerError, Refused, StopStudy, TransportError
from autotuner.loadgen.control import ControlClient
from autotuner.loadgen.fleet import Fleet
from autotuner.loadgen.observation import Observer
from autotuner.loadgen.path import LoadPath
from autotuner.loadgen.remote import host_fleet
from autotuner.model.facts import Gpu
from autotuner.model.host import Host
from autotuner.model.outcome import Stage
from autotuner.services.base import Handle, LaunchSpec, ServiceManager
from autotuner.services.hostside import HostSide
from autotuner.services.onhost.processes import SESSION_MARK
from autotuner.transports.base import Transport

TTL_S = 180.0
"""The host's watchdog brings production back when the tuner was not heard of for so long."""

_PORT_CLOSED_S = 5.0
_POLL_S = 0.2
_STOP_SLACK_S = 60.0
_ARM_TIMEOUT_S = 60.0


class HostSession:
    """From taking the lease to giving it back. Production is stopped by the first launch, and brought back at the end.

    Bringing back is the host's own work, at the end of every session as after a tuner's death: nothing that happens to this process
    afterwards can prevent it.
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
        self._host = host
        self._engine = engine
        self._transport = transport
        self._services = services
        self._host_side = host_side or services.host_side
        self._holder = holder
        self._purpose = purpose
        self._on_notice = on_notice
        self._ttl_s = ttl_s
        self._stall_s = stall_s
        self._route = Route(host, self._host_side)
        self._lease: Lease | None = None
        self._heartbeat: Heartbeat | None = None
        self._watch: Watch | None = None
        self._before: HostBefore | None = None
        self._snapshot: dict[str, Any] = {}
        self._memory: GpuMemory | None = None
        self._candidate: tuple[Handle, LogFollower | None] | None = None
        self._to_stop = False
        self._by_hand: StopStudy | None = None
        """Somebody stopped a candidate when it had been measured: it still counts, and nothing more is done here."""
        self._workers: Fleet | None = None

    @property
    def folder(self) -> str:
        """The session's folder on the host."""
        return f"{self._host_side.state}/sessions/{self._host.endpoint.port}"

    @property
    def production(self) -> ProductionState | None:
        """What served when the session began; ``None`` when nothing did."""
        return self._before.production if self._before is not None else None

    @property
    def snapshot(self) -> Mapping[str, Any]:
        """What the host was like before anything was changed, without secrets."""
        return redacted(self._snapshot)

    @property
    def load_path(self) -> LoadPath:
        """Where load is driven from. Final once the first server is up."""
        return self._route.path

    @property
    def interruptions(self) -> int:
        """How often the connection to the host was lost so far. What was measured while this changed is not to be trusted."""
        return self._transport.interruptions

    @property
    def workers(self) -> Fleet | None:
        """What drives the load where that is the host; ``None`` for the workers of this machine."""
        if self._route.path.source == "controller":
            return None
        if self._workers is None:
            pythons = ("python3", self._host.engine.python)
            self._workers = host_fleet(self._transport, pythons, env={SESSION_MARK: self.folder})
        return self._workers

    def control(self, *, timeout_s: float = 10.0) -> ControlClient:
        """A client for whatever serves on the host, over the same way as the load."""
        return self._route.control(timeout_s=timeout_s)

    def observing(self, gpus: Sequence[Gpu]) -> AbstractContextManager[Observer]:
        """Watch what serves on the host, and these of its GPUs, for as long as a cell is measured."""
        return observed(self._host, self._engine, self._host_side, self._route, gpus)

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
            self._before = read_host(host, self._engine, host_side, self._route)
            for note in self._before.notes:
                self._on_notice(f"{host.name}: {note}")
            self._to_stop = self._before.must_stop
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
        watch = self._watching()
        self.check()
        if self._by_hand is not None:
            raise self._by_hand
        self._clear_port()
        self._candidate = (Handle(name=spec.name, pid=0, log=""), None)  # it may run even if nobody hears of it
        try:
            handle = self._services.start(spec, session=self.folder)
            follower = LogFollower(self._services, handle)
            self._candidate = (handle, follower)
            launch = Launch(
                host=self._host,
                engine=self._engine,
                services=self._services,
                host_side=self._host_side,
                route=self._route,
                spec=spec,
                handle=handle,
                follower=follower,
                watch=watch,
                on_stage=on_stage,
                should_stop=should_stop,
                foreign=self._foreign,
                gap_s=self._ttl_s,
            )
            facts, info = launch.wait()
        except AutotunerError:
            with contextlib.suppress(TransportError):  # why it failed is worth more; the next launch stops it first
                self.stop()
            raise
        return Server(services=self._services, handle=handle, follower=follower, facts=facts, info=info, watch=watch, gap_s=self._ttl_s)

    def stop(self) -> None:
        """Stop the candidate if there is one; returns when its port is closed and its GPU memory is back. Raises ``StopStudy`` if not.

        A host that cannot be reached is waited for: it stops the candidate itself when that takes too long.
        """
        if self._candidate is not None:
            self._patiently(self._stop)

    def touch(self, allow_s: float = 0.0) -> None:
        """Tell the watchdog that the tuner makes progress, and that its next sign may take ``allow_s`` seconds.

        Called by everything here that waits; call it in long work elsewhere. Raises ``StopStudy`` when the host is known to be lost.
        """
        self._watching().alive(allow_s)

    def check(self) -> None:
        """Wait until the host answers, and see that it is still this session's. Raises ``StopStudy`` when it is not."""
        watch = self._watching()
        watch.alive()
        self._patiently(watch.fence)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Have production brought back, see for ourselves that it serves, give the lease back.

        Signals that arrive meanwhile do not cut it short. Raises ``NotRestored`` with the command for a person.
        """
        heartbeat, before = self._heartbeat, self._before
        if heartbeat is None or before is None:
            return
        if self._by_hand is not None and kind is None:
            self._on_notice(self._by_hand.message)
        with signals_wait(lambda: self._on_notice(f"{self._host.name}: bringing production back first")):
            self._candidate = None
            heartbeat.stop()
            if self._workers is not None:
                self._workers.close()
            lost = Ending(
                host=self._host,
                engine=self._engine,
                host_side=self._host_side,
                route=self._route,
                folder=self.folder,
                token=self._held().token,
                before=before,
                snapshot=self._snapshot,
                ttl_s=self._ttl_s,
                renewed=heartbeat.renewed,
                on_notice=self._on_notice,
                lost=heartbeat.lost,
            ).run()
        if lost and kind is None:
            raise lease_lost(self._host)

    def _arm(self) -> None:
        lease, host, before = self._held(), self._host, self._before
        if before is None:
            return
        self._snapshot = snapshot_of(host, self._engine, self._host_side, lease, before, ttl_s=self._ttl_s)
        hint = "nothing was stopped; mend that on the host and start again"
        try:
            reply = self._host_side.call("arm", {"session": self.folder, "snapshot": self._snapshot}, timeout_s=_ARM_TIMEOUT_S)
        except TransportError:
            raise
        except AutotunerError as error:
            raise Refused(f"{host.name}: it could not be made to restore itself: {error.message}", hint=error.hint or hint) from error
        if "error" in reply:
            if reply.get("kind") == "not-allowed":
                hint = f"nothing was stopped; an administrator of the host allows it: autotuner service {host.name} grant"
            raise Refused(f"{host.name}: it could not be made to restore itself: {reply['error']}", hint=hint)
        self._heartbeat = Heartbeat(self._host_side, self.folder, lease.token, ttl_s=self._ttl_s, stall_s=self._stall_s)
        self._heartbeat.start()
        self._watch = Watch(
            host=host,
            engine=self._engine,
            host_side=self._host_side,
            folder=self.folder,
            token=lease.token,
            heartbeat=self._heartbeat,
        )

    def _abandon(self) -> None:
        """Leave a session that did not come about; nothing was stopped yet. What cannot be undone now ends with its time to live."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        with signals_wait(lambda: None), contextlib.suppress(TransportError):
            lease = self._held()
            bring_back(self._host, self._host_side, self.folder, token=lease.token)
            for path in lease.paths:
                self._host_side.call("break-lease", {"path": path, "token": lease.token})

    def _stop_stray(self) -> None:
        """Stop a candidate that was left on the port without a session to restore."""
        owner = listener_on(self._host.endpoint.port, self._host_side).owner
        if owner is not None and owner.left_by_tuner and owner.service:
            if self._services.name == "systemd" and self._host.service.production != "none":
                raise Refused(
                    f"{self._host.name}: {owner} was left by a dead tuner, and nothing on the host says any more what served before it",
                    hint=f"start production, which ends it: autotuner service {self._host.name} start",
                )
            self._on_notice(f"{self._host.name}: stopping {owner}, which a dead tuner left")
            self._services.stop(Handle(name=owner.service, pid=owner.pid, log=""), timeout_s=self._host.limits.stop_timeout_s)

    def _stop(self) -> None:
        if self._candidate is None:
            return
        handle, follower = self._candidate
        watch = self._watching()
        if watch.lost():  # the host has stopped it, and production serves again
            self._candidate = None
            return
        limit = self._host.limits.stop_timeout_s
        watch.alive(limit + _STOP_SLACK_S)
        if self._services.stop(handle, timeout_s=limit) and handle.pid:
            self._by_hand = interfered(self._host, "somebody stopped the candidate by hand", watch.serving())
        watch.alive(SETTLE_S + _STOP_SLACK_S)
        if follower is not None:
            follower.lines()
        self._await_silence()
        self._candidate = None

    def _clear_port(self) -> None:
        self.stop()
        if self._to_stop:
            self._patiently(self._stop_production)
            self._to_stop = False
        self._patiently(self._await_silence)

    def _stop_production(self) -> None:
        limit = self._host.limits.stop_timeout_s * max(1, len(self._snapshot["units"])) + _STOP_SLACK_S
        self.touch(limit)
        reply = self._host_side.call("stop-production", {"session": self.folder, "token": self._held().token}, timeout_s=limit)
        if reply.get("kind") == "fenced":
            raise lease_lost(self._host)
        if reply.get("left") or "error" in reply:
            why = reply.get("error") or f"{reply['left']} would not end"
            raise StopStudy(f"{self._host.name}: production would not stop: {why}", hint="stop it yourself and start again")

    def _await_silence(self) -> None:
        """Until nothing listens on the port and the GPUs are idle."""
        self.touch(SETTLE_S + _STOP_SLACK_S)
        deadline = time.monotonic() + _PORT_CLOSED_S
        port = self._host.endpoint.port
        while port_open(port, self._transport):
            if time.monotonic() > deadline and (listener := listener_on(port, self._host_side)).listening:
                raise self._foreign(listener)
            time.sleep(_POLL_S)
        if self._memory is not None:
            self._memory.settle()

    def _foreign(self, listener: Listener) -> AutotunerError:
        """The port is held by a listener that is not ours: somebody's own process, or production that somebody started by hand."""
        owner, production = listener.owner, self.production
        if owner is not None and production is not None and not self._to_stop and owner.argv == production.argv:
            if self._watching().lost():  # nobody's hand: the host was booted, or has brought production back
                return lease_lost(self._host)
            return interfered(self._host, "somebody started production by hand", f"{owner} listens on port {self._host.endpoint.port}")
        return foreign(self._host, listener)

    def _patiently(self, action: Callable[[], None]) -> None:
        patiently(action, within_s=self._ttl_s, meanwhile=self.touch)

    def _watching(self) -> Watch:
        if self._watch is None:
            raise StopStudy("the session was not entered", hint="use it as a context manager")
        return self._watch

    def _held(self) -> Lease:
        if self._lease is None:
            raise StopStudy("the session was not entered", hint="use it as a context manager")
        return self._lease
