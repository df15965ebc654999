"""Whose a listener is: what answers on a port proves nothing about a unit before its process is shown to belong to that unit."""

from __future__ import annotations

from . import groups, processes, sockets


def within(port: int, group: str) -> bool:
    """Whether a process of this control group, or of one below it, listens on the port."""
    return bool(group) and any(groups.in_group(pid, group) for pid in sockets.owners(port))


def outside(port: int, group: str) -> list[int]:
    """Processes that listen on the port and are not of this control group."""
    return [pid for pid in sorted(sockets.owners(port)) if not group or not groups.in_group(pid, group)]


def elsewhere(group: str) -> list[int]:
    """Ports on which processes of this control group listen."""
    return sockets.ports_of(groups.members(group))


def who(pid: int) -> str:
    """A process by its unit, else by its command line."""
    kind, name = groups.manager_of(groups.control_group(pid))
    return f"{name if kind == 'service' else ' '.join(processes.arguments(pid)[:4])} (pid {pid})"


def why_silent(group: str, port: int, ready_path: str) -> str:
    """Why a unit that is active, of this control group, does not answer on a port: the end of a sentence about it."""
    said = f"does not answer on port {port}"
    if within(port, group):
        return f"{said}: it listens there, and {ready_path} does not say 200"
    ports = ", ".join(map(str, elsewhere(group)))
    return f"{said}: it listens on {f'port {ports}' if ports else 'no port'}, and {_held(port, group)}"


def _held(port: int, group: str) -> str:
    if not sockets.inodes(port):
        return f"nothing listens on port {port}"
    others = outside(port, group)
    return f"port {port} is held by {who(others[0]) if others else 'a process that cannot be seen'}"
