"""The folder of a tuning session on its host, STATE/sessions/PORT.

    snapshot.json    what served, who tunes, how patient to be (0600: it may hold production's environment)
    live             there while the session may act; removing it is the first thing that a restore does
    heartbeat        when the tuner was last heard of, on the monotonic clock of this boot: the wall clock may jump
    request          what the tuner asks of the restore
    outcome.json     how the last restore ended
    guard.log        what was done, with times

The snapshot is kept twice: a file that somebody removed or that was damaged must not cost production. The other copy lies at
``spare(folder)``, for units outside of STATE and beside the program that restores from it.

The small files are slots: a disk that became full meanwhile does not keep them from being rewritten. What is left of a session that
ended is STATE/ended/PORT.json and PORT.log, of the last one only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Any

from . import files

SLOTS = ("heartbeat", "request", "outcome.json", "watchdog.json")
_FILES = (*SLOTS, "snapshot.json", "live", "start.lock", "production.json", "stopped", "guard.log")
SYSTEM_STATE = Path("/var/lib/autotuner")
_SYSTEM_SPARES = Path("/etc/autotuner/sessions")


def clock() -> dict[str, Any]:
    """Now, as far as it can be compared: ``{boot, monotonic}``, seconds."""
    return {"boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "monotonic": time.monotonic()}


def age_s(moment: dict[str, Any] | None) -> float | None:
    """Seconds since a ``clock()``; ``None`` when there is none, or the machine was booted since."""
    now = clock()
    if moment is None or moment.get("boot") != now["boot"]:
        return None
    return float(now["monotonic"]) - float(moment["monotonic"])


def create(folder: Path, snapshot: dict[str, Any]) -> None:
    """Write the session's files, durably; the snapshot last. Raises ``OSError``, and then nothing is left."""
    try:
        for name in SLOTS:
            files.make_slot(folder / name)
            files.fill(folder / name, None)
        for name in ("start.lock", "guard.log", "live"):
            (folder / name).touch(mode=0o600)
        beat(folder)
        _write_snapshot(folder, snapshot)
    except OSError:
        wipe(folder)
        raise


def recreate(folder: Path, snapshot: dict[str, Any]) -> None:
    """Write down anew what was lost of a session, so that it can be restored; it may not act any more. Raises ``OSError``."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in SLOTS:
        files.make_slot(folder / name)
    _write_snapshot(folder, snapshot)


def spare(folder: Path) -> Path:
    """Where the other copy of the snapshot lies."""
    spares = _SYSTEM_SPARES if SYSTEM_STATE in folder.parents else folder.parent.parent / "spare"
    return spares / f"{folder.name}.json"


def snapshot_of(folder: Path, token: str | None = None) -> dict[str, Any] | None:
    """The snapshot that is still to be restored; with a ``token`` only that session's."""
    for path in (folder / "snapshot.json", spare(folder)):
        found = files.read_json(path)
        if found is not None and "token" in found:
            return found if token in {None, found["token"]} else None
    return None


def damaged(folder: Path) -> bool:
    """Whether a session is still to be restored, and nothing says any more to what."""
    return snapshot_of(folder) is None and any(path.exists() for path in (folder / "snapshot.json", spare(folder)))


def live(folder: Path, token: str | None) -> bool:
    """Whether this session may still act on the host."""
    return (folder / "live").exists() and token is not None and snapshot_of(folder, token) is not None


def fence(folder: Path) -> None:
    """From here on nothing is done for the session any more but to restore. Works on a full disk."""
    with contextlib.suppress(FileNotFoundError):
        (folder / "live").unlink()


def beat(folder: Path) -> None:
    """The tuner was heard of."""
    files.fill(folder / "heartbeat", clock())


def silent_s(folder: Path) -> float | None:
    """For how long the tuner was not heard of; ``None`` when that was before the last boot."""
    return age_s(files.read_json(folder / "heartbeat"))


def requested(folder: Path, token: str) -> dict[str, Any] | None:
    """What the tuner asked of the restore, ``{token, keep}``, until it is done."""
    found = files.read_json(folder / "request")
    return found if found is not None and found.get("token") == token else None


def outcome_of(folder: Path) -> dict[str, Any] | None:
    """How the last restore of the session that is there ended; when none is there, of the last one."""
    there = snapshot_of(folder) is not None
    return files.read_json(folder / "outcome.json" if there else _ended(folder).with_suffix(".json"))


def note(folder: Path, text: str) -> None:
    """A line in the session's log, as far as there is room."""
    with contextlib.suppress(OSError), (folder / "guard.log").open("a") as file:
        file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} [{os.getpid()}] {text}\n")


def close(folder: Path) -> None:
    """The session is over: its files go, how it ended stays. Works on a full disk as far as unlinking does."""
    _remove_snapshot(folder)
    ended = _ended(folder)
    with contextlib.suppress(OSError):
        ended.parent.mkdir(mode=0o700, exist_ok=True)
        for name, suffix in (("outcome.json", ".json"), ("guard.log", ".log")):
            (folder / name).replace(ended.with_suffix(suffix))
    wipe(folder)


def wipe(folder: Path) -> None:
    """Remove the session's files. What production writes in the folder stays."""
    with contextlib.suppress(OSError):
        _remove_snapshot(folder)
    for name in _FILES:
        with contextlib.suppress(OSError):
            (folder / name).unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def _write_snapshot(folder: Path, snapshot: dict[str, Any]) -> None:
    """Twice, and read back."""
    spare(folder).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in (spare(folder), folder / "snapshot.json"):
        files.write_json(path, snapshot)
        if files.read_json(path) != snapshot:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _remove_snapshot(folder: Path) -> None:
    """The spare first: a copy of it that outlives the session would be restored once more."""
    files.remove(spare(folder))
    with contextlib.suppress(OSError):
        spare(folder).parent.rmdir()
        if SYSTEM_STATE in folder.parents:
            _SYSTEM_SPARES.parent.rmdir()
    if folder.is_dir():
        files.remove(folder / "snapshot.json")


def _ended(folder: Path) -> Path:
    return folder.parent.parent / "ended" / folder.name
