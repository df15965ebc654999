"""One tuner per resource of a host: lease files in a folder that every user of the machine shares."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from . import files, processes, session

_SHARED = 0o1777


def machine() -> str:
    """Where pids have their meaning: this boot of this machine, this pid namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - Path.readlink is newer than 3.8


def acquire(request: dict[str, Any]) -> dict[str, Any]:
    """Take the leases ``{folder, names, content}``: all of them, or none and ``{"held": content, "alive": …}``. Repeatable."""
    folder = _shared_folder(request["folder"])
    content = {**request["content"], "taken": session.clock()}
    taken: list[Path] = []
    for name in request["names"]:
        path = folder / f"{name}.json"
        if files.create_json(path, content):
            taken.append(path)
            continue
        held = files.read_json(path) or {}
        if held.get("token") == content["token"]:
            taken.append(path)
            continue
        for mine in taken:
            files.remove(mine)
        return {"held": held, "path": str(path), "alive": in_force(held)}
    return {"taken": [str(path) for path in taken]}


def holders(request: dict[str, Any]) -> dict[str, Any]:
    """The leases of ``{folder, names}`` that are held now, each ``{content, alive}``."""
    found = (files.read_json(Path(request["folder"]) / f"{name}.json") for name in request["names"])
    return {"held": [{"content": held, "alive": in_force(held)} for held in found if held is not None]}


def release(paths: list[str], token: str | None) -> None:
    """Remove those of the leases that hold ``token``; without one, those that cannot be read: leases are never written in parts."""
    for path in map(Path, paths):
        if not path.parent.is_dir():
            continue
        with files.locked(path.parent):
            held = files.read_json(path)
            if held.get("token") == token if held is not None else token is None:
                files.remove(path)


def holds(paths: list[str], token: str) -> bool:
    """Whether all of the leases are held by ``token``."""
    return all((files.read_json(Path(path)) or {}).get("token") == token for path in paths)


def in_force(held: dict[str, Any]) -> bool:
    """Whether the holder of a lease may still act.

    On this machine the holder's process decides. A holder elsewhere must have been heard of within the lease's time to live: by the
    heartbeat of its session, or when it took the lease. A session that this user may not look at counts as in force.
    """
    if held.get("machine") == machine():
        return processes.alive(int(held["pid"]), int(held["started"]))
    try:
        beaten = session.silent_s(Path(held["session"])) if _readable(Path(held["session"])) else 0.0
        silences = [seconds for seconds in (beaten, session.age_s(held.get("taken"))) if seconds is not None]
        return bool(silences) and min(silences) < float(held["ttl_s"])
    except (KeyError, TypeError, ValueError):
        return False


def _readable(folder: Path) -> bool:
    try:
        (folder / "heartbeat").read_bytes()
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def _shared_folder(name: str) -> Path:
    folder = Path(name)
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(_SHARED)
    return folder
