"""Production as units of systemd: stopped in order, and started again until it is as before."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import asking, groups, listening, systemctl, units

_POLL_S = 0.2
_PAUSE_S = 1.0
_SLACK_S = 30.0
_OTHERS_S = 20.0
"""What the other units have to start in once one was waited for in vain. The restore's own limit allows for it."""


def stop(folder: Path, snapshot: dict[str, Any]) -> dict[str, Any]:
    """Stop the conflicting units in their order, then production; ``{"left": pids}`` that would not die. Idempotent."""
    left: list[int] = []
    listed = [unit for unit in snapshot["units"] if unit["role"] == "conflict"]
    for unit in listed + [unit for unit in snapshot["units"] if unit["role"] == "production"]:
        own = systemctl.parse_span(unit.get("TimeoutStopUSec", "")) or 0.0
        grace_s = max(min(own, 600.0), float(snapshot["stop_timeout_s"])) + _SLACK_S
        group = systemctl.state(unit["name"]).get("ControlGroup", "")
        if not systemctl.end(unit["name"], grace_s):
            left += groups.members(group) or [0]
    if not left:
        with contextlib.suppress(OSError):
            (folder / "stopped").touch(mode=0o600)
    return {"left": left}


def bring_back(snapshot: dict[str, Any], say: Callable[[str], None], notes: list[str]) -> str | None:
    """Have every unit that was active be active again and production healthy; what stands in the way, if anything.

    What runs is left alone, what was inactive stays so, and a unit that somebody changed on disk meanwhile is started as it is now.
    One that does not come back keeps no other from it, but for those that depend on production.
    """
    deadline = time.monotonic() + float(snapshot["ready_timeout_s"])
    failed: dict[str, str] = {}
    for unit in _in_order(snapshot):
        if unit["role"] == "dependent" and failed.get("production"):
            continue
        trouble = _activate(unit, snapshot, deadline, say)
        if trouble is None:
            continue
        if not failed:
            deadline = max(deadline, time.monotonic() + _OTHERS_S)
        failed[unit["role"]] = "; ".join(filter(None, (failed.get(unit["role"]), trouble)))
    if failed:
        return "; ".join(failed.values())
    problems, found = differences(snapshot)
    notes += found
    return "; ".join(problems) or None


def differences(snapshot: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(what is not as before, what somebody changed meanwhile and is kept)."""
    problems: list[str] = []
    notes: list[str] = []
    for unit in _in_order(snapshot):
        now = units.read(unit["name"], unit["role"])
        edited = now["sha256"] != unit["sha256"]
        if edited:
            notes.append(f"{unit['name']} was changed on disk by somebody else; their version is kept")
        if now.get("UnitFileState") != unit.get("UnitFileState"):
            notes.append(f"{unit['name']} is {now.get('UnitFileState')} now, was {unit.get('UnitFileState')}; that is kept")
        if not now["active"]:
            problems.append(f"{unit['name']} is {now.get('ActiveState')}")
        elif unit["role"] == "production":
            wrong = _other_service(unit, now, snapshot)
            (notes if edited else problems).extend(wrong)
            if unit.get("answered") and not _serves(unit, snapshot):
                problems.append(f"{unit['name']} {_why_silent(unit, snapshot)}")
    return problems, notes


def not_as_told(snapshot: dict[str, Any]) -> str | None:
    """What PID 1 says otherwise than the snapshot; ``None`` when the units are as it says, and the port is production's.

    Somebody may have edited, stopped, started or restarted one since it was taken; and whoever took it is not believed.
    """
    changed: list[str] = []
    for unit in snapshot["units"]:
        now = units.read(unit["name"], unit["role"])
        if any(now.get(key) != unit.get(key) for key in units.ACTED_ON):
            changed.append(unit["name"])
    if changed:
        return f"{', '.join(changed)} changed while the host was looked at"
    for unit in snapshot["units"]:
        if unit["role"] == "production" and unit["active"] and not listening.within(int(snapshot["port"]), _group(unit)):
            return f"{unit['name']} {_why_silent(unit, snapshot)}"
    return None


def started_by_hand(folder: Path, snapshot: dict[str, Any]) -> str | None:
    """Which unit runs although this session has stopped it."""
    if not (folder / "stopped").exists():
        return None
    for unit in snapshot["units"]:
        if unit["active"] and unit["role"] != "dependent" and systemctl.state(unit["name"]).get("ActiveState") not in systemctl.ENDED:
            return f"{unit['name']} was started by hand"
    return None


def _in_order(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    """Units that were active, as they are started: production, conflicts from last to first, what depends on them.

    Sockets come first: systemd refuses to open one whose service runs already.
    """
    by_role = {role: [unit for unit in snapshot["units"] if unit["role"] == role and unit["active"]] for role in units.ROLES}
    backwards = by_role["conflict"][::-1]
    sockets = [unit for unit in backwards if unit["name"].endswith(".socket")]
    others = [unit for unit in backwards if unit not in sockets]
    return sockets + by_role["production"] + others + by_role["dependent"]


def _activate(unit: dict[str, Any], snapshot: dict[str, Any], deadline: float, say: Callable[[str], None]) -> str | None:
    name, tried = unit["name"], 0
    while True:
        now = systemctl.state(name)
        active = now.get("ActiveState", "")
        if active == "active" and (unit["role"] != "production" or not unit.get("answered") or _serves(unit, snapshot)):
            return None
        ended = active in systemctl.ENDED or now.get("SubState") == "auto-restart"
        if time.monotonic() > deadline and (tried or not ended):
            after = f"after {float(snapshot['ready_timeout_s']):g} s"
            if active == "active":
                return f"{name} is active, but {after} it {_why_silent(unit, snapshot)}"
            return f"{name} is {active or 'unknown'} ({now.get('Result', '')}) {after}"
        if now.get("LoadState") in {"masked", "not-found"}:
            return f"{name} is {now['LoadState']}"
        if ended:
            time.sleep(_PAUSE_S if tried else 0.0)
            tried += 1
            if active == "failed":
                systemctl.systemctl("reset-failed", "--", name)
            asked = systemctl.systemctl("start", "--no-block", "--", name)
            say(
                f"starting {name}"
                + (f" again ({tried}): it was {active}, {now.get('Result')}" if tried > 1 else "")
                + f" {asked.err}".rstrip()
            )
        time.sleep(_POLL_S)


def _serves(unit: dict[str, Any], snapshot: dict[str, Any]) -> bool:
    """Whether production answers, itself. One that somebody changed meanwhile may listen by other means than its own processes."""
    if not asking.answers(snapshot):
        return False
    return listening.within(int(snapshot["port"]), _group(unit)) or units.text_digest(unit["name"]) != unit["sha256"]


def _why_silent(unit: dict[str, Any], snapshot: dict[str, Any]) -> str:
    return listening.why_silent(_group(unit), int(snapshot["port"]), snapshot["ready_path"])


def _group(unit: dict[str, Any]) -> str:
    return systemctl.state(unit["name"]).get("ControlGroup", "")


def _other_service(unit: dict[str, Any], now: dict[str, Any], snapshot: dict[str, Any]) -> list[str]:
    wrong: list[str] = []
    if unit["argv"] and now["argv"] != unit["argv"]:
        wrong.append(f"{unit['name']} runs another command line: {' '.join(now['argv'])[:160]}")
    if unit.get("models") is not None and (served := asking.models(snapshot)) != unit["models"]:
        wrong.append(f"{unit['name']} lists the models {served}, and listed {unit['models']}")
    return wrong
