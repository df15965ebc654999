"""The life of a tuning session on its host: armed before anything is stopped, renewed while the tuner makes progress, restored, disarmed.

Who brings production back when the tuner is silent differs: a watchdog process, or a timer of systemd. The routine is one (``restore``).
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import ModuleType
from typing import Any

from . import deadman, files, lease, production, restore, session, supervise, unit_production, watchdog


def arm(request: dict[str, Any]) -> dict[str, Any]:
    """Begin the session ``{session, snapshot}``: from here on the host restores itself when the tuner is silent for its time to live.

    The same session again changes nothing. ``{"error": …}`` with kind ``held`` when another session is still to be restored, ``fenced``
    when this one has lost the host, ``changed`` when its units are not as the snapshot says, ``full`` when the disk is, ``timer`` when
    nothing can be armed; nothing is left behind then.
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
    snapshot = session.snapshot_of(folder, token)
    if snapshot is None or not session.live(folder, token):
        return {"live": False}
    with contextlib.suppress(OSError):
        session.beat(folder)
    reply = _dead_man(snapshot).renew(folder, snapshot)
    if not session.live(folder, token):
        return {"live": False}
    return reply if "error" in reply else {"live": True}


def state(request: dict[str, Any]) -> dict[str, Any]:
    """How the session ``{session}`` is: ``{snapshot, live, armed, remaining_s, restoring, outcome, damaged, by_hand}``."""
    folder = Path(request["session"])
    snapshot = session.snapshot_of(folder)
    live = snapshot is not None and session.live(folder, snapshot["token"])
    return {
        "snapshot": None if snapshot is None else snapshot["token"],
        "live": live,
        "armed": snapshot is not None and _dead_man(snapshot).armed(folder, snapshot),
        "remaining_s": None if snapshot is None else _dead_man(snapshot).remaining_s(folder, snapshot),
        "restoring": snapshot is not None and not live and files.is_locked(folder),
        "outcome": session.outcome_of(folder),
        "damaged": session.damaged(folder),
        "by_hand": unit_production.started_by_hand(folder, snapshot) if snapshot is not None and live else None,
    }


def stop_production(request: dict[str, Any]) -> dict[str, Any]:
    """Stop what served before the session ``{session, token}``; ``{"left": pids}`` that would not die.

    ``{"error": …}`` with kind ``fenced`` when the session has lost the host, ``by-hand`` when somebody started again what was stopped.
    """
    folder = Path(request["session"])
    with supervise.permitted(folder, request["token"]) as snapshot:
        if snapshot is None:
            return supervise.FENCED
        if not restore.by_units(snapshot):
            return production.stop(snapshot)
        by_hand = unit_production.started_by_hand(folder, snapshot)
        return unit_production.stop(folder, snapshot) if by_hand is None else {"error": by_hand, "kind": "by-hand"}


def request_restore(request: dict[str, Any]) -> dict[str, Any]:
    """Have the session ``{session, token, keep}`` restored; goes on without the caller. Without a token whichever session is there.

    With ``keep`` its snapshot and leases stay, so that the tuner can look at the result and disarm; if it does not, the host restores once
    more and cleans up by itself. A ``snapshot`` in the request takes the place of one that was lost on the host.
    """
    folder = Path(request["session"])
    snapshot = session.snapshot_of(folder, request.get("token"))
    if snapshot is None and "snapshot" in request and session.snapshot_of(folder) is None:
        snapshot = request["snapshot"]
        session.recreate(folder, snapshot)
    if snapshot is None:
        return {}
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(OSError):
        files.fill(folder / "outcome.json", None)
        files.fill(folder / "request", {"token": snapshot["token"], "keep": bool(request.get("keep"))})
    session.fence(folder)
    reply: dict[str, Any] = _dead_man(snapshot).ask(folder, snapshot)
    return reply


def verify(request: dict[str, Any]) -> dict[str, Any]:
    """Compare the host with the snapshot of ``{session}``: ``{problems, notes, running}``. Changes nothing.

    A ``snapshot`` in the request is what to compare with once the session is over. ``running`` is what the session started and still runs.
    """
    folder = Path(request["session"])
    snapshot = session.snapshot_of(folder) or request.get("snapshot")
    if snapshot is None:
        return {"problems": [], "notes": ["the session is over"], "running": []}
    running = restore.candidates(folder, snapshot)
    problems = [f"{', '.join(running)} of the tuning session still run"] if running else []
    found, notes = unit_production.differences(snapshot) if restore.by_units(snapshot) else (production.differences(snapshot), [])
    return {"problems": problems + found, "notes": notes, "running": running}


def disarm(request: dict[str, Any]) -> dict[str, Any]:
    """End the session ``{session, token}`` after a restore that was looked at: leases, snapshot, timer and watchdog go."""
    folder, token = Path(request["session"]), request["token"]
    try:
        with files.locked(folder):
            snapshot = session.snapshot_of(folder, token)
            if snapshot is None:
                return {}
            if session.live(folder, token) or not (session.outcome_of(folder) or {}).get("ok"):
                return {"error": "it was not restored yet", "kind": "live"}
            restore.end(folder, snapshot)
    except FileNotFoundError:
        return {}
    if _dead_man(snapshot).gone(folder, token):
        return {}
    return {"error": "its timer or its restore service still runs", "kind": "timer"}


def _dead_man(snapshot: dict[str, Any]) -> ModuleType:
    return deadman if restore.by_units(snapshot) else watchdog


def _left_there(folder: Path, token: str) -> str | None:
    """What another session has left in the folder."""
    if session.damaged(folder):
        return f"what is left of another session in {folder} and {session.spare(folder)} is damaged"
    there = session.snapshot_of(folder)
    return None if there is None or there["token"] == token else "another session is still to be restored"


def _arm(folder: Path, snapshot: dict[str, Any]) -> dict[str, Any]:
    token = snapshot["token"]
    there = session.snapshot_of(folder)
    left = _left_there(folder, token)
    if left is not None:
        return {"error": left, "kind": "held"}
    if there is not None and not session.live(folder, token):
        return supervise.FENCED
    if there is None:
        if not lease.holds(snapshot["leases"], token):
            return supervise.FENCED
        otherwise = unit_production.not_as_told(snapshot) if restore.by_units(snapshot) else None
        if otherwise is not None:
            session.wipe(folder)
            return {"error": otherwise, "kind": "changed"}
        session.create(folder, snapshot)
    reply: dict[str, Any] = _dead_man(snapshot).ensure(folder, snapshot)
    if "error" in reply:
        if there is None:
            session.wipe(folder)
        return reply
    return {}
