"""What the host says about a session."""

from __future__ import annotations

from dataclasses import dataclass

from autotuner.errors import TransportError
from autotuner.services.hostside import HostSide


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the last restore of a session ended."""

    ok: bool
    detail: str
    notes: tuple[str, ...]
    token: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """A session's folder on the host, as it is now."""

    token: str | None
    """Of the session that is still to be restored; ``None`` when none is."""
    live: bool
    """Whether it may still act: no restore has begun."""
    armed: bool
    """Whether the host watches over it."""
    restoring: bool
    outcome: Outcome | None
    remaining_s: float | None = None
    """Seconds until the host restores itself unless the tuner is heard of; ``None`` when it cannot say."""
    damaged: bool = False
    """A session is still to be restored, and nothing on the host says any more to what."""
    by_hand: str | None
    """What somebody did on the host while it was tuned; ``None`` when nobody interfered."""

    def restored(self, token: str) -> bool:
        """Whether a restore of the session with this token has ended well, and waits to be verified."""
        return self.token == token and self.outcome is not None and self.outcome.token == token and self.outcome.ok


def session_state(host_side: HostSide, folder: str) -> SessionState:
    """Ask the host. Raises ``TransportError`` when it cannot say."""
    reply = host_side.call("session", {"session": folder})
    if "error" in reply:
        raise TransportError(f"{host_side.transport.address}: {folder}: {reply['error']}")
    raw = reply.get("outcome")
    outcome = None
    if raw:
        outcome = Outcome(ok=bool(raw["ok"]), detail=str(raw["detail"]), notes=tuple(raw.get("notes", ())), token=raw.get("token"))
    return SessionState(
        token=reply["snapshot"],
        live=bool(reply["live"]),
        armed=bool(reply["armed"]),
        restoring=bool(reply["restoring"]),
        remaining_s=reply.get("remaining_s"),
        outcome=outcome,
        damaged=bool(reply.get("damaged")),
        by_hand=reply.get("by_hand"),
    )
