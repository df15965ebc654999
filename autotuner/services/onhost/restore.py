"""The one routine that brings production back: at the end of every night, after a tuner's death, after a reboot, by hand."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from . import candidate, deadman, files, lease, processes, production, session, supervise, unit_production

NOTHING: dict[str, Any] = {"ok": True, "detail": "nothing is left to restore", "notes": []}


def restore(request: dict[str, Any]) -> dict[str, Any]:
    """Stop what the session ``{session, reason}`` started and have production serve as before; idempotent.

    With a ``token`` only that session is meant, not one that took its place since. The reply and ``outcome.json`` are
    ``{ok, detail, notes, token}``. What is written down on the way is written as far as there is room.
    """
    folder = Path(request["session"])
    if session.damaged(folder):
        return {"ok": False, "detail": "the snapshot of the session is damaged, and so is its copy", "notes": []}
    if session.snapshot_of(folder, request.get("token")) is None:
        return NOTHING
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # somebody may have removed it
    with files.locked(folder):
        snapshot = session.snapshot_of(folder, request.get("token"))
        return NOTHING if snapshot is None else _restored(folder, snapshot, request.get("reason", "asked to"))


def candidates(folder: Path, snapshot: dict[str, Any]) -> list[str]:
    """Whatever the session started and still runs."""
    found = _strays(folder)
    for record in supervise.records(Path(snapshot["state"])):
        if record.get("session") == str(folder):
            found |= supervise.members(record)
    running = [f"process {pid}" for pid, _ in sorted(found)]
    return running + (candidate.running(int(snapshot["port"])) if by_units(snapshot) else [])


def end(folder: Path, snapshot: dict[str, Any]) -> None:
    """The session is over: leases, files and units of it go."""
    lease.release(snapshot["leases"], snapshot["token"])
    if by_units(snapshot):
        candidate.wipe(int(snapshot["port"]))
        deadman.remove(folder, snapshot["token"])
    session.close(folder)


def by_units(snapshot: dict[str, Any]) -> bool:
    """Whether production and candidates are units of systemd."""
    return snapshot.get("manager") == "systemd"


def _restored(folder: Path, snapshot: dict[str, Any], reason: str) -> dict[str, Any]:
    session.fence(folder)
    session.note(folder, f"restoring: {reason}")
    notes: list[str] = []
    trouble = _stopped(folder, snapshot) or _brought_back(folder, snapshot, notes)
    detail = trouble or "production is as it was"
    outcome = {"ok": trouble is None, "detail": detail[:1500], "notes": [text[:300] for text in notes[:5]], "token": snapshot["token"]}
    for text in (*notes, detail):
        session.note(folder, text)
    with contextlib.suppress(OSError):
        files.fill(folder / "outcome.json", outcome)
    if trouble is None and bool((session.requested(folder, snapshot["token"]) or {}).get("keep")):
        _keep(folder, snapshot)
    elif trouble is None:
        end(folder, snapshot)
    return outcome


def _stopped(folder: Path, snapshot: dict[str, Any]) -> str | None:
    with contextlib.suppress(OSError), files.locked_file(folder / "start.lock"):
        pass  # whoever was starting something when the fence went up has ended now
    grace_s = float(snapshot["stop_timeout_s"])
    left: list[int] = []
    if by_units(snapshot):
        for unit in candidate.running(int(snapshot["port"])):
            left += candidate.end(unit, grace_s)
    for record in supervise.records(Path(snapshot["state"])):
        if record.get("session") == str(folder):
            left += supervise.end_record(record, grace_s)
    left += [pid for pid, _ in processes.end(lambda: _strays(folder), grace_s=grace_s)]
    return f"processes {left} of the tuning session would not die" if left else None


def _brought_back(folder: Path, snapshot: dict[str, Any], notes: list[str]) -> str | None:
    def say(text: str) -> None:
        session.note(folder, text)

    if by_units(snapshot):
        return unit_production.bring_back(snapshot, say, notes)
    return production.bring_back(folder, snapshot, say) if snapshot["production"] is not None else None


def _keep(folder: Path, snapshot: dict[str, Any]) -> None:
    """Wait for the tuner to look at the result, for one time to live at most; then this routine runs again."""
    with contextlib.suppress(OSError):
        session.beat(folder)
        files.fill(folder / "request", None)
    if by_units(snapshot):
        deadman.rearm(folder, snapshot)


def _strays(folder: Path) -> set[tuple[int, int]]:
    """Processes that carry the session's mark, whatever became of their parents, and the shells that were told to give it to them."""
    running = processes.table()
    word = f"{processes.SESSION_MARK}={folder}"
    found = {pid for pid in running if processes.marked(pid, processes.SESSION_MARK, str(folder))}
    # A command over SSH has a shell for its parent, which has the mark among its words only (after a "=", see transports/ssh/quoting).
    found |= {pid for pid in running if f"={word}" in processes.arguments(pid)}
    found -= processes.protected(running)
    return {(pid, running[pid].started) for pid in found}
