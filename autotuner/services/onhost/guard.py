"""The life of a tuning session on its host: armed before anything is stopped, renewed while the tuner makes progress, restored, disarmed.

One routine brings production back, at the end of every night as after a tuner's death, so it is never used for the first time in an
emergency. Who calls it then differs: a watchdog process, or a timer of systemd.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from . import files, lease, processes, production, session, supervise, watchdog


def arm(request: dict[str, Any]) -> dict[str, Any]:
    """Begin the session ``{session, snapshot}``: from here on the host restores itself when the tuner is silent for its time to live.

    The same session again changes nothing. ``{"error": …}`` with kind ``held`` when another session is still to be restored, ``fenced``
    when this one has lost the host, ``full`` when the disk is; nothing is left behind then.
    """
    folder, snapshot = Path(request["session"]), request["snapshot"]
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with files.locked(folder):
            return _arm(folder, snapshot)
    except OSError as error:
        if error.errno not in files.FULL:
            raise
        return {"error": f"{error.filename or folder}: {error.strerror}", "errno": error.errno, "kind": "full"}


def renew(request: dict[str, Any]) -> dict[str, Any]:
    """The tuner of ``{session, token}`` makes progress. ``{"live": False}`` when the host was given back meanwhile."""
    folder, token = Path(request["session"]), request["token"]
    if not session.live(folder, token):
        return {"live": False}
    with contextlib.suppress(OSError):
        session.beat(folder)
    reply = watchdog.ensure(folder, token)
    if "error" in reply:
        return reply
    return {"live": session.live(folder, token)}


def state(request: dict[str, Any]) -> dict[str, Any]:
    """How the session ``{session}`` is: ``{snapshot, live, armed, remaining_s, restoring, outcome, by_hand}``."""
    folder = Path(request["session"])
    snapshot = session.snapshot_of(folder)
    token = snapshot["token"] if snapshot else None
    silent_s = session.silent_s(folder)
    return {
        "snapshot": token,
        "live": session.live(folder, token),
        "armed": watchdog.watching(folder, token) is not None,
        "remaining_s": None if snapshot is None or silent_s is None else float(snapshot["ttl_s"]) - silent_s,
        "restoring": snapshot is not None and not session.live(folder, token) and files.is_locked(folder),
        "outcome": session.outcome_of(folder),
        "by_hand": None,
    }


def stop_production(request: dict[str, Any]) -> dict[str, Any]:
    """Stop what served before the session ``{session, token}``; ``{"left": pids}`` that would not die."""
    folder = Path(request["session"])
    with supervise.permitted(folder, request["token"]) as snapshot:
        return supervise.FENCED if snapshot is None else production.stop(snapshot)


def request_restore(request: dict[str, Any]) -> dict[str, Any]:
    """Have the session ``{session, token, keep}`` restored; goes on without the caller. Without a token whichever session is there.

    With ``keep`` its snapshot and leases stay, so that the tuner can look at the result and disarm; if it does not, the host restores once
    more and cleans up by itself.
    """
    folder = Path(request["session"])
    snapshot = session.snapshot_of(folder, request.get("token"))
    if snapshot is None:
        return {}
    with contextlib.suppress(OSError):
        files.fill(folder / "request", {"token": snapshot["token"], "keep": bool(request.get("keep"))})
    session.fence(folder)
    reply = watchdog.ensure(folder, snapshot["token"])
    return reply if "error" in reply else {}


def restore(request: dict[str, Any]) -> dict[str, Any]:
    """Stop what the session ``{session, reason}`` started and have production serve as before; idempotent.

    With a ``token`` only that session is meant, not one that took its place since. The reply and ``outcome.json`` are
    ``{ok, detail, notes, token}``.
    """
    folder = Path(request["session"])
    nothing = {"ok": True, "detail": "nothing is left to restore", "notes": []}
    if not folder.is_dir():
        return nothing
    with files.locked(folder):
        snapshot = session.snapshot_of(folder, request.get("token"))
        if snapshot is None:
            return nothing
        session.fence(folder)
        keep = bool((session.requested(folder, snapshot["token"]) or {}).get("keep"))
        session.note(folder, f"restoring: {request.get('reason', 'asked to')}")
        notes: list[str] = []
        trouble = _restore(folder, snapshot, notes)
        detail = trouble or "production is as it was"
        outcome = {"ok": trouble is None, "detail": detail[:1500], "notes": [text[:300] for text in notes[:5]], "token": snapshot["token"]}
        session.note(folder, detail)
        with contextlib.suppress(OSError):
            files.fill(folder / "outcome.json", outcome)
        if trouble is None:
            _settle(folder, snapshot, keep=keep)
        return outcome


def verify(request: dict[str, Any]) -> dict[str, Any]:
    """Compare the host with the snapshot of ``{session}``: ``{problems, notes}``. Changes nothing."""
    folder = Path(request["session"])
    snapshot = session.snapshot_of(folder)
    if snapshot is None:
        return {"problems": [], "notes": ["the session is over"]}
    running = sorted(pid for pid, _ in _candidates(folder, snapshot))
    problems = [f"processes {running} of the tuning session still run"] if running else []
    return {"problems": problems + production.differences(snapshot), "notes": []}


def disarm(request: dict[str, Any]) -> dict[str, Any]:
    """End the session ``{session, token}`` after a restore that was looked at: leases, snapshot and watchdog go."""
    folder = Path(request["session"])
    if not folder.is_dir():
        return {}
    with files.locked(folder):
        snapshot = session.snapshot_of(folder, request["token"])
        if snapshot is None:
            return {}
        if session.live(folder, snapshot["token"]) or not (session.outcome_of(folder) or {}).get("ok"):
            return {"error": "it was not restored yet", "kind": "live"}
        _end(folder, snapshot)
        return {}


def _arm(folder: Path, snapshot: dict[str, Any]) -> dict[str, Any]:
    token = snapshot["token"]
    there = session.snapshot_of(folder)
    if there is not None and there["token"] != token:
        return {"error": "another session is still to be restored", "kind": "held"}
    if there is not None and not session.live(folder, token):
        return supervise.FENCED
    if there is None:
        if not lease.holds(snapshot["leases"], token):
            return supervise.FENCED
        session.create(folder, snapshot)
    reply = watchdog.ensure(folder, token)
    if "error" in reply:
        if there is None:
            session.wipe(folder)
        return reply
    return {}


def _restore(folder: Path, snapshot: dict[str, Any], notes: list[str]) -> str | None:
    with contextlib.suppress(OSError), files.locked(folder / "start.lock"):
        pass  # whoever was starting something when the fence went up has ended now
    grace_s = float(snapshot["stop_timeout_s"])
    left: list[int] = []
    for record in supervise.records(Path(snapshot["state"])):
        if record.get("session") == str(folder):
            left += supervise.end_record(record, grace_s)
    left += [pid for pid, _ in processes.end(lambda: _strays(folder), grace_s=grace_s)]
    if left:
        return f"processes {left} of the tuning session would not die"
    if snapshot["production"] is None:
        return None
    return production.bring_back(folder, snapshot, lambda text: session.note(folder, text))


def _settle(folder: Path, snapshot: dict[str, Any], *, keep: bool) -> None:
    """After a restore that worked: wait for the tuner to look at it, for one time to live at most, or end the session."""
    if not keep:
        _end(folder, snapshot)
        return
    with contextlib.suppress(OSError):
        session.beat(folder)
        files.fill(folder / "request", None)


def _end(folder: Path, snapshot: dict[str, Any]) -> None:
    lease.release(snapshot["leases"], snapshot["token"])
    session.close(folder)


def _candidates(folder: Path, snapshot: dict[str, Any]) -> set[tuple[int, int]]:
    found = _strays(folder)
    for record in supervise.records(Path(snapshot["state"])):
        if record.get("session") == str(folder):
            found |= supervise.members(record)
    return found


def _strays(folder: Path) -> set[tuple[int, int]]:
    """Processes that carry the session's mark, whatever became of their parents."""
    running = processes.table()
    found = {pid for pid in running if processes.marked(pid, processes.SESSION_MARK, str(folder))} - processes.protected(running)
    return {(pid, running[pid].started) for pid in found}
