"""What listens on a port, and everything needed to start it again exactly as it was."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
from pathlib import Path
from typing import Any

from . import processes, sockets

_SHELLS = re.compile(
    r"^-?(sh|bash|dash|zsh|fish|ksh|csh|tcsh|tmux.*|screen|login|su|sudo|sshd.*|systemd.*|init|tini|dumb-init|docker-init|conmon|"
    r"containerd-shim.*|runsv|runsvdir|s6-.*|supervisord|cron|crond|make|timeout)$"
)
"""Parents that only started the server or wait for it: the launch command is what stands below them."""

_LIMITS = ("RLIMIT_NOFILE", "RLIMIT_MEMLOCK", "RLIMIT_STACK", "RLIMIT_CORE", "RLIMIT_NPROC")
_UNIT = re.compile(r"/([^/]+\.service)(?:/|$)", re.MULTILINE)


def inspect(request: dict[str, Any]) -> dict[str, Any]:
    """The launch command behind the listener on ``{port}``.

    ``{"listening": False}`` when nothing listens; ``owner: None`` when it does but its process cannot be seen. The launch command is the
    topmost ancestor of the listening process that shares its session and is neither a shell, a process supervisor, init, nor above
    this very tuner.
    """
    port = int(request["port"])
    if not sockets.inodes(port):
        return {"listening": False}
    holders = sockets.owners(port)
    running = processes.table()
    found = [running[pid] for pid in sorted(holders) if pid in running]
    if not found:
        return {"listening": True, "owner": None}
    # Children inherit the socket, so the first one to listen is the holder whose parent does not hold it.
    listener = next((process for process in found if process.parent not in holders), found[0])
    launch = launch_command(listener, running)
    owner = describe(launch)
    owner["listener"] = listener.pid
    owner["tree"] = sorted(processes.descendants([launch.pid], running))
    owner["marks"] = {name: processes.environment(listener.pid).get(name) for name in processes.MARKS}
    return {"listening": True, "owner": owner}


def launch_command(listener: processes.Process, running: dict[int, processes.Process]) -> processes.Process:
    """The process whose command line starts all of it."""
    untouchable = processes.protected(running)
    top = listener
    for parent in processes.ancestors(listener.pid, running):
        if parent.session != listener.session or parent.pid in untouchable or _SHELLS.match(_name(parent.pid)):
            break
        top = parent
    return top


def describe(process: processes.Process) -> dict[str, Any]:
    """Everything about a process that a restart must bring back; ``problems`` says what stands in the way of one."""
    pid = process.pid
    found: dict[str, Any] = {
        "pid": pid,
        "started": process.started,
        "argv": processes.arguments(pid),
        "env": processes.environment(pid),
        "cwd": _link(pid, "cwd"),
        "executable": _link(pid, "exe"),
        "stdout": _output(pid, 1),
        "stderr": _output(pid, 2),
        **_credentials(pid),
    }
    with contextlib.suppress(OSError):
        found["limits"] = {name: list(resource.prlimit(pid, getattr(resource, name))) for name in _LIMITS}
        found["cpus"] = sorted(os.sched_getaffinity(pid))
        found["nice"] = os.getpriority(os.PRIO_PROCESS, pid)
    found["problems"] = problems(found)
    return found


def problems(found: dict[str, Any]) -> list[str]:
    """Why this process could not be started again as it is; empty when it can."""
    reasons: list[str] = []
    own = os.geteuid()
    if own not in (0, found.get("uid")):
        reasons.append(f"it belongs to user id {found.get('uid')}, and this tuner runs as user id {own}")
    elif not found["argv"]:
        reasons.append("its command line cannot be read")
    elif not found["env"]:
        reasons.append("its environment cannot be read")
    else:
        cwd = found["cwd"] or ""
        program = shutil.which(found["argv"][0], path=found["env"].get("PATH", os.defpath))
        if program is None and not os.access(Path(cwd) / found["argv"][0], os.X_OK):
            reasons.append(f"its program {found['argv'][0]} is no longer there")
        if not Path(cwd).is_dir():
            reasons.append(f"its working directory {cwd} is no longer there")
    unit = _service_unit(found["pid"])
    if unit is not None and unit != _service_unit(os.getpid()):
        reasons.append(f"it is the systemd unit {unit}, which would start it again by itself")
    return reasons


def _service_unit(pid: int) -> str | None:
    try:
        found = _UNIT.findall((processes.PROC / str(pid) / "cgroup").read_text())
    except OSError:
        return None
    # user@1000.service holds a person's own processes: the manager does not restart those.
    return next((unit for unit in reversed(found) if not unit.startswith("user@")), None)


def _name(pid: int) -> str:
    try:
        return (processes.PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def _link(pid: int, name: str) -> str | None:
    try:
        return os.readlink(processes.PROC / str(pid) / name)  # noqa: PTH115 - Path.readlink is newer than 3.8
    except OSError:
        return None


def _output(pid: int, descriptor: int) -> str | None:
    """The regular file that the process writes to, if it is one."""
    target = _link(pid, f"fd/{descriptor}")
    return target if target is not None and Path(target).is_file() else None


def _credentials(pid: int) -> dict[str, Any]:
    try:
        lines = (processes.PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return {
        "uid": int(fields["Uid"].split()[1]),
        "gid": int(fields["Gid"].split()[1]),
        "groups": [int(group) for group in fields.get("Groups", "").split()],
        "umask": int(fields.get("Umask", "0022"), 8),
    }
