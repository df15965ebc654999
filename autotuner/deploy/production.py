"""Production: what serves before anything is changed, and whether it can be brought back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotuner.deploy.reach import Route
from autotuner.discover.ports import Listener, Owner, listener_on, looks_like_engine, shown
from autotuner.discover.units import Reason, Unit, units_of
from autotuner.engines.base import Engine
from autotuner.errors import Refused, TransportError, UsageError
from autotuner.loadgen.control import ControlClient
from autotuner.model.host import Host, ProductionProcess, ProductionUnit
from autotuner.services.hostside import HostSide

PROBE_TIMEOUT_S = 25.0
"""Engines let a health request wait for a generated token, 20 s at most."""
_OK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductionState:
    """What serves now."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    """Of a plain process; a unit keeps its own."""
    cwd: str
    pid: int
    answered: bool
    """Whether it generated a token when asked; if not, bringing it back means that its port is open again."""
    details: dict[str, Any] = field(repr=False)
    """Everything that the host needs to start it again."""
    models: tuple[str, ...] | None = None
    """Names of the models that it serves, as far as it says."""
    unit: str | None = None
    """The unit that it is, under systemd."""

    def __str__(self) -> str:
        return f"{self.unit or shown(self.argv)} (pid {self.pid})"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBefore:
    """What a host was like before anything was changed."""

    production: ProductionState | None
    """What serves; ``None`` when nothing does."""
    recorded: dict[str, Any] | None = field(repr=False)
    """Production as the host records it: also a unit that is inactive, and stays so."""
    units: tuple[Unit, ...] = ()
    """Under systemd: production, the units in conflict with it, and those that depend on it."""
    notes: tuple[str, ...] = ()

    @property
    def must_stop(self) -> bool:
        """Whether anything has to be stopped before the first launch."""
        return self.production is not None or any(unit.active for unit in self.units)


def read_host(host: Host, engine: Engine, host_side: HostSide, route: Route) -> HostBefore:
    """What the host is like now.

    Raises ``Refused`` with every reason at once when something else holds the port, or when what serves could not be started again as it
    is: before anything is stopped.
    """
    if host.service.manager == "systemd":
        return _read_units(host, host_side, route)
    state = read_production(host, engine, host_side, route)
    return HostBefore(production=state, recorded=state.details if state else None)


def read_production(host: Host, engine: Engine, host_side: HostSide, route: Route) -> ProductionState | None:
    """The plain process that serves on the endpoint's port; ``None`` when nothing does and so nothing is to be brought back."""
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
    route.settle()
    with route.control(timeout_s=PROBE_TIMEOUT_S) as client:
        answered = client.status(engine.endpoints.ready) == _OK
        models = served_models(client, engine) if answered else None
    details["models"] = list(models) if models is not None else None
    return ProductionState(
        argv=tuple(details["argv"]),
        env=details["env"],
        cwd=details["cwd"],
        pid=owner.pid,
        answered=answered,
        details=details,
        models=models,
    )


def served_models(client: ControlClient, engine: Engine) -> tuple[str, ...] | None:
    """Names of the models that a server lists, sorted; ``None`` when it lists none in the usual form."""
    try:
        answer = client.get_json(engine.endpoints.models)
    except TransportError:
        return None
    listed = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(listed, list):
        return None
    return tuple(sorted(str(item["id"]) for item in listed if isinstance(item, dict) and "id" in item))


def _read_units(host: Host, host_side: HostSide, route: Route) -> HostBefore:
    declared = host.service.production
    if not isinstance(declared, str | ProductionUnit):
        raise UsageError(f"host {host.name}: production of this kind needs another manager", hint="write `production: auto`")
    found, listener = units_of(host, host_side)
    if found.reasons:
        raise refused(host, found.reasons)
    unit = found.production
    if unit is None or not unit.active:
        return HostBefore(production=None, recorded=dict(unit.details) if unit else None, units=found.all, notes=found.notes)
    answered = bool(unit.details.get("answered"))
    if listener.listening:
        route.settle()
    models = unit.details.get("models")
    argv = listener.owner.argv if listener.owner is not None else unit.argv
    state = ProductionState(
        argv=argv,
        env={},
        cwd=str(listener.owner.details.get("cwd") or "/") if listener.owner is not None else "/",
        pid=unit.pid,
        answered=answered,
        details=dict(unit.details),
        models=tuple(sorted(map(str, models))) if models is not None else None,
        unit=unit.name,
    )
    return HostBefore(production=state, recorded=dict(unit.details), units=found.all, notes=found.notes)


def refused(host: Host, reasons: tuple[Reason, ...]) -> Refused:
    """Every reason with its hint."""
    first = reasons[0]
    if len(reasons) == 1:
        return Refused(f"{host.name} could not be brought back as it is: {first.message}", hint=first.hint)
    listed = "\n".join(f"  - {reason.message}" + (f" (hint: {reason.hint})" if reason.hint else "") for reason in reasons)
    return Refused(
        f"{host.name} could not be brought back as it is, for {len(reasons)} reasons:\n{listed}",
        hint=f"`autotuner doctor {host.name}` checks again; nothing was stopped",
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
