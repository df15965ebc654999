"""Has the host's watchdog bring production back, and waits for it."""

from __future__ import annotations

import json
import time

from autotuner.errors import NotRestored
from autotuner.model.host import Host
from autotuner.services.hostside import HostSide
from autotuner.services.onhost.processes import DEAD, parse_stat
from autotuner.transports.base import Transport

_POLL_S = 0.2
_SLACK_S = 90.0
"""For its retries beside one full stop and start."""


def left_behind(transport: Transport, folder: str) -> str | None:
    """Token of the session that is still to be restored in ``folder``. Reads one file; runs nothing."""
    try:
        return str(json.loads(transport.read(f"{folder}/snapshot.json"))["token"])
    except FileNotFoundError:
        return None


def watched(transport: Transport, folder: str, token: str) -> bool:
    """Whether the session's watchdog lives. Reads two files; runs nothing."""
    try:
        record = json.loads(transport.read(f"{folder}/watchdog.json"))
        process = parse_stat(transport.read(f"/proc/{record['pid']}/stat").decode(errors="replace"))
    except (FileNotFoundError, ValueError, IndexError):
        return False
    return bool(record["token"] == token and process.started == record["started"] and process.state not in DEAD)


def bring_back(host: Host, host_side: HostSide, folder: str, *, token: str | None = None) -> None:
    """Ask for the restore of a session and wait until it is done. Once asked for, it goes on without this process.

    With a ``token`` only that session is meant, else whichever left something there. Raises ``NotRestored`` with the command for a person.
    """
    transport = host_side.transport
    deadline = time.monotonic() + host.limits.stop_timeout_s + host.limits.ready_timeout_s + _SLACK_S
    found = left_behind(transport, folder)
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
