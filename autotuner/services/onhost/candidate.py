"""Candidates as transient units of systemd, beside which PID 1 itself lets no production unit run.

Everything that differs between candidates goes through a file on tmpfs: systemd expands ``$`` and ``%`` in command lines, and shows
them to everybody. The unit's command line is always ``exec FILE``.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import files, groups, journal, processes, supervise, systemctl, unit_production, units

RUN = Path("/run/autotuner")
LONGEST_S = 12 * 3600
"""What outlives this was forgotten."""
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,79}")
_PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "MainPID",
    "ExecMainPID",
    "ExecMainCode",
    "ExecMainStatus",
    "InvocationID",
    "Description",
    "MemoryMax",
)
_RAISED = {"LimitNOFILE": "1048576", "LimitMEMLOCK": "infinity"}
_START_S = 60.0
_EXITED = 1
"""ExecMainCode of a process that exited by itself (CLD_EXITED)."""


def unit_name(port: int, name: str) -> str:
    """The unit of the candidate of this name."""
    return f"autotuner-{port}-{name}.service"


def start(request: dict[str, Any]) -> dict[str, Any]:
    """Start ``{session, name, mark, argv, env, cwd, secrets}``; ``{pid, log, started, mark, unit}``, or ``{"error": …}``.

    ``mark`` tells this start from every other one: the same again is answered alike.
    """
    if not NAME.fullmatch(request["name"]):
        return {"error": f"{request['name']!r} is not a name for a unit", "kind": "name"}
    with supervise.permitted(Path(request["session"])) as snapshot:
        return supervise.FENCED if snapshot is None else _start(request, snapshot)


def status(request: dict[str, Any]) -> dict[str, Any]:
    """How ``{state, port, name}`` is: ``{running, pid, exit_code, out_of_memory, by_hand}``."""
    port, unit = int(request["port"]), unit_name(request["port"], request["name"])
    found = systemctl.show(unit, *_PROPERTIES)
    record = _record(port, request["name"])
    if not found:
        return {"error": "PID 1 does not answer", "kind": "manager"}
    ours = not (Path(request["state"]) / "sessions" / str(port) / "live").exists() or bool(record.get("stopped"))
    ended = verdict(found)
    if ended["running"]:
        return {**ended, "out_of_memory": False, "by_hand": False}
    journal.sync()
    invocation = found.get("InvocationID") or record.get("invocation", "")
    gone = ended.pop("gone")
    asked = gone or journal.noted(unit, journal.STOPPING, invocation)
    oom = ended["out_of_memory"] or journal.noted(unit, journal.OUT_OF_MEMORY, invocation)
    if not oom and not asked and ended["exit_code"] == -9:  # cgroup v1 does not say why
        limited = found.get("MemoryMax", "infinity") not in {"", "infinity"}
        oom = limited or journal.killed_by_kernel(unit, ended["pid"])
    return {**ended, "out_of_memory": oom, "by_hand": asked and not ours}


def verdict(found: dict[str, str]) -> dict[str, Any]:
    """``{running, pid, exit_code, out_of_memory, gone}`` of a candidate's properties; ``gone`` when nothing tells how it ended."""
    active, result = found.get("ActiveState", ""), found.get("Result", "")
    pid = systemctl.number(found, "ExecMainPID")
    known = found.get("LoadState") == "loaded"
    if known and active not in systemctl.ENDED and found.get("SubState") != "exited":
        return {"running": True, "pid": systemctl.number(found, "MainPID") or pid, "exit_code": None, "gone": False}
    if not known or active == "inactive":
        return {"running": False, "pid": pid, "exit_code": None, "out_of_memory": False, "gone": True}
    number = systemctl.number(found, "ExecMainStatus")
    code = number if systemctl.number(found, "ExecMainCode") == _EXITED else -number
    return {"running": False, "pid": pid, "exit_code": code, "out_of_memory": result == "oom-kill", "gone": False}


def log(request: dict[str, Any]) -> dict[str, Any]:
    """What ``{port, name}`` wrote after ``{cursor}``: ``{text, cursor}``, 1 MiB at most. Bytes that are not UTF-8 are surrogates."""
    unit = unit_name(request["port"], request["name"])
    # Not by the run's INVOCATION_ID: lines of a process that ended before the journal looked at it do not have it.
    begins = _record(int(request["port"]), request["name"]).get("cursor", "")
    piece = journal.read([f"_SYSTEMD_UNIT={unit}", "_TRANSPORT=stdout"], request.get("cursor") or begins)
    return {"text": piece.text.decode(errors="surrogateescape"), "cursor": piece.cursor}


