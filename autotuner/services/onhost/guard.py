"""The watchdog of a tuning session: it alone brings production back, on request or when the tuner is gone.

A session's folder holds
    snapshot.json    what served, who tunes, how patient to be (0600: it holds production's environment)
    heartbeat        rewritten by the tuner while it makes progress
    request          written by the tuner when it is done
    fenced           written first of all by a restore: nothing may be started for this session any more
    outcome.json     how the last restore ended
    guard.log        what was done, with times
The same routine runs at the end of every night, so it is never used for the first time in an emergency.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import detach, files, lease, processes, production, supervise

_POLL_S = 0.2
_PAUSES_S = (0.0, 1.0, 3.0, 10.0, 20.0)
"""Before each attempt: what kept production from starting (memory of the GPU, a port) may need a moment to be given back."""


def arm(request: dict[str, Any]) -> dict[str, Any]:
    """Start the watchdog of ``{session}`` detached, unless it runs already; the reply is its ``{pid, started}``."""
    folder = Path(request["session"])
    snapshot = files.read_json(folder / "snapshot.json") or {}
    running = watching(folder, snapshot.get("token"))
    return running if running is not None else detach.detached(lambda report: watch(folder, report))


def watching(folder: Path, token: str | None) -> dict[str, Any] | None:
    """``{pid, started, token}`` of the watchdog of the session with this token while it runs."""
    record = files.read_json(folder / "watchdog.json")
    if record is None or record["token"] != token:
        return None
    return record if processes.alive(int(record["pid"]), int(record["started"])) else None


def watch(folder: Path, report: Callable[[dict[str, Any]], None]) -> None:
    """Wait for a reason to restore, restore until it has worked or is hopeless, end."""
    snapshot = files.read_json(folder / "snapshot.json")
    if snapshot is None:
        report({"error": "there is no snapshot to watch over"})
        return
    own = processes.read(os.getpid())
    record = {"pid": os.getpid(), "started": own.started if own else 0, "token": snapshot["token"]}
    files.write_json(folder / "watchdog.json", record)
    os.dup2(os.open(folder / "guard.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    report(record)
    reason = _await_reason(folder, snapshot)
    for pause in _PAUSES_S:
        time.sleep(pause)
        try:
            if restore({"session": str(folder), "reason": reason, "token": snapshot["token"]})["ok"]:
                return
        except OSError as error:  # a full disk must not be the end of the one who brings production back
            sys.stderr.write(f"{error}\n")
    note(folder, "giving up; the next start of the tuner, or a person, brings production back")


def restore(request: dict[str, Any]) -> dict[str, Any]:
    """Stop what the session ``{session, reason}`` started and have production serve as before; idempotent.

    With a ``token`` only that session is meant, not one that took its place since. The reply and ``outcome.json`` are ``{ok, detail}``.
    On success the snapshot and the leases are removed.
    """
    folder = Path(request["session"])
    with files.locked(folder / "restore.lock"):
        snapshot = files.read_json(folder / "snapshot.json")
        if snapshot is None or request.get("token", snapshot["token"]) != snapshot["token"]:
            return {"ok": True, "detail": "nothing is left to restore"}
        note(folder, f"restoring: {request.get('reason', 'asked to')}")
        trouble = _restore(folder, snapshot)
        outcome = {"ok": trouble is None, "detail": trouble or "production is as it was", "token": snapshot["token"]}
        if trouble is None:
            lease.release(snapshot["leases"], snapshot["token"])
            files.remove(folder / "snapshot.json")
            files.remove(folder / "production.json")
        files.write_json(folder / "outcome.json", outcome)
        note(folder, outcome["detail"])
        return outcome


def note(folder: Path, text: str) -> None:
    """A line in the guard's log."""
    with contextlib.suppress(OSError), (folder / "guard.log").open("a") as file:
        file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} [{os.getpid()}] {text}\n")


def _restore(folder: Path, snapshot: dict[str, Any]) -> str | None:
    with files.locked(folder / "start.lock"):
        (folder / "fenced").touch()
    left: list[int] = []
    for record in supervise.records(Path(snapshot["state"])):
        if record.get("session") == str(folder):
            left += supervise.end_record(record, float(snapshot["stop_timeout_s"]))
    left += [pid for pid, _ in processes.end(lambda: _strays(folder), grace_s=float(snapshot["stop_timeout_s"]))]
    if left:
        return f"processes {left} of the tuning session would not die"
    if snapshot["production"] is None:
        return None
    return production.bring_back(folder, snapshot, lambda text: note(folder, text))


def _strays(folder: Path) -> set[tuple[int, int]]:
    """Processes that carry the session's mark, whatever became of their parents."""
    running = processes.table()
    found = {pid for pid in running if processes.marked(pid, processes.SESSION_MARK, str(folder))} - processes.protected(running)
    return {(pid, running[pid].started) for pid in found}


def _await_reason(folder: Path, snapshot: dict[str, Any]) -> str:
    """Wait until the tuner asks, is dead, or has not renewed its heartbeat for its time to live (on the monotonic clock)."""
    holder = snapshot["holder"]
    local = holder["machine"] == lease.machine()
    last, deadline = b"", time.monotonic() + float(snapshot["ttl_s"])
    while True:
        if (folder / "request").exists():
            return "the tuner is done"
        if local and not processes.alive(int(holder["pid"]), int(holder["started"])):
            return f"the tuner (pid {holder['pid']}) is gone"
        beat = _heartbeat(folder)
        if beat != last:
            last, deadline = beat, time.monotonic() + float(snapshot["ttl_s"])
        elif time.monotonic() > deadline:
            return f"the tuner made no progress for {float(snapshot['ttl_s']):g} s"
        time.sleep(_POLL_S)


def _heartbeat(folder: Path) -> bytes:
    try:
        return (folder / "heartbeat").read_bytes()
    except OSError:
        return b""
