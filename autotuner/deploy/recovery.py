"""Has the host's watchdog bring production back, and waits for it."""

from __future__ import annotations

import time

from autotuner.errors import NotRestored
from autotuner.model.host import Host
from autotuner.services.hostside import HostSide

_POLL_S = 0.2
_SLACK_S = 90.0
"""For its retries beside one full stop and start."""


def bring_back(host: Host, host_side: HostSide, folder: str, *, token: str | None = None) -> None:
    """Ask for the restore of a session and wait until it is done. Once asked for, it goes on without this process.

    With a ``token`` only that session is meant, else whichever left something there. Raises ``NotRestored`` with the command for a person.
    """
    transport = host_side.transport
    deadline = time.monotonic() + host.limits.stop_timeout_s + host.limits.ready_timeout_s + _SLACK_S
    found = host_side.call("session", {"session": folder})["snapshot"]
    if found is None or token not in {None, found}:
        return
    transport.write(f"{folder}/request", b"restore", mode=0o600)
    trouble = host_side.call("arm", {"session": folder}).get("error")
    while time.monotonic() < deadline:
        state = host_side.call("session", {"session": folder})
        if state["snapshot"] != found:
            return
        if trouble is not None:
            break
        outcome = state["outcome"] or {}
        if state["watchdog"] is None:
            tried = outcome.get("token") == found
            trouble = outcome["detail"] if tried else host_side.call("arm", {"session": folder}).get("error")
        time.sleep(_POLL_S)
    raise not_restored(host, host_side, folder, trouble or "it took too long")


def not_restored(host: Host, host_side: HostSide, folder: str, why: str) -> NotRestored:
    """What to say when production is not as it was."""
    return NotRestored(
        f"{host.name}: production on port {host.endpoint.port} is not as it was: {why}",
        hint=f"on the host: {host_side.by_hand('restore', folder)} — what was tried: {folder}/guard.log and {folder}/production.log",
    )
