"""Watch: whether this session still has its host, and why a candidate is gone."""

from __future__ import annotations

from dataclasses import dataclass

from autotuner.deploy.failures import interfered, out_of_memory
from autotuner.deploy.heartbeat import Heartbeat
from autotuner.deploy.state import SessionState, session_state
from autotuner.discover.ports import listener_on
from autotuner.engines.base import Engine
from autotuner.errors import AutotunerError, StopStudy
from autotuner.model.host import Host
from autotuner.model.outcome import Failure, Stage
from autotuner.services.base import ServiceStatus
from autotuner.services.hostside import HostSide


@dataclass(kw_only=True)
class Watch:
    """One session's view of its host from here."""

    host: Host
    engine: Engine
    host_side: HostSide
    folder: str
    token: str
    heartbeat: Heartbeat

    def alive(self, allow_s: float = 0.0) -> None:
        """The tuner makes progress; its next sign may take ``allow_s``. Raises ``StopStudy`` when the host is known to be lost."""
        if self.heartbeat.lost:
            raise lease_lost(self.host)
        self.heartbeat.touch(allow_s)

    def lost(self) -> bool:
        """Whether the host was given back meanwhile: a restore has begun, or ended, or another tuner came after it."""
        return self._look() is None

    def fence(self) -> None:
        """Before anything is done on the host. A watchdog that was killed is started again.

        Raises ``StopStudy`` when the host was given back meanwhile, or when somebody acted on it by hand.
        """
        state = self._look()
        if state is None:
            raise lease_lost(self.host)
        if state.by_hand is not None:
            raise interfered(self.host, state.by_hand, self.serving())
        if not state.armed:
            self._renew()

    def ended_by_others(self, status: ServiceStatus) -> None:
        """A candidate runs no more: raise ``StopStudy`` when that was the host's own watchdog, or somebody's hand."""
        self.fence()
        if status.by_hand:
            raise interfered(self.host, "somebody stopped the candidate by hand", self.serving())

    def failure(self, log: str, status: ServiceStatus, stage: Stage) -> Failure:
        """Why a candidate ended by itself."""
        if status.out_of_memory:
            return out_of_memory(stage, log)
        return self.engine.classify(log, exit_code=status.exit_code, stage=stage)

    def serving(self) -> str:
        """Who listens on the port now, for a sentence."""
        try:
            listener = listener_on(self.host.endpoint.port, self.host_side)
        except AutotunerError:
            return f"nobody can say who listens on port {self.host.endpoint.port}"
        return f"{listener if listener.listening else 'nothing'} listens on port {self.host.endpoint.port}"

    def _look(self) -> SessionState | None:
        """How the session is; ``None`` when the host is lost, which is final."""
        if self.heartbeat.lost:
            return None
        state = session_state(self.host_side, self.folder)
        self.heartbeat.lost = state.token != self.token or not state.live
        return None if self.heartbeat.lost else state

    def _renew(self) -> None:
        reply = self.host_side.call("renew", {"session": self.folder, "token": self.token})
        if reply.get("live") is False:
            self.heartbeat.lost = True
            raise lease_lost(self.host)
        if "error" in reply:
            raise StopStudy(f"{self.host.name}: the watchdog cannot be started: {reply['error']}", hint=f"see {self.folder}/guard.log")


def lease_lost(host: Host) -> StopStudy:
    """The host was given back while this session was away."""
    return StopStudy(
        f"{host.name}: the lease was lost: this tuner was not heard of for too long, or the host was booted; it brought production back",
        hint="start again with the same command to resume; everything measured was kept",
    )
