"""Control groups: which processes belong to a unit, by what PID 1 keeps them in."""

from __future__ import annotations

import re

from . import processes

_SERVICE = re.compile(r"/([^/]+\.service)(?=/|$)")
_CONTAINER = re.compile(r"/(docker-[0-9a-f]{12,}\.scope|libpod-[^/]*|docker/[0-9a-f]{12,}|crio-[^/]*|kubepods[^/]*|lxc[./][^/]*)(?=/|$)")


def control_group(pid: int) -> str:
    """Path of the process in systemd's hierarchy; empty when it is gone."""
    try:
        lines = (processes.PROC / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return ""
    paths = dict(line.split(":", 2)[1:] for line in lines if line.count(":") >= 2)
    return paths.get("name=systemd", paths.get("", ""))


def in_group(pid: int, group: str) -> bool:
    """Whether the process is in this control group or one below it; the path may be seen from outside a namespace."""
    return f"{group}/" in f"{control_group(pid)}/"


def members(group: str) -> list[int]:
    """Processes in a control group and below it."""
    return sorted(pid for pid in processes.table() if group and in_group(pid, group))


def manager_of(path: str) -> tuple[str, str]:
    """Who keeps the processes of a control group running: (``container`` | ``user`` | ``service`` | ``none``, its name)."""
    container = _CONTAINER.search(path)
    if container:
        return "container", container[1]
    services = [match[1] for match in _SERVICE.finditer(path)]
    if any(name.startswith("user@") for name in services):
        own = [name for name in services if not name.startswith("user@")]
        return ("user", own[-1]) if own else ("none", "")
    return ("service", services[-1]) if services else ("none", "")
