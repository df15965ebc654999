"""Why a host could not be brought back to what it is now. Everything here is said before anything is stopped."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from . import systemctl
from .session import SYSTEM_STATE


class Problem(NamedTuple):
    """Why not, and what a person can do about it."""

    message: str
    hint: str


UNIT_FOLDER = Path("/etc/systemd/system")
ROOM = 4 << 20
"""Free bytes that a session needs on the host."""

_SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "fish"}
_UNSTEADY = {"activating", "deactivating", "reloading", "maintenance", "refreshing"}


def grant(request: dict[str, Any]) -> str:
    """The command that prints what an administrator runs; ``{host}`` is what the host is called in its document."""
    return f"autotuner service {request.get('host', 'HOST')} grant"


def of_machine(request: dict[str, Any]) -> list[Problem]:
    """What is missing on the machine itself; ``{host}`` is what it is called in its document."""
    if not Path("/run/systemd/system").is_dir():
        return [Problem("systemd does not run this machine", "write `service: {manager: process}`")]
    if os.geteuid() != 0:
        return [Problem("units can only be stopped and started by root", f"see `{grant(request)}`")]
    problems: list[Problem] = []
    if not _writable(UNIT_FOLDER):
        problems.append(
            Problem(
                f"{UNIT_FOLDER} cannot be written: the timer that brings production back cannot be installed", "make it writable for root"
            )
        )
    if shutil.which("systemd-run", path=systemctl.ENV["PATH"]) is None:
        problems.append(Problem("systemd-run is not installed", "install systemd's own tools on the host"))
    problems += [
        Problem(f"too little room on the disk of {folder}: {_free(folder)} bytes of {ROOM}", "free some space there")
        for folder in (SYSTEM_STATE, UNIT_FOLDER, Path("/run"))
        if _free(folder) < ROOM
    ]
    return problems


def of_unit(unit: dict[str, Any], triggers: list[str], changed: list[str]) -> tuple[list[Problem], list[str]]:
    """Problems and remarks of one unit. ``triggers`` start it by themselves; ``changed`` are its files that are newer than its start."""
    name, load, active = unit["name"], unit.get("LoadState", ""), unit.get("ActiveState", "")
    if load not in {"loaded", "masked"}:
        return [_unreadable(name, load)], []
    problems: list[Problem] = []
    if active in _UNSTEADY:
        problems.append(Problem(f"{name} is {active} right now", "wait until it has settled, or mend it"))
    if triggers:
        others = ", ".join(triggers)
        problems.append(Problem(f"{name} would be started again by {others}", f"add {others} to service.conflicts, or stop it yourself"))
    if not unit["active"]:
        return problems, [f"{name} is {active} and will be left so"]
    problems += _cannot_start_again(unit)
    if unit.get("NeedDaemonReload") == "yes":
        problems.append(Problem(f"{name} was changed on disk and not reloaded", f"systemctl daemon-reload; systemctl restart {name}"))
    elif changed:
        problems.append(
            Problem(f"{', '.join(changed)} changed after {name} was started", f"systemctl restart {name}, so that what runs is known")
        )
    if unit["role"] == "production" and unit.get("listens", True) and not unit.get("answered"):
        problems.append(Problem(f"{name} is active and does not answer on its ready path", "mend it, or stop it yourself for the night"))
    remark = same_command(unit["argv"], unit.get("ExecStart", ""))
    if remark is not None and not remark[0]:
        problems.append(Problem(f"{name}: {remark[1]}", f"systemctl restart {name}, so that what runs is what the unit says"))
    return problems, [f"{name}: {remark[1]}"] if remark is not None and remark[0] else []


def same_command(argv: list[str], text: str) -> tuple[bool, str] | None:
    """Compare what runs with ``ExecStart`` as far as it can be: ``None`` when it is the same, else (whether that is all right, why)."""
    command = systemctl.parse_command(text)
    if command is None or not argv:
        return None
    path, said = command
    running = " ".join(argv)
    # The first word may be a name of its own (`@`), and an exec along the way drops words in front: numactl, env, taskset.
    if said == running or said.endswith(f" {running}") or said.split(" ")[1:] == running.split(" ")[1:]:
        return None
    if "$" in said:
        return True, "its command line holds variables, and is not compared with what runs"
    if Path(path).name in _SHELLS or _is_script(path):
        return (
            None if running.endswith(f" {said}") else (True, "it is started through a shell, and what runs is not compared with the unit")
        )
    renamed = len(argv) == 1 and not argv[0].startswith("/")
    return renamed, "what runs has renamed itself" if renamed else f"what runs is not what the unit says: {running[:120]}"


def way_in(name: str) -> Problem:
    """The tuner's own connection, or the tuner itself, hangs on the unit."""
    return Problem(
        f"{name} is the way by which the tuner reaches this host: with it stopped, nobody could bring anything back",
        "take it out of `service:` of the host document",
    )


