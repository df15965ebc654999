"""The watchdog of a session that starts plain processes: a detached program that waits for a reason to restore."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import detach, files, lease, processes, restore, session

_POLL_S = 0.2
_PAUSES_S = (0.0, 1.0, 3.0, 10.0, 20.0)
"""Before each attempt: what kept production from starting (memory of the GPU, a port) may need a moment to be given back."""


def ensure(folder: Path, snapshot: dict[str, Any]) -> dict[str, Any]:
    """Start the watchdog of the session unless it runs; empty, or ``{"error": …}``."""
    if watching(folder, snapshot["token"]) is not None:
        return {}
    reply = detach.detached(lambda report: watch(folder, report))
    return reply if "error" in reply else {}


renew = ensure
"""A watchdog that was killed is started again; it reads by itself that the tuner was heard of."""
ask = ensure
"""The watchdog reads by itself what it is asked for."""


def armed(folder: Path, snapshot: dict[str, Any]) -> bool:
    """Whether the watchdog runs."""
    return watching(folder, snapshot["token"]) is not None


def remaining_s(folder: Path, snapshot: dict[str, Any]) -> float | None:
    """Seconds until the tuner counts as gone; ``None`` after a reboot."""
    silent_s = session.silent_s(folder)
    return None if silent_s is None else float(snapshot["ttl_s"]) - silent_s


def gone(folder: Path, token: str) -> bool:  # noqa: ARG001 - as for timers
    """A watchdog ends by itself once its session is over."""
    return True


def watching(folder: Path, token: str | None) -> dict[str, Any] | None:
    """``{pid, started, token}`` of the watchdog of the session with this token while it runs."""
    record = files.read_json(folder / "watchdog.json")
    if record is None or record["token"] != token:
        return None
    return record if processes.alive(int(record["pid"]), int(record["started"])) else None


def watch(folder: Path, report: Callable[[dict[str, Any]], None]) -> None:
    """Wait for a reason to restore and restore, until the session is over or it is hopeless."""
    snapshot = session.snapshot_of(folder)
    if snapshot is None:
        report({"error": "there is no snapshot to watch over"})
        return
    own = processes.read(os.getpid())
    record = {"pid": os.getpid(), "started": own.started if own else 0, "token": snapshot["token"]}
    files.fill(folder / "watchdog.json", record)
    os.dup2(os.open(folder / "guard.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    report(record)
    while True:
        reason = _await_reason(folder, snapshot)
        if reason is None:
            return
        if not _restored(folder, snapshot, reason):
            session.note(folder, "giving up; the next start of the tuner, or a person, brings production back")
            return


def _restored(folder: Path, snapshot: dict[str, Any], reason: str) -> bool:
    for pause in _PAUSES_S:
        time.sleep(pause)
        try:
            if restore.restore({"session": str(folder), "reason": reason, "token": snapshot["token"]})["ok"]:
                return True
        except OSError as error:  # a full disk must not be the end of the one who brings production back
            sys.stderr.write(f"{error}\n")
    return False


def _await_reason(folder: Path, snapshot: dict[str, Any]) -> str | None:
    """Wait until the tuner asks, is dead, or was not heard of for its time to live. ``None`` when the session is over."""
    holder, token, ttl_s = snapshot["holder"], snapshot["token"], float(snapshot["ttl_s"])
    local = holder["machine"] == lease.machine()
    while session.snapshot_of(folder, token) is not None:
        if session.requested(folder, token) is not None:
            return "the tuner is done"
        if not session.live(folder, token) and not (session.outcome_of(folder) or {}).get("ok"):
            return "a restore was begun and not ended"
        if local and not processes.alive(int(holder["pid"]), int(holder["started"])):
            return f"the tuner (pid {holder['pid']}) is gone"
        silent_s = session.silent_s(folder)
        if silent_s is None or silent_s > ttl_s:
            return f"the tuner made no progress for {ttl_s:g} s"
        time.sleep(_POLL_S)
    return None
