"""Production: what serves before anything is changed, and whether it can be brought back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotuner.discover.ports import Listener, Owner, listener_on, looks_like_engine, shown
from autotuner.engines.base import Engine
from autotuner.errors import Refused, UsageError
from autotuner.loadgen.control import ControlClient
from autotuner.model.host import Host, ProductionProcess
from autotuner.services.hostside import HostSide

_PROBE_TIMEOUT_S = 25.0
"""Engines let a health request wait for a generated token, 20 s at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductionState:
    """What serves now."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: str
    pid: int
    answered: bool
    """Whether it generated a token when asked; if not, bringing it back means that its port is open again."""
    details: dict[str, Any] = field(repr=False)
    """Everything that the host needs to start it again."""


def read_production(host: Host, engine: Engine, host_side: HostSide) -> ProductionState | None:
    """What serves on the endpoint's port; ``None`` when nothing does and so nothing is to be brought back.

    Raises ``Refused`` when something else holds the port, or when what serves could not be started again as it is: before anything
    is stopped.
    """
    declared = host.service.production
    if not isinstance(declared, str | ProductionProcess):
        raise UsageError(f"host {host.name}: production of this kind is not available in this version", hint="write `production: auto`")
    listener = listener_on(host.endpoint.port, host_side)
    if not listener.listening:
        return None
    owner = _engine_on_port(host, listener, declared)
    if declared == "none":
        raise Refused(
            f"host {host.name}: service.production is none, but {owner} serves on port {host.endpoint.port}",
            hint="write `production: auto` to have it stopped while tuning and brought back, or stop it yourself",
        )
    if owner.problems:
        raise Refused(
            f"host {host.name}: {owner} serves, and could not be brought back: {'; '.join(owner.problems)}",
            hint="mend that, or stop it yourself and write `production: none`",
        )
    details = dict(owner.details)
    if isinstance(declared, ProductionProcess):
        details.update(argv=list(declared.argv), env={**details["env"], **declared.env}, cwd=declared.cwd)
    with ControlClient(host.base_url, timeout_s=_PROBE_TIMEOUT_S) as client:
        answered = client.status(engine.endpoints.ready) == 200
    return ProductionState(
        argv=tuple(details["argv"]), env=details["env"], cwd=details["cwd"], pid=owner.pid, answered=answered, details=details
    )


def _engine_on_port(host: Host, listener: Listener, declared: str | ProductionProcess) -> Owner:
    owner = listener.owner
    if owner is None or not (looks_like_engine(owner.argv, host) or _is(declared, owner)):
        raise foreign(host, listener)
    if isinstance(declared, ProductionProcess) and not _is(declared, owner):
        raise Refused(
            f"host {host.name}: {owner} serves, but service.production names {shown(declared.argv)}",
            hint="write what really serves, or `production: auto`",
        )
    return owner


def _is(declared: str | ProductionProcess, owner: Owner) -> bool:
    """Whether the running process is the declared one; the program itself may be written relative or be a link."""
    return isinstance(declared, ProductionProcess) and owner.argv[1:] == declared.argv[1:] and bool(owner.argv)


def foreign(host: Host, listener: Listener) -> Refused:
    """The port is held by something that is not the engine."""
    return Refused(
        f"port {host.endpoint.port} of {host.name} is held by {listener}, which is not {host.engine.name} started from here",
        hint="choose another endpoint.port, or stop that process yourself: it is never stopped from here",
    )