def stop(request: dict[str, Any]) -> dict[str, Any]:
    """End ``{state, port, name, timeout_s}`` with everything in its control group. Idempotent.

    ``{left, by_hand}``: pids that would not die, and whether somebody else had stopped it before.
    """
    port, unit = int(request["port"]), unit_name(request["port"], request["name"])
    by_hand = bool(status(request).get("by_hand"))
    with contextlib.suppress(OSError):
        files.write_json(_record_path(port, request["name"]), {**_record(port, request["name"]), "stopped": True})
    return {"left": end(unit, float(request["timeout_s"])), "by_hand": by_hand}


def end(unit: str, grace_s: float) -> list[int]:
    """End a candidate's unit and have systemd forget it; the pids that would not die."""
    ended = systemctl.end(unit, grace_s)
    journal.sync()
    left = [] if ended else groups.members(systemctl.state(unit).get("ControlGroup", ""))
    if systemctl.state(unit).get("ActiveState") == "failed":
        systemctl.systemctl("reset-failed", "--", unit)
    return left if left or ended else [0]


def owns(port: int, name: str, pid: int) -> bool:
    """Whether a process belongs to the candidate."""
    group = systemctl.state(unit_name(port, name)).get("ControlGroup", "")
    return bool(group) and groups.in_group(pid, group)


def running(port: int) -> list[str]:
    """Units of candidates on this port, in whatever state."""
    return systemctl.units_like(f"autotuner-{port}-*.service")


def wipe(port: int) -> None:
    """Remove what was needed to start candidates on this port."""
    shutil.rmtree(RUN / str(port), ignore_errors=True)
    with contextlib.suppress(OSError):
        RUN.rmdir()


@contextlib.contextmanager
def acting_as(uid: int, gid: int, groups: list[int]) -> Iterator[None]:
    """Look at files as another user sees them."""
    before = os.getgroups()
    os.setgroups(groups)
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


def _start(request: dict[str, Any], snapshot: dict[str, Any]) -> dict[str, Any]:
    port, name = int(snapshot["port"]), request["name"]
    unit = unit_name(port, name)
    found = systemctl.show(unit, *_PROPERTIES)
    if not found:
        return {"error": "PID 1 does not answer", "kind": "manager"}
    if found.get("Description") == request["mark"] and found.get("LoadState") == "loaded":
        return _answer(port, name, request["mark"])
    if found.get("ActiveState") not in systemctl.ENDED and found.get("SubState") != "exited":
        return {"error": f"{unit} runs already with pid {found.get('MainPID')}"}
    by_hand = unit_production.started_by_hand(Path(request["session"]), snapshot)
    if by_hand is not None:  # a candidate beside it would have systemd stop it
        return {"error": by_hand, "kind": "by-hand"}
    end(unit, 10.0)
    return _run(unit, request, snapshot)


def _run(unit: str, request: dict[str, Any], snapshot: dict[str, Any]) -> dict[str, Any]:
    try:
        identity = identity_of(snapshot["units"], request.get("caller"))
    except KeyError as error:
        return {"error": f"the host does not know production's user or group: {error.args[0]}", "kind": "manager"}
    with acting_as(identity["uid"], identity["gid"], identity["groups"]):
        trouble = cannot_run(request)
        secrets, missing = supervise.resolved(request.get("secrets", {}))
    if missing:
        return {"error": "; ".join(missing), "kind": "secret"}
    if trouble:
        return {"error": trouble, "kind": "exec"}
    task = {
        "argv": request["argv"],
        "env": {**request["env"], **secrets, processes.SERVICE_MARK: request["mark"], processes.SESSION_MARK: request["session"]},
        "cwd": request["cwd"],
    }
    port, name = int(snapshot["port"]), request["name"]
    folder = RUN / str(port)
    program, file = folder / "program.pyz", folder / f"{name}.json"
    for made in (RUN, folder):
        made.mkdir(mode=0o755, exist_ok=True)
        made.chmod(0o755)
    if not program.exists():
        files.write_bytes(program, Path(sys.argv[0]).read_bytes(), 0o644)
    files.remove(file)
    journal.sync()
    files.write_json(_record_path(port, name), {"mark": request["mark"], "cursor": journal.end()})
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as target:
        os.fchown(target.fileno(), identity["uid"], identity["gid"])
        json.dump(task, target)
    asked = systemctl.tool(
        [
            "systemd-run",
            "--quiet",
            "--no-ask-password",
            f"--unit={unit}",
            f"--description={request['mark']}",
            *(f"--property={line}" for line in _directives(snapshot, identity)),
            "--",
            *(sys.executable, "-E", "-s", "-S", str(program), "exec", str(file)),
        ],
        _START_S,
    )
    if asked.code != 0:
        with contextlib.suppress(FileNotFoundError):
            file.unlink()
        return {"error": f"systemd-run: {asked.err}", "kind": "manager"}
    return _answer(port, name, request["mark"])


