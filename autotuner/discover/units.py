"""Units of a host under systemd: what serves, what else is stopped for tuning, and what stands in the way of bringing it back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotuner.discover.ports import Listener, listener_on, looks_like_engine
from autotuner.engines.base import Endpoints
from autotuner.engines.registry import engine_for
from autotuner.errors import AutotunerError
from autotuner.model.host import Host, ProductionUnit
from autotuner.model.recommendation import Check
from autotuner.services.hostside import HostSide

_TIMEOUT_S = 90.0
"""Engines let a health request wait for a generated token, and it is asked on the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a host must not be touched, and what to do about it."""

    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One unit as it is now; ``details`` is everything that the host needs to bring it back."""

    name: str
    role: str
    """``production``, ``conflict``, or ``dependent`` (started and stopped with production)."""
    active: bool
    pid: int
    argv: tuple[str, ...]
    details: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUnits:
    """The host's answer to ``units``."""

    production: Unit | None
    others: tuple[Unit, ...]
    reasons: tuple[Reason, ...]
    """Why the host cannot be reverted; empty when it can."""
    notes: tuple[str, ...]

    @property
    def all(self) -> tuple[Unit, ...]:
        """Production first."""
        return (*((self.production,) if self.production else ()), *self.others)


def read_units(reply: Mapping[str, Any]) -> HostUnits:
    """The host's answer to ``units``, of which nothing is taken for granted but its form."""
    found = [_unit(raw) for raw in reply.get("units", ())]
    name = reply.get("production")
    return HostUnits(
        production=next((unit for unit in found if unit.role == "production" and unit.name == name), None),
        others=tuple(unit for unit in found if unit.role != "production"),
        reasons=tuple(Reason(message=raw["message"], hint=raw.get("hint")) for raw in reply.get("problems", ())),
        notes=tuple(reply.get("notes", ())),
    )


def units_request(host: Host, endpoints: Endpoints) -> dict[str, Any]:
    """What the host is asked: which unit is production, as far as the document says, and how its health is seen."""
    declared = host.service.production
    return {
        "unit": declared.unit if isinstance(declared, ProductionUnit) else (None if declared == "none" else "auto"),
        "conflicts": list(host.service.conflicts),
        "port": host.endpoint.port,
        "address": host.endpoint.address,
        "ready_path": endpoints.ready,
        "models_path": endpoints.models,
        "host": host.name,
        "ssh": host.transport.type == "ssh",
    }


def units_of(host: Host, host_side: HostSide) -> tuple[HostUnits, Listener]:
    """The units that tuning ``host`` concerns, and who listens on its port. ``reasons`` are complete; nothing is changed."""
    reply = host_side.call("units", units_request(host, engine_for(host).endpoints), timeout_s=_TIMEOUT_S)
    if "error" in reply:
        reply = {"problems": [{"message": f"its units cannot be read: {reply['error']}", "hint": "does systemctl work on the host?"}]}
    listener = listener_on(host.endpoint.port, host_side)
    units = read_units(reply)
    return HostUnits(
        production=units.production, others=units.others, reasons=(*units.reasons, *_foreign(host, units, listener)), notes=units.notes
    ), listener


def production_checks(host: Host, host_side: HostSide) -> tuple[Check, ...]:
    """What would keep the units of ``host`` from being stopped and brought back; nothing to say of other service managers."""
    if host.service.manager != "systemd":
        return ()
    try:
        owner = listener_on(host.endpoint.port, host_side).owner
        if owner is not None and owner.left_by_tuner:
            detail = f"{owner} was left on port {host.endpoint.port} by a tuner that died; the next start restores the host first"
            return (Check(name="production", status="warning", detail=detail),)
        units, _ = units_of(host, host_side)
    except AutotunerError as error:
        return (Check(name="production", status="fail", detail=error.message, hint=error.hint),)
    failed = tuple(Check(name="production", status="fail", detail=reason.message, hint=reason.hint) for reason in units.reasons)
    notes = tuple(Check(name="production", status="warning", detail=note) for note in units.notes)
    return (*(failed or (Check(name="production", status="pass", detail=_sentence(host, units)),)), *notes)


def _sentence(host: Host, units: HostUnits) -> str:
    unit = units.production
    if unit is None:
        said = f"no unit serves on port {host.endpoint.port}"
    elif unit.active:
        said = f"{unit.name} (pid {unit.pid}) serves on port {host.endpoint.port}; it is stopped while tuning and brought back"
    else:
        said = f"{unit.name} is inactive, and stays so"
    beside = [unit.name for unit in units.others if unit.role == "conflict" and unit.active]
    return said + (f"; {', '.join(beside)} also" if beside else "")


def _foreign(host: Host, units: HostUnits, listener: Listener) -> tuple[Reason, ...]:
    """The port is held by something that no unit named here accounts for."""
    owner = listener.owner
    if not listener.listening:
        return ()
    served = units.production is not None and units.production.active
    named = isinstance(host.service.production, ProductionUnit)
    if served and (named or (owner is not None and looks_like_engine(owner.argv, host))):
        return ()
    if units.reasons:
        return ()  # the host has said already what is wrong with whoever holds it
    if host.service.production == "none":
        hint = "write `production: auto` to have it stopped while tuning and brought back, or stop it yourself"
        return (Reason(message=f"service.production is none, but {listener} serves on port {host.endpoint.port}", hint=hint),)
    return (
        Reason(
            message=f"port {host.endpoint.port} is held by {listener}, which is not {host.engine.name} as a unit",
            hint="name the unit that serves (`production: {unit: NAME}`), choose another endpoint.port, or stop that process yourself",
        ),
    )


def _unit(raw: Mapping[str, Any]) -> Unit:
    return Unit(
        name=str(raw["name"]),
        role=str(raw.get("role", "conflict")),
        active=bool(raw.get("active")),
        pid=int(raw.get("MainPID") or 0),
        argv=tuple(raw.get("argv") or ()),
        details=dict(raw),
    )
