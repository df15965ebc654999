"""What people ask for by hand: stop and start production's units, look at them, read their log."""

from __future__ import annotations

import json
import time
from typing import Any

from . import candidate, systemctl, units

_POLL_S = 0.2
_SETTLED = {"active", "inactive", "failed"}


def do(request: dict[str, Any]) -> dict[str, Any]:
    """``start`` or ``stop`` the ``{verb, units, timeout_s}`` one after another: ``{"units": [{name, ActiveState, SubState, Result}]}``."""
    patience_s = float(request.get("timeout_s", 90.0))
    found = []
    for name in map(units.complete, request["units"]):
        if request["verb"] == "stop":
            systemctl.end(name, patience_s)
        else:
            _start(name, patience_s)
        found.append({"name": name, **systemctl.state(name)})
    return {"units": found}


def log(request: dict[str, Any]) -> dict[str, Any]:
    """The last ``{lines}`` of the journal of ``{unit}``, or of the newest candidate on ``{port}``: ``{unit, text, exists}``.

    ``unit`` is ``None`` when no candidate has left a line. ``exists``: systemd knows such a unit now.
    """
    unit = _newest_candidate(int(request["port"])) if "port" in request else units.complete(request["unit"])
    if unit is None:
        return {"unit": None, "text": "", "exists": False}
    argv = ["journalctl", "--no-pager", "--quiet", "--output=short-iso", f"--lines={int(request.get('lines', 100))}"]
    text = systemctl.tool([*argv, f"--unit={unit}"]).out.encode(errors="replace").decode()
    return {"unit": unit, "text": text, "exists": systemctl.state(unit).get("LoadState") != "not-found"}


def show(request: dict[str, Any]) -> dict[str, Any]:
    """The ``{units}`` as ``units.read`` gives them, and every candidate on ``{port}``: ``{"units": [...]}``."""
    candidates = candidate.running(int(request["port"])) if "port" in request else []
    found = [units.read(units.complete(name), "") for name in request.get("units", [])]
    return {"units": [*found, *(units.read(name, "candidate") for name in candidates)]}


def _newest_candidate(port: int) -> str | None:
    """Whichever wrote last, or was written about by PID 1."""
    asked = ["journalctl", "--no-pager", "--quiet", "--output=json", "--output-fields=UNIT,_SYSTEMD_UNIT", "--lines=1"]
    said = systemctl.tool([*asked, f"--unit={candidate.unit_name(port, '*')}"]).out
    if not said.strip():
        return None
    entry = json.loads(said)
    return str(entry.get("UNIT") or entry["_SYSTEMD_UNIT"])


def _start(name: str, patience_s: float) -> None:
    if systemctl.state(name).get("ActiveState") == "failed":
        systemctl.systemctl("reset-failed", "--", name)
    systemctl.systemctl("start", "--no-block", "--", name)
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        if systemctl.state(name).get("ActiveState") in _SETTLED:
            return
