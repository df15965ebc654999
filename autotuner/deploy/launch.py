"""Waits for a started server: until it generates a token, dies, hangs, or a person asks to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from autotuner.deploy.failures import hung, never_ready, raise_failure
from autotuner.deploy.logs import LogFollower
from autotuner.deploy.patience import patiently
from autotuner.deploy.reach import Route
from autotuner.deploy.watch import Watch
from autotuner.discover.ports import Listener, port_open, read_listener
from autotuner.engines.base import Engine
from autotuner.errors import AutotunerError, Interrupted
from autotuner.loadgen.control import ControlClient
from autotuner.model.host import Host
from autotuner.model.outcome import LaunchFacts, Stage
from autotuner.services.base import Handle, LaunchSpec, ServiceManager
from autotuner.services.hostside import HostSide

_LOCAL_POLL_S = 0.2
_REMOTE_POLL_S = 0.5
_PROBE_TIMEOUT_S = 10.0
_AFTERMATH_S = 2.0
"""How long the children of a dead server may go on writing why."""
_MS = 1000.0


@dataclass(kw_only=True)
class Launch:
    """One launch under way; ``wait`` follows it to its end."""

    host: Host
    engine: Engine
    services: ServiceManager
    host_side: HostSide
    route: Route
    spec: LaunchSpec
    handle: Handle
    follower: LogFollower
    watch: Watch
    on_stage: Callable[[Stage, float], None]
    should_stop: Callable[[], bool]
    foreign: Callable[[Listener], AutotunerError]
    """What it means that the port is held by this listener, which is not the server."""
    gap_s: float
    """How long the host may be out of reach."""
    stage: Stage = Stage.START
    stage_s: dict[str, float] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)
    progressed: float = field(default_factory=time.monotonic)
    mine: bool = False
    """Whether the listener on the port was seen to be this server."""

    def wait(self) -> tuple[LaunchFacts, dict[str, object]]:
        """Facts of the launch, and what the server says about itself.

        Raises ``InfeasibleConfig``, ``RetryTrial`` or ``StopStudy`` when it died or hangs, ``Refused`` when another process took the port,
        ``Interrupted`` when asked to stop.
        """
        self._reach(Stage.START)
        poll_s = _LOCAL_POLL_S if self.host.transport.type == "local" else _REMOTE_POLL_S
        while not patiently(self._ready, within_s=self.gap_s, meanwhile=self._go_on):
            self._go_on()
            self._check_patience()
            time.sleep(poll_s)
        launch_s = time.monotonic() - self.begun
        patiently(self._follow, within_s=self.gap_s, meanwhile=self._go_on)
        self._reach(Stage.READY)
        with self.route.control(timeout_s=_PROBE_TIMEOUT_S) as client:
            info = self._info(client)
        facts = self.engine.launch_facts(self.follower.text, info)
        path = self.route.path
        return replace(
            facts,
            argv=self.spec.argv,
            env=self.spec.env,
            launch_s=launch_s,
            stage_s=dict(self.stage_s),
            load_from=path.source,
            rtt_ms=None if path.rtt_s is None else round(path.rtt_s * _MS, 3),
        ), info

    def _go_on(self) -> None:
        self.watch.alive()
        if self.should_stop():
            raise Interrupted(f"stopped while {self.spec.name} was starting (stage {self.stage})")

    def _ready(self) -> bool:
        """Whether the server, and not another process, answers with a generated token. No answer yet is no failure."""
        self._follow()
        self._check_runs()
        if not self.mine and not self._listens():
            return False
        with self.route.control(timeout_s=_PROBE_TIMEOUT_S) as client:
            answers = client.status(self.engine.endpoints.ready) == 200
        if answers:
            self._check_runs()
        return answers

    def _check_runs(self) -> None:
        status = self.services.status(self.handle)
        if status.running:
            return
        self.watch.ended_by_others(status)
        self._check_owner()
        self.services.stop(self.handle, timeout_s=_AFTERMATH_S)
        self._follow()
        raise_failure(self.watch.failure(self.follower.text, status, self.stage))

    def _listens(self) -> bool:
        """Whether the port is open, and it is this server that opened it."""
        if self.host.transport.type == "local" and not port_open(self.host.endpoint.port, self.host_side.transport):
            return False
        self._check_owner()
        if self.mine:
            self.route.settle()
        return self.mine

    def _follow(self) -> None:
        for line in self.follower.lines():
            stage = self.engine.stage_of(line)
            if stage is not None:
                self.progressed = time.monotonic()
                self._reach(stage)

    def _reach(self, stage: Stage) -> None:
        """Note the arrival at a stage. With a drafter some stages come twice: the first time is told, the last is where it is."""
        if stage is not Stage.STOP:
            self.stage = stage
        if stage not in self.stage_s:
            elapsed = time.monotonic() - self.begun
            self.stage_s[stage] = elapsed
            self.on_stage(stage, elapsed)

    def _check_owner(self) -> None:
        reply = self.host_side.call(
            "owned",
            {
                "port": self.host.endpoint.port,
                "state": self.host_side.state,
                "manager": self.host.service.manager,
                "name": self.spec.name,
            },
        )
        listener = read_listener(reply)
        self.mine = bool(reply["ours"])
        started_here = listener.owner is not None and listener.owner.service == self.spec.name
        if listener.listening and not self.mine and not started_here:
            raise self.foreign(listener)

    def _check_patience(self) -> None:
        limits, now = self.host.limits, time.monotonic()
        if now - self.begun > limits.ready_timeout_s:
            raise_failure(never_ready(self.stage, limits.ready_timeout_s, self.follower.text))
        if now - self.progressed > limits.stage_timeout_s:
            raise_failure(hung(self.stage, now - self.progressed, limits.stage_timeout_s, self.follower.text))

    def _info(self, client: ControlClient) -> dict[str, object]:
        path = self.engine.endpoints.info
        answer = client.get_json(path) if path else {}
        return dict(answer) if isinstance(answer, dict) else {}
