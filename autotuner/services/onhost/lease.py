"""One tuner per resource of a host: lease files in a folder that every user of the machine shares."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from . import files, processes

_SHARED = 0o1777


def machine() -> str:
    """Where pids have their meaning: this boot of this machine, this pid namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - Path.readlink is newer than 3.8


def acquire(request: dict[str, Any]) -> dict[str, Any]:
    """Take the leases ``{folder, names, content}``: all of them, or none and ``{"held": content, "alive": …}``."""
    folder = _shared_folder(request["folder"])
    taken: list[Path] = []
    for name in request["names"]:
        path = folder / f"{name}.json"
        if files.create_json(path, request["content"]):
            taken.append(path)
            continue
        for mine in taken:
            files.remove(mine)
        held = files.read_json(path) or {}
        return {"held": held, "path": str(path), "alive": in_force(held)}
    return {"taken": [str(path) for path in taken]}


def holders(request: dict[str, Any]) -> dict[str, Any]:
    """The leases of ``{folder, names}`` that are held now, each ``{content, alive}``."""
    found = (files.read_json(Path(request["folder"]) / f"{name}.json") for name in request["names"])
    return {"held": [{"content": held, "alive": in_force(held)} for held in found if held is not None]}


def release(paths: list[str], token: str) -> None:
    """Remove those of the leases that hold ``token``."""
    for path in map(Path, paths):
        if not path.parent.is_dir():
            continue
        with files.locked(path.parent):
            held = files.read_json(path)
            if held is not None and held.get("token") == token:
                files.remove(path)


def in_force(held: dict[str, Any]) -> bool:
    """Whether the holder of a lease may still act.

    On this machine the holder's process decides. Of a holder elsewhere only the heartbeat is known: it must be younger than the
    lease's time to live.
    """
    if held.get("machine") == machine():
        return processes.alive(int(held["pid"]), int(held["started"]))
    try:
        beaten = (Path(held["session"]) / "heartbeat").stat().st_mtime
    except (KeyError, OSError):
        return False
    return abs(time.time() - beaten) < float(held["ttl_s"])


def _shared_folder(name: str) -> Path:
    folder = Path(name)
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(_SHARED)
    return folder
