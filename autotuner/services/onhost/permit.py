"""What a user without root may have done through ``sudo``: units that an administrator listed for them, and their own candidates."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import candidate, files, session, units
from .session import SYSTEM_STATE

ALLOW = Path("/etc/autotuner/allow.json")
"""``{"users": {USER: {"units": [...]}}}``, root's."""
LEASES = "/var/tmp/autotuner-lease"  # noqa: S108 - one folder for every user of the machine is the point

_SESSION = re.compile(rf"{re.escape(str(SYSTEM_STATE))}/sessions/[0-9]{{1,5}}")
_LEASE = re.compile(rf"{re.escape(LEASES)}/[A-Za-z0-9_-][A-Za-z0-9._-]*\.json")
_LEASE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_TOKEN = re.compile(r"[A-Za-z0-9-]{1,64}")
_LIMIT = re.compile(r"[0-9a-z]+(:[0-9a-z]+)?")
_ADDRESS = re.compile(r"[0-9A-Za-z._:%-]{1,255}")
_PATH = re.compile(r"/[!-~]{0,255}")
_NUMBERS = ("port", "ttl_s", "stop_timeout_s", "ready_timeout_s", "timeout_s", "lines")
_MOST = 1e9
_NEEDED = {"name", "role", "active", "argv", "limits", "sha256"}
_LOOKS = ("units", "launchable", "session")
"""Commands that only look, and name no unit; the first tells the units that are not listed among its problems."""


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
        "session": lambda value: _text(value, _SESSION),
        "path": lambda value: _text(value, _LEASE),
        "token": lambda value: value is None or _text(value, _TOKEN),
        "state": lambda value: value == str(SYSTEM_STATE),
        "folder": lambda value: value == LEASES,
        "manager": lambda value: value == "systemd",
        "name": lambda value: _text(value, candidate.NAME),
        "names": lambda value: isinstance(value, list) and all(_text(name, _LEASE_NAME) for name in value),
        **dict.fromkeys(_NUMBERS, _number),
    }
    for name, fits in wanted.items():
        if name in request and not fits(request[name]):
            return f"{command}: {name} {request[name]!r} is not allowed"
    touched: set[str] = set() if command in _LOOKS else _named(request)
    if "snapshot" in request:
        wrong = flaw(request["snapshot"])
        if wrong is not None:
            return f"{command}: {wrong} of the snapshot is not as the tuner sends it"
        if request.get("session") != f"{SYSTEM_STATE}/sessions/{request['snapshot']['port']}":
            return f"{command}: the session is not the one of the snapshot's port"
        touched |= _units_of(request["snapshot"])
    folder = request.get("session") if command not in _LOOKS else None
    if command == "break-lease":
        folder = (files.read_json(Path(request["path"])) or {}).get("session")
    if _text(folder, _SESSION):
        stored = session.snapshot_of(Path(str(folder)))
        touched |= set() if stored is None else _units_of(stored)
    others = sorted(touched - allowed(user))
    return f"{user} may not touch {', '.join(others)}: it is not in {ALLOW}" if others else None


def flaw(snapshot: Any) -> str | None:
    """The first part of a snapshot that is not as the tuner sends it. Root acts on what it holds, so nothing else may be in it.

    Whether its units are as it says is asked of PID 1 when the session begins (``unit_production.not_as_told``).
    """
    if not isinstance(snapshot, dict):
        return "the form"
    fits: dict[str, Callable[[Any], Any]] = {
        "token": lambda value: _text(value, _TOKEN),
        "manager": lambda value: value == "systemd",
        "holder": lambda value: isinstance(value, dict),
        "leases": lambda value: isinstance(value, list) and all(_text(path, _LEASE) for path in value),
        "state": lambda value: value == str(SYSTEM_STATE),
        "port": lambda value: _number(value) and isinstance(value, int),
        "address": lambda value: _text(value, _ADDRESS),
        "ready_path": lambda value: _text(value, _PATH),
        "models_path": lambda value: value is None or _text(value, _PATH),
        "answered": lambda value: isinstance(value, bool),
        "ttl_s": _number,
        "stop_timeout_s": _number,
        "ready_timeout_s": _number,
        "units": lambda value: isinstance(value, list) and all(map(_is_unit, value)),
        "production": lambda value: [value] == ([unit for unit in snapshot["units"] if unit["role"] == "production"] or [None]),
    }
    unknown = sorted(map(str, set(snapshot) ^ set(fits)))
    return unknown[0] if unknown else next((name for name, fit in fits.items() if not fit(snapshot[name])), None)


def without_secrets(reply: dict[str, Any]) -> dict[str, Any]:
    """A reply without the environments of other users' processes."""
    owner = reply.get("owner")
    if isinstance(owner, dict) and str(owner.get("uid")) != os.environ.get("SUDO_UID"):
        return {**reply, "owner": {**owner, "env": {}}}
    return reply


def _named(request: dict[str, Any]) -> set[str]:
    named = [*request.get("units", []), *request.get("conflicts", [])]
    if request.get("unit") is not None:
        named.append(request["unit"])
    return set(map(units.complete, named))


def _units_of(snapshot: dict[str, Any]) -> set[str]:
    """Units that a snapshot would have stopped and started."""
    return {unit["name"] for unit in snapshot["units"]}


def _is_unit(unit: Any) -> bool:
    """Whether this is a unit as ``units.describe`` tells it."""
    if not isinstance(unit, dict) or not _NEEDED <= set(unit) <= set(units.FIELDS) or unit["role"] not in units.ROLES:
        return False
    limits = unit["limits"]
    if not isinstance(limits, dict) or not all(name in units.LIMIT_NAMES and _text(value, _LIMIT) for name, value in limits.items()):
        return False
    return isinstance(unit["name"], str) and isinstance(unit["active"], bool)


def _text(value: Any, form: re.Pattern[str]) -> bool:
    return isinstance(value, str) and form.fullmatch(value) is not None


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value < _MOST