def unmanaged(port: int, words: str, pid: int, kind: str, name: str) -> Problem:
    """What listens on the port is no system unit."""
    if kind == "container":
        return Problem(
            f"port {port} is held by {words} (pid {pid}) in the container {name}", "containers cannot be brought back by this version"
        )
    if kind == "user":
        return Problem(f"port {port} is held by {name}, a unit of a user's own manager (pid {pid})", "make it a system unit")
    return Problem(
        f"port {port} is held by {words} (pid {pid}), which is not a unit",
        "write `service: {manager: process}`, or stop it yourself: it is never stopped from here",
    )


def foreign(port: int, holder: str) -> Problem:
    """A listener that is not of production's unit."""
    return Problem(
        f"port {port} is held by {holder}, which is not of production's unit",
        "stop it yourself, or correct endpoint.port or the name of production's unit",
    )


def elsewhere(production: str, why: str, ports: list[int]) -> Problem:
    """Production runs and is not what listens on the endpoint's port; ``ports`` are its own."""
    hint = "correct endpoint.port or the unit's name, or stop it yourself for the night"
    if len(ports) == 1:
        hint = f"write `port: {ports[0]}` under `endpoint:` of the host document, or correct the name of production's unit"
    return Problem(f"{production} {why}", hint)


def twice(name: str) -> Problem:
    """Production is listed as a conflict as well."""
    return Problem(
        f"{name} is production, and in service.conflicts as well",
        "take it out of service.conflicts; where that unit is not production, correct endpoint.port or production's unit",
    )


def _unreadable(name: str, load: str) -> Problem:
    if "@." in name:
        return Problem(f"{name} is a template without an instance", f"name the instance that serves: {name.replace('@.', '@INSTANCE.')}")
    if load == "not-found":
        return Problem(f"{name} does not exist on the host", "correct the unit's name: systemctl list-units --all")
    return Problem(f"{name} cannot be read by systemd ({load or 'it does not answer'})", f"systemctl status {name}")


def _cannot_start_again(unit: dict[str, Any]) -> list[Problem]:
    name, fragment = unit["name"], unit.get("FragmentPath", "")
    if unit.get("LoadState") == "masked" or unit.get("UnitFileState", "").startswith("masked"):
        return [Problem(f"{name} runs and is masked: it could not be started again", f"systemctl unmask {name}")]
    problems: list[Problem] = []
    if unit.get("Transient") == "yes" or unit.get("UnitFileState") in {"generated", "transient"} or fragment.startswith("/run/"):
        problems.append(
            Problem(f"{name} is {unit.get('UnitFileState') or 'transient'}, and would be gone once stopped", "write a unit file for it")
        )
    if unit.get("RefuseManualStart") == "yes" or unit.get("RefuseManualStop") == "yes":
        problems.append(Problem(f"{name} refuses to be started or stopped by hand", "remove RefuseManualStart= and RefuseManualStop="))
    if unit.get("StopWhenUnneeded") == "yes":
        problems.append(Problem(f"{name} is stopped as soon as nothing needs it", "remove StopWhenUnneeded="))
    if unit["role"] == "production" and unit.get("DynamicUser") == "yes":
        problems.append(Problem(f"{name} runs as a user that is gone once it is stopped (DynamicUser)", "give it a User= of the host"))
    if unit["role"] == "dependent" and not name.endswith(".service"):
        problems.append(Problem(f"{name} would be stopped along with production", "remove what binds it to production"))
    return problems


def _is_script(path: str) -> bool:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - two bytes
            return file.read(2) == b"#!"
    except OSError:
        return False


def _writable(folder: Path) -> bool:
    return not os.statvfs(folder).f_flag & os.ST_RDONLY and os.access(folder, os.W_OK)


def _free(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return int(shutil.disk_usage(folder).free)