def _answer(port: int, name: str, mark: str) -> dict[str, Any]:
    unit = unit_name(port, name)
    found = systemctl.show(unit, "ExecMainPID", "InvocationID")
    pid = systemctl.number(found, "ExecMainPID")
    process = processes.read(pid)
    with contextlib.suppress(OSError):
        record = {**_record(port, name), "mark": mark, "invocation": found.get("InvocationID", "")}
        files.write_json(_record_path(port, name), record)
    return {"pid": pid, "started": process.started if process else 0, "mark": mark, "unit": unit, "log": f"journalctl --unit={unit}"}


def _directives(snapshot: dict[str, Any], identity: dict[str, Any]) -> list[str]:
    others = [unit["name"] for unit in snapshot["units"] if unit["role"] != "dependent"]
    limits = next((unit["limits"] for unit in snapshot["units"] if unit["role"] == "production"), {}) or _RAISED
    lines = [f"{kind}={other}" for other in others for kind in ("Conflicts", "After")]
    lines += [f"{name}={value}" for name, value in sorted(limits.items())]
    lines += [f"User={identity['user']}", f"Group={identity['gid']}"]
    if identity["more_groups"]:
        lines.append(f"SupplementaryGroups={' '.join(identity['more_groups'])}")
    return [
        *lines,
        "Type=exec",
        "KillMode=control-group",
        f"TimeoutStopSec={float(snapshot['stop_timeout_s']):g}s",
        f"RuntimeMaxSec={LONGEST_S}s",
        "RemainAfterExit=yes",
        "OOMPolicy=stop",
        "LogRateLimitIntervalSec=0",
    ]


def identity_of(found: list[dict[str, Any]], caller: str | None) -> dict[str, Any]:
    """Who runs the candidate: the caller when that is not root, else production's user. Raises ``KeyError`` for one who is not there."""
    production: dict[str, Any] = next((unit for unit in found if unit["role"] == "production"), {})
    named = caller or production.get("User") or "root"
    account = pwd.getpwuid(int(named)) if named.isdigit() else pwd.getpwnam(named)
    gid, more = account.pw_gid, []
    if caller is None and production.get("User", "") == named:
        gid = units.group_id(production.get("Group", "")) if production.get("Group") else gid
        more = systemctl.listed(production, "SupplementaryGroups")
    groups = os.getgrouplist(account.pw_name, gid) + [units.group_id(group) for group in more]
    return {"user": account.pw_name, "uid": account.pw_uid, "gid": gid, "groups": groups, "more_groups": more}


def cannot_run(request: dict[str, Any]) -> str | None:
    """Why whoever looks now could not run ``{argv, env, cwd}``."""
    return cannot_enter(request["cwd"]) or cannot_execute(request)


def cannot_enter(folder: str) -> str | None:
    """Why whoever looks now could not work in the folder."""
    try:
        os.stat(os.path.join(folder, "."))  # noqa: PTH116, PTH118 - a path would lose the dot, and with it the question
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return None


def cannot_execute(request: dict[str, Any]) -> str | None:
    """Why whoever looks now could not execute the program of ``{argv, env, cwd}``."""
    cwd, program = Path(request["cwd"]), request["argv"][0]
    path = request["env"].get("PATH", systemctl.ENV["PATH"])
    if "/" in program:
        place = cwd / program
        try:
            folder = stat.S_ISDIR(place.stat().st_mode)
        except OSError as error:
            return f"{program}: {error.strerror}"
        return None if os.access(place, os.X_OK, effective_ids=True) and not folder else f"{program}: Permission denied"
    return None if shutil.which(program, path=path) else f"{program}: No such file or directory"


def _record_path(port: int, name: str) -> Path:
    return RUN / str(port) / f"{name}.record"


def _record(port: int, name: str) -> dict[str, Any]:
    return files.read_json(_record_path(port, name)) or {}
