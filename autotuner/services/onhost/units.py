"""What systemd knows about production and its conflicts, taken down before anything is stopped."""

from __future__ import annotations

import glob
import grp
import hashlib
import os
import re
import time
from pathlib import Path
from typing import Any

from . import asking, groups, listening, processes, revertable, sockets, systemctl

LIMITS = ("CPU", "FSIZE", "DATA", "STACK", "CORE", "RSS", "NOFILE", "AS", "NPROC", "MEMLOCK", "LOCKS", "SIGPENDING", "MSGQUEUE", "NICE")
DEPENDENTS = ("RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "PropagatesStopTo")
"""Properties that name the units which are stopped along with one."""
PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "FragmentPath",
    "DropInPaths",
    "SourcePath",
    "Transient",
    "NeedDaemonReload",
    "RefuseManualStart",
    "RefuseManualStop",
    "StopWhenUnneeded",
    "DynamicUser",
    "TriggeredBy",
    "UpheldBy",
    *DEPENDENTS,
    "MainPID",
    "InvocationID",
    "ControlGroup",
    "ExecMainStartTimestamp",
    "User",
    "Group",
    "SupplementaryGroups",
    "TimeoutStopUSec",
)
ROLES = ("production", "conflict", "dependent")
LIMIT_NAMES = tuple(f"Limit{name}" for name in LIMITS)
ACTED_ON = (
    "name",
    "role",
    "ActiveState",
    "InvocationID",
    "NeedDaemonReload",
    "UnitFileState",
    "User",
    "Group",
    "SupplementaryGroups",
    "TimeoutStopUSec",
    "active",
    "argv",
    "limits",
    "sha256",
)
"""What of a unit in a snapshot is acted on."""
FIELDS = (*PROPERTIES, *ACTED_ON, "ExecStart", "EnvironmentFiles", "env_sha256", "listens", "answered", "models")
"""Everything that is told of a unit; the last three of production only."""
_SSHD = re.compile(r"sshd?(@.*)?\.(service|socket)")


def describe(request: dict[str, Any]) -> dict[str, Any]:
    """Production and ``conflicts`` of ``{unit, conflicts, port, address, ready_path, models_path, host, ssh}``; changes nothing.

    ``{production, units, problems, notes}``. ``unit`` is a name, ``auto`` for whatever unit listens on the port, or ``None`` for none.
    ``ssh``: whoever asks came over SSH. Every problem says why the host could not be brought back to what it is now.
    """
    problems = list(revertable.of_machine(request))
    name = request["unit"]
    if name == "auto":
        name, unmanaged = _serving(int(request["port"]))
        problems += unmanaged
    elif name is None:
        problems += _foreign(int(request["port"]))
    found: list[dict[str, Any]] = []
    notes: list[str] = []
    if name is not None:
        production = read(complete(name), "production")
        production.update(_served(request, production))
        found.append(production)
        problems += _on_the_port(request, production)
    found += [read(complete(conflict), "conflict") for conflict in request["conflicts"]]
    found += _dependents(found)
    listed = {unit["name"] for unit in found}
    problems += [revertable.way_in(unit["name"]) for unit in found if _is_way_in(unit, over_ssh=bool(request.get("ssh")))]
    for unit in found:
        trouble, remarks = revertable.of_unit(unit, _triggers(unit, listed), _changed(unit))
        problems += trouble
        notes += remarks
    problems += [revertable.twice(unit["name"]) for unit in found[1:] if name is not None and unit["name"] == found[0]["name"]]
    return {
        "production": found[0]["name"] if name is not None else None,
        "units": found,
        "problems": [problem._asdict() for problem in problems],
        "notes": notes,
    }


def read(unit: str, role: str) -> dict[str, Any]:
    """One unit as it is now."""
    found: dict[str, Any] = dict(systemctl.show(unit, *PROPERTIES))
    pid = systemctl.number(found, "MainPID")
    limits = [f"Limit{name}{end}" for name in LIMITS for end in ("", "Soft")] if pid else []
    values = systemctl.show(unit, *limits) if limits else {}
    return {
        **found,
        "name": found.get("Id", unit),
        "role": role,
        "active": found.get("ActiveState") in {"active", "reloading"},
        "MainPID": pid,
        "limits": {f"Limit{name}": f"{values[f'Limit{name}Soft']}:{values[f'Limit{name}']}" for name in LIMITS if f"Limit{name}" in values},
        "ExecStart": systemctl.systemctl("show", "--property=ExecStart", "--value", "--", unit).out.strip(),
        "EnvironmentFiles": systemctl.systemctl("show", "--property=EnvironmentFiles", "--value", "--", unit).out.strip(),
        "sha256": text_digest(unit),
        "argv": processes.arguments(pid) if pid else [],
        "env_sha256": processes.environment_digest(pid) if pid else "",
    }


