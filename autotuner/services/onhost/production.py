"""Stops what served before, and starts it again exactly as it was."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import asking, detach, files, inspection, processes, sockets

_POLL_S = 0.1


def stop(snapshot: dict[str, Any]) -> dict[str, Any]:
    """End production with everything below it; ``{"left": pids}`` that would not die. Idempotent."""
    production = snapshot["production"]
    return {"left": [] if production is None else end(production, float(snapshot["stop_timeout_s"]))}


def end(production: dict[str, Any], grace_s: float) -> list[int]:
    """End a process tree that is known by its top; returns the pids that would not die."""
    top, started = int(production["pid"]), int(production["started"])
    known: set[tuple[int, int]] = {(top, started)}

    def find() -> set[tuple[int, int]]:
        running = processes.table()
        roots = {pid for pid, since in known if pid in running and running[pid].started == since}
        roots |= processes.in_session(top, started, running)
        found = processes.descendants(roots, running) - processes.protected(running)
        now = {(pid, running[pid].started) for pid in found}
        known.update(now)
        return now

    return sorted(pid for pid, _ in processes.end(find, grace_s=grace_s))


def bring_back(folder: Path, snapshot: dict[str, Any], log: Callable[[str], None]) -> str | None:
    """Have production serve as before: start it unless it runs, wait until it answers. Returns what stands in the way, if anything."""
    production = snapshot["production"]
    kept = files.read_json(folder / "production.json") or production
    pid, started = int(kept["pid"]), int(kept["started"])
    if not processes.alive(pid, started):
        found = inspection.inspect({"port": snapshot["port"]})
        owner = found.get("owner")
        if found["listening"] and not (owner and owner["argv"] == production["argv"]):
            who = f"{' '.join(owner['argv'][:4])} (pid {owner['pid']})" if owner else "a process that cannot be seen"
            return f"port {snapshot['port']} is held by {who}"
        if owner:
            pid, started = int(owner["pid"]), int(owner["started"])
        else:
            answer = start(folder, production)
            if "error" in answer:
                return f"cannot start it: {answer['error']}"
            pid, started = int(answer["pid"]), int(answer["started"])
            log(f"started with pid {pid}")
    return _wait(snapshot, pid, started)


def differences(snapshot: dict[str, Any]) -> list[str]:
    """What is not as it was before; empty when production serves as in the snapshot."""
    production = snapshot["production"]
    if production is None:
        return []
    owner = inspection.inspect({"port": snapshot["port"]}).get("owner")
    if owner is None:
        return [f"nothing that can be seen listens on port {snapshot['port']}"]
    if owner["argv"] != production["argv"]:
        return [f"port {snapshot['port']} is held by another command line: {' '.join(owner['argv'][:4])} (pid {owner['pid']})"]
    return [] if answers(snapshot) else [f"it does not answer on {snapshot['ready_path']}"]


def start(folder: Path, production: dict[str, Any]) -> dict[str, Any]:
    """Start production detached, with its own command line, environment, folder, user, limits and output."""
    return detach.detached(lambda report: _become(folder, production, report))


def answers(snapshot: dict[str, Any]) -> bool:
    """Whether production serves: its ready path says 200, if it did so before; else its port is open."""
    if not snapshot["answered"]:
        return bool(sockets.inodes(int(snapshot["port"])))
    return asking.answers(snapshot)


def _wait(snapshot: dict[str, Any], pid: int, started: int) -> str | None:
    deadline = time.monotonic() + float(snapshot["ready_timeout_s"])
    while time.monotonic() < deadline:
        if not processes.alive(pid, started):
            return f"it ended while starting (pid {pid})"
        if answers(snapshot):
            return None
        time.sleep(_POLL_S)
    return f"pid {pid} runs but did not answer within {float(snapshot['ready_timeout_s']):g} s"


def _become(folder: Path, production: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    os.setsid()
    own = processes.read(os.getpid())
    record = {"pid": os.getpid(), "started": own.started if own else 0}
    with contextlib.suppress(OSError):  # it starts on a full disk, too
        files.write_json(folder / "production.json", record)
    fallback = str(folder / "production.log")
    for descriptor in (1, 2):
        os.dup2(_output(production.get("stdout" if descriptor == 1 else "stderr") or fallback, fallback), descriptor)
    _limit(production)
    environment = {name: value for name, value in production["env"].items() if name not in processes.MARKS}
    _assume(production)
    os.umask(int(production.get("umask", 0o022)))
    os.chdir(production["cwd"])
    detach.plain_signals()
    argv = [os.fsencode(part) for part in production["argv"]]
    report(record)
    with contextlib.suppress(OSError):
        os.execvpe(argv[0], argv, environment)  # noqa: S606 - an argument list, no shell


def _output(path: str, fallback: str) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        with contextlib.suppress(OSError):
            return os.open(fallback, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return os.open(os.devnull, os.O_WRONLY)


def _limit(production: dict[str, Any]) -> None:
    """Limits as before, as far as this user may set them."""
    for name, (soft, hard) in production.get("limits", {}).items():
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(getattr(resource, name), (soft, hard))
    with contextlib.suppress(OSError):
        if production.get("cpus"):
            os.sched_setaffinity(0, production["cpus"])
        os.setpriority(os.PRIO_PROCESS, 0, int(production.get("nice", 0)))


def _assume(production: dict[str, Any]) -> None:
    """The user that production ran as."""
    if os.geteuid() == 0 and production.get("uid", 0) != 0:
        os.setgroups(production.get("groups", []))
        os.setgid(production["gid"])
        os.setuid(production["uid"])
