"""The commands that the tuner calls on the host: a JSON request on standard input, a JSON reply on standard output."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from . import (
    asking,
    by_hand,
    candidate,
    files,
    guard,
    inspection,
    launchable,
    launcher,
    lease,
    permit,
    restore,
    revertable,
    supervise,
    units,
    version,
)


def _by_units(request: dict[str, Any]) -> bool:
    return request.get("manager") == "systemd"


def start(request: dict[str, Any]) -> dict[str, Any]:
    """Start a server: ``supervise.start`` or ``candidate.start``."""
    return candidate.start({**request, "caller": permit.caller()}) if _by_units(request) else supervise.start(request)


def stop(request: dict[str, Any]) -> dict[str, Any]:
    """Stop a server: ``supervise.stop`` or ``candidate.stop``."""
    return candidate.stop(request) if _by_units(request) else supervise.stop(request)


def owned(request: dict[str, Any]) -> dict[str, Any]:
    """Whether the listener on ``{port}`` belongs to the started server ``{manager, state, name}``."""
    found = inspection.inspect(request)
    owner = found.get("owner")
    if owner is None:
        return {"ours": False, **found}
    if _by_units(request):
        return {"ours": candidate.owns(int(request["port"]), request["name"], int(owner["listener"])), **found}
    record = files.read_json(Path(request["state"]) / "services" / request["name"] / "started.json")
    return {"ours": record is not None and owner["listener"] in {pid for pid, _ in supervise.members(record)}, **found}


def break_lease(request: dict[str, Any]) -> dict[str, Any]:
    """Remove a lease ``{path, token}`` whose holder is gone and left nothing to restore."""
    lease.release([request["path"]], request["token"])
    return {}


def look_at_units(request: dict[str, Any]) -> dict[str, Any]:
    """``units.describe``, with what the caller may not touch as problems."""
    reply = units.describe(request)
    user = permit.caller()
    others = sorted({unit["name"] for unit in reply["units"]} - permit.allowed(user)) if user else []
    hint = f"have an administrator run what `{revertable.grant(request)}` prints"
    reply["problems"] += [{"message": f"{user} may not touch {name}: it is not in {permit.ALLOW}", "hint": hint} for name in others]
    return reply


COMMANDS = {
    "version": version.version,
    "start": start,
    "stop": stop,
    "status": candidate.status,
    "log": candidate.log,
    "inspect": inspection.inspect,
    "owned": owned,
    "acquire": lease.acquire,
    "leases": lease.holders,
    "break-lease": break_lease,
    "units": look_at_units,
    "launchable": launchable.check,
    "session": guard.state,
    "arm": guard.arm,
    "renew": guard.renew,
    "stop-production": guard.stop_production,
    "request-restore": guard.request_restore,
    "restore": restore.restore,
    "verify": guard.verify,
    "disarm": guard.disarm,
    "http": asking.http,
    "unit-do": by_hand.do,
    "unit-log": by_hand.log,
    "unit-show": by_hand.show,
}


def main() -> int:
    """Run one command. ``restore FOLDER`` may be typed by a person; ``exec FILE`` is the first program of a candidate's unit."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    user = permit.caller()
    if name == "exec" and user is None and len(sys.argv) == 3:
        return launcher.become(sys.argv[2])
    if name not in COMMANDS:
        sys.stderr.write(f"unknown command {name!r}; one of: {', '.join(COMMANDS)}\n")
        return 2
    request = {"session": sys.argv[2], "reason": _reason()} if len(sys.argv) > 2 else json.load(sys.stdin)
    reply = _answer(user, name, request)
    sys.stdout.write(json.dumps(reply) + "\n")
    return 0 if reply.get("ok", True) and "error" not in reply else 1


def _reason() -> str:
    return "the tuner is done or silent, or the machine was booted" if "INVOCATION_ID" in os.environ else "asked to by a person"


def _answer(user: str | None, name: str, request: dict[str, Any]) -> dict[str, Any]:
    refused = permit.refusal(user, name, request) if user else None
    if refused is not None:
        return {"error": refused, "kind": "not-allowed"}
    try:
        reply = COMMANDS[name](request)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return {"error": f"{where}{os.strerror(error.errno or 0)}", "errno": error.errno}
    return permit.without_secrets(reply) if user else reply
