"""Who listens on a TCP port, from ``/proc``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_LISTEN = "0A"
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


def parse_listeners(text: str) -> dict[int, set[str]]:
    """Port → inodes of the sockets that listen on it, from the text of ``/proc/net/tcp`` or ``tcp6``."""
    found: dict[int, set[str]] = {}
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN:
            found.setdefault(int(fields[1].rsplit(":", 1)[1], 16), set()).add(fields[9])
    return found


def inodes(port: int) -> set[str]:
    """Inodes of the sockets that listen on ``port`` at any address of this machine."""
    return _listeners().get(port, set())


def ports_of(pids: Iterable[int]) -> list[int]:
    """Ports on which any of these processes listens, sorted."""
    held = {socket for pid in pids for socket in _sockets(Path("/proc") / str(pid))}
    return sorted(port for port, found in _listeners().items() if held & {f"socket:[{inode}]" for inode in found})


def owners(port: int) -> set[int]:
    """Processes that hold a listening socket of ``port``; those of other users are seen by root only."""
    wanted = {f"socket:[{inode}]" for inode in inodes(port)}
    if not wanted:
        return set()
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _sockets(entry) & wanted}


def _listeners() -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for table in TABLES:
        try:
            listening = parse_listeners(Path(table).read_text())
        except OSError:
            continue  # a kernel without IPv6 has one table only
        for port, sockets in listening.items():
            found.setdefault(port, set()).update(sockets)
    return found


def _sockets(process: Path) -> set[str]:
    try:
        return set(map(_target, (process / "fd").iterdir()))
    except OSError:
        return set()  # gone, or another user's


def _target(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)  # noqa: PTH115 - Path.readlink is newer than 3.8
    except OSError:
        return ""
