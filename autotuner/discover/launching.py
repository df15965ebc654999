"""Whether a server could be started at all: its program, its folder and its secrets, as the host itself sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotuner.engines.base import Engine
from autotuner.errors import AutotunerError
from autotuner.model.host import Host, ProductionUnit
from autotuner.model.recommendation import Check
from autotuner.services.hostside import HostSide

_HINTS = {
    "user": "correct User= and Group= of the unit, or add them on the host",
    "cwd": "correct `engine.cwd` of the host document, or make that folder",
    "program": "correct `engine.python` of the host document: the interpreter of the engine's environment on the host",
}


def launch_checks(host: Host, engine: Engine, host_side: HostSide, *, probed: bool) -> tuple[Check, ...]:
    """What would keep the first launch from starting, each with what to do. ``probed``: the engine's own probe has tried the program."""
    try:
        reply = host_side.call("launchable", launch_request(host, engine))
    except AutotunerError as error:
        return (Check(name="launch", status="fail", detail=error.message, hint=error.hint),)
    if reply.get("kind") == "not-allowed":
        return ()  # which units may be touched is a check of its own
    if "error" in reply:
        return (Check(name="launch", status="fail", detail=str(reply["error"]), hint="run the same command on the host and look"),)
    return read_reply(host, reply, probed=probed)


def launch_request(host: Host, engine: Engine) -> dict[str, Any]:
    """What every launch on ``host`` has in common."""
    production = host.service.production
    return {
        "manager": host.service.manager,
        "unit": production.unit if isinstance(production, ProductionUnit) else None,
        "argv": list(engine.command(host)[:1]),
        "env": dict(host.engine.env),
        "cwd": host.engine.cwd,
        "secrets": dict(host.secrets),
    }


def read_reply(host: Host, reply: Mapping[str, Any], *, probed: bool) -> tuple[Check, ...]:
    """The host's answer as checks."""
    troubles = [trouble for trouble in reply["problems"] if probed or trouble["what"] != "program"]
    failed = tuple(
        Check(name="launch", status="fail", detail=trouble["message"], hint=_hint(host, trouble["what"], reply.get("user")))
        for trouble in troubles
    )
    secrets = f" and {len(host.secrets)} secrets" if len(host.secrets) > 1 else " and the secret" if host.secrets else ""
    passed = Check(name="launch", status="pass", detail=f"program, folder{secrets} are there for a server")
    return failed or ((passed,) if probed else ())


def _hint(host: Host, what: str, user: object) -> str:
    if what in _HINTS:
        return _HINTS[what]
    kind, _, where = host.secrets[what].partition(":")
    correct = f"or correct `{what}` under `secrets:` of the host document"
    if kind == "file":
        reader = f"{user}" if host.service.manager == "systemd" else "this user"
        return f"put it there on the host, readable by {reader}, {correct}"
    if host.transport.type == "local":
        return f"export {where}=… before starting autotuner, {correct}"
    return (
        f"it must be set for a command that comes over SSH (`ssh HOST env` shows what is; sudo passes none on): keep the value in a file "
        f'of the host and write `{what}: "file:/PATH"`'
    )
