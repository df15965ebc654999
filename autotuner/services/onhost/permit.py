"""What a user without root may have done through ``sudo``: units that an administrator listed for them, and their own candidates."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import candidate, session, units
from .session import SYSTEM_STATE

ALLOW = Path("/etc/autotuner/allow.json")
"""``{"users": {USER: {"units": [...]}}}``, root's."""
LEASES = "/var/tmp/autotuner-lease"  # noqa: S108 - one folder for every user of the machine is the point

_SESSION = re.compile(rf"{re.escape(str(SYSTEM_STATE))}/sessions/[0-9]{{1,5}}")
_LEASE = re.compile(rf"{re.escape(LEASES)}/[A-Za-z0-9_-][A-Za-z0-9._-]*\.json")
_LEASE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_TOKEN = re.compile(r"[A-Za-z0-9-]{1,64}")
_LIMIT = re.compile(r"Limit[A-Z]+=[0-9a-z]+(:[0-9a-z]+)?")
_NUMBERS = ("port", "ttl_s", "stop_timeout_s", "ready_timeout_s", "timeout_s", "lines")


def caller() -> str | None:
    """Who asks through ``sudo``; ``None`` for root itself and for users who act for themselves."""
    return os.environ.get("SUDO_USER") if os.geteuid() == 0 and os.environ.get("SUDO_UID", "0") != "0" else None


def allowed(user: str) -> set[str]:
    """Units that this user may have stopped and started."""
    try:
        status = ALLOW.stat()
        content = json.loads(ALLOW.read_bytes())
        listed = content["users"][user]["units"]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return set(map(units.complete, listed)) if status.st_uid == 0 and not status.st_mode & 0o022 else set()


def refusal(user: str, command: str, request: dict[str, Any]) -> str | None:
    """Why this request of a user is refused, if it is."""
    if command == "exec":
        return "exec is for units only"
    wanted: dict[str, Callable[[Any], Any]] = {
        "session": _SESSION.fullmatch,
        "path": _LEASE.fullmatch,
        "token": lambda value: value is None or _TOKEN.fullmatch(value),
        "state": lambda value: value == str(SYSTEM_STATE),
        "folder": lambda value: value == LEASES,
        "manager": lambda value: value == "systemd",
        "name": candidate.NAME.fullmatch,
        "names": lambda value: all(map(_LEASE_NAME.fullmatch, value)),
        **{name: lambda value: isinstance(value, (int, float)) for name in _NUMBERS},
    }
    content = {**request, **request.get("snapshot", {})}
    for name, fits in wanted.items():
        if name in content and not fits(content[name]):
            return f"{command}: {name} {content[name]!r} is not allowed"
    touched = _snapshot_units(request.get("snapshot")) if "snapshot" in request else _named(command, request)
    if touched is None:
        return f"{command}: the snapshot is not one of units"
    if "session" in request:
        touched |= _snapshot_units(session.snapshot_of(Path(request["session"]))) or set()
    others = sorted(touched - allowed(user))
    return f"{user} may not touch {', '.join(others)}: it is not in {ALLOW}" if others else None


def without_secrets(reply: dict[str, Any]) -> dict[str, Any]:
    """A reply without the environments of other users' processes."""
    owner = reply.get("owner")
    if isinstance(owner, dict) and str(owner.get("uid")) != os.environ.get("SUDO_UID"):
        return {**reply, "owner": {**owner, "env": {}}}
    return reply


def _named(command: str, request: dict[str, Any]) -> set[str]:
    if command in {"units", "launchable"}:  # which only look; the former names them among its problems
        return set()
    named = [*request.get("units", []), *request.get("conflicts", [])]
    if request.get("unit") is not None:
        named.append(request["unit"])
    return set(map(units.complete, named))


def _snapshot_units(snapshot: dict[str, Any] | None) -> set[str] | None:
    """Units that a snapshot would have stopped and started; ``None`` for one that could do more than that."""
    if snapshot is None:
        return set()
    plain = snapshot.get("manager") == "systemd" and snapshot.get("production") is None and snapshot.get("state") == str(SYSTEM_STATE)
    limits = [f"{name}={value}" for unit in snapshot["units"] for name, value in unit.get("limits", {}).items()]
    if not plain or not all(map(_LIMIT.fullmatch, limits)) or not all(map(_LEASE.fullmatch, snapshot["leases"])):
        return None
    return {unit["name"] for unit in snapshot["units"]}
