"""Whether a server could be started here: its program, its folder and its secrets, looked at by whoever it would run as."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from . import candidate, permit, supervise, units


def check(request: dict[str, Any]) -> dict[str, Any]:
    """What of ``{manager, unit, argv, env, cwd, secrets}`` would not start: ``{"user": …, "problems": [{"what", "message"}]}``.

    ``what`` is ``user``, ``cwd``, ``program``, or the name of a secret's variable. Under systemd whoever asks through ``sudo`` counts, else
    the user of the production ``unit``; without systemd this user. Values of secrets are looked at and let go.
    """
    if request["manager"] == "systemd":
        found = [units.read(units.complete(request["unit"]), "production")] if request.get("unit") else []
        try:
            identity = candidate.identity_of(found, permit.caller())
        except KeyError as error:
            return {"user": None, "problems": [_problem("user", f"the host does not know production's user or group: {error.args[0]}")]}
        user, env = identity["user"], request["env"]
    else:
        identity, user, env = None, str(os.geteuid()), {**os.environ, **request["env"]}
    with _as(identity):
        troubles = [
            _problem("cwd", candidate.cannot_enter(request["cwd"])),
            _problem("program", candidate.cannot_execute({**request, "env": env})),
        ]
        troubles += [_problem(name, _secret(name, where)) for name, where in sorted(request["secrets"].items())]
    return {"user": user, "problems": [trouble for trouble in troubles if trouble["message"]]}


def _secret(name: str, where: str) -> str | None:
    _, missing = supervise.resolved({name: where})
    return missing[0] if missing else None


@contextlib.contextmanager
def _as(identity: dict[str, Any] | None) -> Iterator[None]:
    if identity is None:
        yield
        return
    with candidate.acting_as(identity["uid"], identity["gid"], identity["groups"]):
        yield


def _problem(what: str, message: str | None) -> dict[str, Any]:
    return {"what": what, "message": message}
