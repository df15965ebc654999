"""Has the host bring production back, and waits for it. Once asked for, that goes on without this process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from autotuner.deploy.state import SessionState, session_state
from autotuner.errors import AutotunerError, NotRestored
from autotuner.model.host import Host
from autotuner.services.hostside import HostSide

SLACK_S = 90.0
"""For the host's own retries beside one full stop and start."""

_POLL_S = 0.3
_FAILING_S = 45.0
"""How long a restore that has failed may go on trying before that is told; it goes on trying afterwards, too."""


def patience_s(host: Host) -> float:
    """How long a restore may take, from asking for it to production's health."""
    return host.limits.stop_timeout_s + host.limits.ready_timeout_s + SLACK_S


def bring_back(host: Host, host_side: HostSide, folder: str, *, token: str | None = None) -> None:
    """Restore whatever session is left in ``folder``, and have it verified over a new connection; nothing happens when none is.

    With a ``token`` only that session is meant. Raises ``NotRestored`` with the command for a person, ``TransportError`` when the host
    cannot be asked.
    """
    state = session_state(host_side, folder)
    if state.damaged:
        raise damaged(host, folder)
    found = state.token
    if found is None or token not in {None, found}:
        return
    request_restore(host, host_side, folder, found, keep=token is None)
    await_outcome(host, host_side, folder, found)
    if token is not None:
        return
    transport = host_side.transport.fresh()  # a restore is judged over another connection than the one that asked for it
    try:
        problems = host_side.over(transport).call("verify", {"session": folder}, timeout_s=60).get("problems", [])
    finally:
        transport.close()
    if problems:
        raise not_restored(host, host_side, folder, "; ".join(problems))
    reply = host_side.call("disarm", {"session": folder, "token": found}, timeout_s=60)
    if "error" in reply:
        raise not_restored(host, host_side, folder, f"what is left of the last session cannot be removed: {reply['error']}")


def request_restore(
    host: Host, host_side: HostSide, folder: str, token: str, *, keep: bool, snapshot: Mapping[str, Any] | None = None
) -> None:
    """Ask for the restore of a session; ``keep`` leaves it on the host until it was verified. Raises ``NotRestored``.

    ``snapshot`` is for a host that has lost everything about the session.
    """
    request: dict[str, Any] = {"session": folder, "token": token, "keep": keep}
    reply = host_side.call("request-restore", request if snapshot is None else {**request, "snapshot": dict(snapshot)})
    if "error" in reply:
        raise not_restored(host, host_side, folder, f"the restore cannot be started: {reply['error']}")


def await_outcome(host: Host, host_side: HostSide, folder: str, token: str) -> SessionState:
    """Wait until the restore of a session has ended well. Raises ``NotRestored`` when it has not within its time."""
    deadline = time.monotonic() + patience_s(host)
    failing: float | None = None
    while True:
        state = session_state(host_side, folder)
        if state.token != token or state.restored(token):
            return state
        tried = state.outcome if state.outcome is not None and state.outcome.token == token else None
        now = time.monotonic()
        if tried is not None:
            failing = failing or now
            if now - failing > _FAILING_S or not (state.armed or state.restoring):
                raise not_restored(host, host_side, folder, tried.detail)
        if now > deadline:
            raise not_restored(host, host_side, folder, "the host's restore took too long")
        time.sleep(_POLL_S)


def not_restored(host: Host, host_side: HostSide, folder: str, why: str) -> NotRestored:
    """What to say when production is not as it was, or was not seen to be."""
    try:
        command = f"on the host: {host_side.by_hand('restore', folder)} — what was tried: {folder}/guard.log"
    except AutotunerError:  # it was never reached, so nothing was changed there
        command = "look at the host"
    return NotRestored(f"{host.name}: production on port {host.endpoint.port} is not as it was: {why}", hint=command)


def damaged(host: Host, folder: str) -> NotRestored:
    """What to say when a session is left and nothing says to what."""
    start = f"autotuner service {host.name} start" if host.service.manager == "systemd" else "start production by hand"
    return NotRestored(
        f"{host.name}: a dead tuner has left this host to be restored, and what served before cannot be read any more:"
        f" the snapshot in {folder} is damaged, and so is its copy",
        hint=f"on the host: rm -r {folder}, and what `systemctl list-units 'autotuner-*'` lists; then {start}",
    )


def unreachable(host: Host, host_side: HostSide, folder: str, error: AutotunerError, *, by: str) -> NotRestored:
    """What to say when nobody could look: what the host does by itself, and by when."""
    try:
        command = f" (then on the host: {host_side.by_hand('restore', folder)})"
    except AutotunerError:
        command = ""
    return NotRestored(
        f"{host.name}: nobody has seen whether production on port {host.endpoint.port} is as it was: the host cannot be reached"
        f" or looked at ({error.message})."
        f" By itself it stops what was started for tuning and brings production back, by {by} at the latest",
        hint=f"look at it as soon as it can be reached: autotuner doctor {host.name}{command}",
    )