def complete(name: str) -> str:
    """A unit's name with its kind, as systemd completes it."""
    kinds = ("service", "socket", "timer", "path", "target", "mount", "slice", "scope", "swap", "automount", "device")
    return name if name.rpartition(".")[2] in kinds and "." in name else f"{name}.service"


def text_digest(unit: str) -> str:
    """Digest of the unit's files as they are on disk now."""
    return hashlib.sha256(systemctl.systemctl("cat", "--", unit).out.encode(errors="surrogateescape")).hexdigest()


def group_id(name: str) -> int:
    """Number of a group that is given by name or number. Raises ``KeyError``."""
    return int(name) if name.isdigit() else grp.getgrnam(name).gr_gid


def _serving(port: int) -> tuple[str | None, list[revertable.Problem]]:
    """The unit that listens on the port, or why what listens there is none that could be brought back."""
    if not sockets.inodes(port):
        return None, []
    for pid in sorted(sockets.owners(port)):
        kind, name = groups.manager_of(groups.control_group(pid))
        if kind == "service":
            return name, []
        words = " ".join(processes.arguments(pid)[:4])
        return None, [revertable.unmanaged(port, words, pid, kind, name)]
    return None, [revertable.Problem(f"port {port} is held by a process that cannot be seen", "free it, or choose another endpoint.port")]


def _served(request: dict[str, Any], production: dict[str, Any]) -> dict[str, Any]:
    """What answers on the port counts as production's answer only where production itself listens there."""
    listens = production["active"] and listening.within(int(request["port"]), str(production.get("ControlGroup", "")))
    if not listens:
        return {"listens": False, "answered": False, "models": None}
    return {"listens": True, "answered": asking.answers(request), "models": asking.models(request)}


def _on_the_port(request: dict[str, Any], production: dict[str, Any]) -> list[revertable.Problem]:
    """Why the port is not production's, and production's alone: a restore could not tell when production serves again."""
    port, group = int(request["port"]), str(production.get("ControlGroup", ""))
    if not production["active"]:
        return _foreign(port)
    if not production["listens"]:
        why = listening.why_silent(group, port, request["ready_path"])
        return [revertable.elsewhere(f"{production['name']} (pid {production['MainPID']})", why, listening.elsewhere(group))]
    return [revertable.foreign(port, listening.who(pid)) for pid in listening.outside(port, group)[:1]]


def _foreign(port: int) -> list[revertable.Problem]:
    """A listener on the port while production does not run."""
    return [revertable.foreign(port, listening.who(pid)) for pid in listening.outside(port, "")[:1]]


def _dependents(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Active units that systemd would stop along with these."""
    known = {unit["name"] for unit in found}
    waiting, added = list(found), []
    while waiting:
        unit = waiting.pop()
        for name in (name for kind in DEPENDENTS for name in systemctl.listed(unit, kind)):
            if name in known or not unit["active"]:
                continue
            known.add(name)
            dependent = read(name, "dependent")
            if dependent["active"] or dependent.get("ActiveState") == "activating":
                added.append(dependent)
                waiting.append(dependent)
    return added


def _is_way_in(unit: dict[str, Any], *, over_ssh: bool) -> bool:
    """Whether stopping the unit would cut off whoever asks, or keep them from coming back."""
    if over_ssh and _SSHD.fullmatch(unit["name"]):
        return True
    above = {process.pid for process in processes.ancestors(os.getpid(), processes.table())} - {1}
    group = str(unit.get("ControlGroup", ""))
    return unit["MainPID"] in above or (bool(group.strip("/")) and groups.in_group(os.getpid(), group))


def _triggers(unit: dict[str, Any], listed: set[str]) -> list[str]:
    """Active units that would start this one while it is to be stopped: sockets, timers, paths, and what upholds it."""
    others = [name for kind in ("TriggeredBy", "UpheldBy") for name in systemctl.listed(unit, kind) if name not in listed]
    return [name for name in others if systemctl.state(name).get("ActiveState") == "active"]


def _changed(unit: dict[str, Any]) -> list[str]:
    """Files of the unit that were changed after it was started: what it runs was started from something else."""
    started = systemctl.parse_moment(unit.get("ExecMainStartTimestamp", ""))
    if started is None or not unit["active"]:
        return []
    paths = [unit.get("FragmentPath", ""), *systemctl.listed(unit, "DropInPaths")]
    for line in unit["EnvironmentFiles"].splitlines():
        paths += glob.glob(line.rpartition(" (")[0])  # noqa: PTH207 - a pattern that starts at the root
    return [path for path in paths if path and _written(path) > started + 1.0]


def _written(path: str) -> float:
    try:
        return min(Path(path).stat().st_mtime, time.time())
    except OSError:
        return 0.0
