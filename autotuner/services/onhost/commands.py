"""The commands that the tuner calls on the host: a JSON request on standard input, a JSON reply on standard output."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from . import asking, files, guard, inspection, lease, supervise


def owned(request: dict[str, Any]) -> dict[str, Any]:
    """Whether the listener on ``{port}`` belongs to the started server ``{state, name}``."""
    found = inspection.inspect(request)
    record = files.read_json(Path(request["state"]) / "services" / request["name"] / "started.json")
    owner = found.get("owner")
    mine = owner is not None and record is not None and owner["listener"] in {pid for pid, _ in supervise.members(record)}
    return {"ours": mine, **found}


def break_lease(request: dict[str, Any]) -> dict[str, Any]:
    """Remove a lease ``{path, token}`` whose holder is gone and left nothing to restore."""
    lease.release([request["path"]], request["token"])
    return {}


COMMANDS = {
    "start": supervise.start,
    "stop": supervise.stop,
    "inspect": inspection.inspect,
    "owned": owned,
    "acquire": lease.acquire,
    "leases": lease.holders,
    "break-lease": break_lease,
    "session": guard.state,
    "arm": guard.arm,
    "renew": guard.renew,
    "stop-production": guard.stop_production,
    "request-restore": guard.request_restore,
    "restore": guard.restore,
    "verify": guard.verify,
    "disarm": guard.disarm,
    "http": asking.http,
}


def main() -> int:
    """Run one command. ``restore FOLDER`` may be typed by a person."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        sys.stderr.write(f"unknown command {name!r}; one of: {', '.join(COMMANDS)}\n")
        return 2
    request = {"session": sys.argv[2], "reason": "asked to by a person"} if len(sys.argv) > 2 else json.load(sys.stdin)
    try:
        reply = COMMANDS[name](request)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        reply = {"error": f"{where}{os.strerror(error.errno or 0)}", "errno": error.errno}
    sys.stdout.write(json.dumps(reply) + "\n")
    return 0 if reply.get("ok", True) and "error" not in reply else 1
