"""Processes of this machine, as ``/proc`` shows them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
SERVICE_MARK = "AUTOTUNER_SERVICE"
"""Environment variable that every process of a started server inherits: its name, and what makes this start unique."""
SESSION_MARK = "AUTOTUNER_SESSION"
"""Environment variable that names the tuning session which started the server."""

MARKS = (SERVICE_MARK, SESSION_MARK)

DEAD = "ZXx"
"""States of a process that has ended."""

_POLL_S = 0.05


def service_mark(name: str) -> str:
    """A value of ``SERVICE_MARK`` for a start of the server of this name."""
    return f"{name}/{os.urandom(8).hex()}"


def service_name(mark: str) -> str:
    """The name of the server that carries this mark; empty when it carries none."""
    return mark.partition("/")[0]


class Process(NamedTuple):
    """One process. ``pid`` and ``started`` (clock ticks since boot) together are never reused."""

    pid: int
    parent: int
    group: int
    session: int
    started: int
    state: str


def parse_stat(text: str) -> Process:
    """A process from its ``/proc/PID/stat``. The program's name may hold spaces and parentheses, so fields count from the last one."""
    pid = int(text[: text.index("(")])
    fields = text[text.rindex(")") + 2 :].split()
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), fields[0])


def read(pid: int) -> Process | None:
    """The process, or None when it is gone."""
    try:
        return parse_stat((PROC / str(pid) / "stat").read_text(errors="replace"))
    except (OSError, ValueError, IndexError):
        return None


def alive(pid: int, started: int) -> bool:
    """Whether this very process still runs; a zombie does not."""
    process = read(pid)
    return process is not None and process.started == started and process.state not in DEAD


def table() -> dict[int, Process]:
    """Every running process; zombies are left out."""
    found = (read(int(entry.name)) for entry in PROC.iterdir() if entry.name.isdigit())
    return {process.pid: process for process in found if process is not None and process.state not in DEAD}


def arguments(pid: int) -> list[str]:
    """Command line; empty for a kernel thread or when it cannot be read."""
    return [part.decode(errors="surrogateescape") for part in _parts(pid, "cmdline")]


def environment(pid: int) -> dict[str, str]:
    """Environment at its start; empty when it may not be read."""
    pairs = (part.decode(errors="surrogateescape").partition("=") for part in _parts(pid, "environ"))
    return {name: value for name, equals, value in pairs if equals}


def environment_digest(pid: int) -> str:
    """Digest of the environment at its start; of nothing when it may not be read."""
    return hashlib.sha256(b"\0".join(sorted(_parts(pid, "environ")))).hexdigest()


def marked(pid: int, name: str, value: str) -> bool:
    """Whether the process was started with this variable in its environment."""
    return f"{name}={value}".encode() in _parts(pid, "environ")


def descendants(roots: Iterable[int], processes: dict[int, Process]) -> set[int]:
    """``roots`` that run and everything below them."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting.extend(children.get(pid, ()))
    return {pid for pid in found if pid in processes}


def in_session(leader: int, started: int, processes: dict[int, Process]) -> set[int]:
    """Processes of the session that ``leader`` made. Nothing when its number was given to another process since."""
    now = processes.get(leader)
    if now is not None and now.started != started:
        return set()
    return {process.pid for process in processes.values() if process.session == leader and process.started >= started}


def ancestors(pid: int, processes: dict[int, Process]) -> list[Process]:
    """The process's parents, nearest first."""
    found: list[Process] = []
    current = processes.get(pid)
    while current is not None and current.parent in processes and len(found) < len(processes):
        current = processes[current.parent]
        found.append(current)
    return found


def protected(processes: dict[int, Process]) -> set[int]:
    """What must never be signalled: this process, everything above it, and init."""
    own = os.getpid()
    return {1, own} | {process.pid for process in ancestors(own, processes)}


def end(find: Callable[[], set[tuple[int, int]]], *, grace_s: float, kill_s: float = 15.0) -> set[tuple[int, int]]:
    """End everything that ``find`` names as (pid, started): SIGTERM, after ``grace_s`` SIGKILL. Returns what is still left."""
    signalled: set[tuple[int, int]] = set()
    deadline = time.monotonic() + grace_s
    left = find()
    while left and time.monotonic() < deadline:
        _signal(left - signalled, signal.SIGTERM)
        signalled |= left
        time.sleep(_POLL_S)
        left = find()
    deadline = time.monotonic() + kill_s
    while left and time.monotonic() < deadline:
        _signal(left, signal.SIGKILL)
        time.sleep(_POLL_S)
        left = find()
    return left


def _signal(targets: set[tuple[int, int]], number: int) -> None:
    for pid, started in targets:
        if alive(pid, started):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
                os.kill(pid, signal.SIGCONT)


def _parts(pid: int, name: str) -> list[bytes]:
    try:
        content = (PROC / str(pid) / name).read_bytes()
    except OSError:
        return []
    return content.rstrip(b"\0").split(b"\0") if content else []
