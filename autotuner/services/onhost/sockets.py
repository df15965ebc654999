"""Who listens on a TCP port, from ``/proc``."""

from __future__ import annotations

import os
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
    found: set[str] = set()
    for table in TABLES:
        try:
            found |= parse_listeners(Path(table).read_text()).get(port, set())
        except OSError:
            continue  # a kernel without IPv6 has one table only
    return found


def owners(port: int) -> set[int]:
    """Processes that hold a listening socket of ``port``; those of other users are seen by root only."""
    wanted = {f"socket:[{inode}]" for inode in inodes(port)}
    if not wanted:
        return set()
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _holds(entry, wanted)}


def _holds(process: Path, wanted: set[str]) -> bool:
    try:
        for descriptor in (process / "fd").iterdir():
            if _target(descriptor) in wanted:
                return True
    except OSError:
        return False  # gone, or another user's
    return False


def _target(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)  # noqa: PTH115 - Path.readlink is newer than 3.8
    except OSError:
        return ""
