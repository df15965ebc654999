"""The end of a session: production is brought back by the host, looked at over a new connection, and only then is the host given back."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotuner.deploy.patience import PAUSE_S
from autotuner.deploy.production import PROBE_TIMEOUT_S, HostBefore, served_models
from autotuner.deploy.reach import Route
from autotuner.deploy.recovery import await_outcome, not_restored, patience_s, request_restore, unreachable
from autotuner.deploy.state import SessionState, session_state
from autotuner.discover.ports import listener_on
from autotuner.discover.tenancy import tenant_of
from autotuner.engines.base import Engine
from autotuner.errors import AutotunerError, NotRestored, TransportError
from autotuner.model.host import Host
from autotuner.services.hostside import HostSide

_LOOKS = 3
"""A look that fails is repeated: one lost request over a bad line says nothing about production."""
_VERIFY_TIMEOUT_S = 90.0
_OK = 200


@dataclass(kw_only=True)
class Ending:
    """One session that ends. ``renewed`` is when the host was last told that the tuner lives, on the monotonic clock."""

    host: Host
    engine: Engine
    host_side: HostSide
    route: Route
    folder: str
    token: str
    before: HostBefore
    snapshot: Mapping[str, Any]
    """What was armed: it is compared with even when the host has lost it."""
    ttl_s: float
    renewed: float
    on_notice: Callable[[str], None]
    asked: bool = False
    """The restore was asked for: from here on what happens on the host is this session's own doing."""
    lost: bool = False
    """The host had been given back before: nothing on it is touched, it is only looked at."""
    seen: bool = False
    """Production was seen to be as it was, over a connection of its own."""
    told: set[str] = field(default_factory=set)

    def run(self) -> bool:
        """Bring production back, see for ourselves that it serves, give the host back; whether the host had been lost before.

        Goes on trying while the host cannot be reached, until it has long restored itself. Raises ``NotRestored`` whenever production was
        not seen to be as it was.
        """
        deadline = time.monotonic() + self.ttl_s + patience_s(self.host)
        while True:
            try:
                return self._attempt()
            except NotRestored:
                raise
            except TransportError as error:
                if self.seen:
                    self._notice("production is as it was; the host ends the session by itself")
                    return self.lost
                if time.monotonic() >= deadline:
                    raise unreachable(self.host, self.host_side, self.folder, error, by=self._by()) from error
                self._notice(f"it cannot be reached ({error.message}); trying again")
            except AutotunerError as error:
                raise unreachable(self.host, self.host_side, self.folder, error, by=self._by()) from error
            time.sleep(PAUSE_S)

    def _attempt(self) -> bool:
        state = session_state(self.host_side, self.folder)
        if not self.asked and (state.token != self.token or not state.live):
            self.lost = True
        if self.lost:
            if state.token not in {None, self.token}:
                return True
            await_outcome(self.host, self.host_side, self.folder, self.token)  # its own; nothing is asked of it
            if tenant_of(self.host, self.host_side, besides=self.token) is not None:
                return True  # what another tuner does there by now is not ours to judge
            rescued = self._rescue()
            self._look()
            if rescued:
                self._disarm()
            return True
        if state.token == self.token and not (self.asked and state.restored(self.token)):
            state = self._restored()
            for note in state.outcome.notes if state.outcome else ():
                self._notice(note)
        self._look()
        self._disarm()
        return False

    def _rescue(self) -> bool:
        """A host that has lost all it knew of the session while its candidate runs is told what to restore; whether that was so."""
        reply = self.host_side.call("verify", {"session": self.folder, "snapshot": dict(self.snapshot)}, timeout_s=_VERIFY_TIMEOUT_S)
        if not reply.get("running") or session_state(self.host_side, self.folder).token is not None:
            return False
        self._notice("it has lost what it knew of this session; it is told to restore it")
        request_restore(self.host, self.host_side, self.folder, self.token, keep=True, snapshot=self.snapshot)
        await_outcome(self.host, self.host_side, self.folder, self.token)
        return True

    def _restored(self) -> SessionState:
        """The session after its restore, which waits to be looked at."""
        self.asked = True
        request_restore(self.host, self.host_side, self.folder, self.token, keep=True)
        try:
            return await_outcome(self.host, self.host_side, self.folder, self.token)
        except NotRestored:
            with contextlib.suppress(AutotunerError):  # nobody waits any more: whenever it works, by itself or by hand, all of it is over
                request_restore(self.host, self.host_side, self.folder, self.token, keep=False)
            raise

    def _look(self) -> None:
        """Over a new connection: what the host's own program says is not evidence enough. Raises ``NotRestored`` with what was seen."""
        transport = self.host_side.transport.fresh()
        try:
            side = self.host_side.over(transport)
            for left in reversed(range(_LOOKS)):
                problems, changed = self._on_host(side)
                problems += self._from_outside(side, changed=bool(changed))
                if not problems:
                    self.seen = True
                    return
                if left:
                    time.sleep(PAUSE_S)
        finally:
            transport.close()
        raise not_restored(self.host, self.host_side, self.folder, "; ".join(problems))

    def _on_host(self, side: HostSide) -> tuple[list[str], list[str]]:
        """What is not as before, and what somebody else has changed meanwhile, which is kept."""
        reply = side.call("verify", {"session": self.folder, "snapshot": dict(self.snapshot)}, timeout_s=_VERIFY_TIMEOUT_S)
        if "error" in reply:
            return [f"it could not be looked at: {reply['error']}"], []
        notes = list(reply.get("notes", []))
        for note in notes:
            self._notice(note)
        return list(reply["problems"]), notes

    def _from_outside(self, side: HostSide, *, changed: bool) -> list[str]:
        """Health and models as a user of production meets them; without an answer before, its port."""
        production = self.before.production
        if production is None:
            return []
        if not production.answered:
            listening = listener_on(self.host.endpoint.port, side).listening
            return [] if listening else [f"nothing listens on port {self.host.endpoint.port}"]
        with self.route.control(timeout_s=PROBE_TIMEOUT_S, host_side=side) as client:
            status = client.status(self.engine.endpoints.ready)
            if status != _OK:
                return [f"its health check says {status or 'nothing'}"]
            models = served_models(client, self.engine) if production.models is not None else None
        if models == production.models or changed:
            return []
        return [f"it serves {', '.join(models or ()) or 'no model'}, and served {', '.join(production.models or ()) or 'none'} before"]

    def _disarm(self) -> None:
        """What is left of the session goes; a host that refuses that does it by itself when the session's time is up."""
        reply = self.host_side.call("disarm", {"session": self.folder, "token": self.token}, timeout_s=60)
        if "error" in reply:
            self._notice(
                f"production is as it was, but the session could not be removed ({reply['error']}); the host does it by {self._by()}"
            )
            return
        state = session_state(self.host_side, self.folder)
        if state.token == self.token or (state.token is None and state.armed):
            self._notice(f"production is as it was, but the session is still armed; the host removes it by {self._by()}")

    def _by(self) -> str:
        """When the host has restored itself at the latest, as far as it was heard of."""
        left = self.renewed + self.ttl_s + patience_s(self.host) - time.monotonic()
        return (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=max(0.0, left))).strftime("%Y-%m-%d %H:%M:%SZ")

    def _notice(self, text: str) -> None:
        """Once each."""
        if text not in self.told:
            self.told.add(text)
            self.on_notice(f"{self.host.name}: {text}")
