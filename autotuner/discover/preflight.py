"""Everything that can be known to be wrong before the first launch; all of it at once, nothing is changed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from autotuner.discover import clock, survey
from autotuner.discover.discovery import Discovery, look
from autotuner.discover.flags import check_flags
from autotuner.discover.gpu_checks import clock_checks, gpu_checks, process_checks
from autotuner.discover.launching import launch_checks
from autotuner.discover.machine_checks import (
    clock_check,
    disk_checks,
    hardware_checks,
    holder,
    lacks_rights,
    system_checks,
    unit_checks,
    weight_checks,
)
from autotuner.discover.ports import Listener, listener_on, looks_like_engine
from autotuner.discover.tenancy import Tenant, tenant_of
from autotuner.discover.units import production_checks
from autotuner.engines.base import Engine
from autotuner.errors import AutotunerError
from autotuner.model.document import API_VERSION
from autotuner.model.facts import DrafterFacts
from autotuner.model.host import Host
from autotuner.model.machine import Machine
from autotuner.model.recommendation import Check
from autotuner.model.space import Categorical, SearchSpace
from autotuner.services.hostside import SYSTEM_STATE, HostSide
from autotuner.services.registry import manager_for
from autotuner.transports.base import Transport

_TIMEOUT_S = 60.0
_BUILD_PROBE = (
    "import json, os, sysconfig; p = sysconfig.get_paths(); "
    "print(json.dumps({'header': any(os.path.exists(os.path.join(p[k], 'Python.h')) for k in ('include', 'platinclude')), "
    "'include': p['include']}))"
)

Part = Callable[[], tuple[Check, ...]]


def examine(host: Host, engine: Engine, transport: Transport, *, space: SearchSpace | None = None) -> tuple[Discovery, tuple[Check, ...]]:
    """Discovery and preflight in one: what is missing is a failed check, and keeps no other from being made.

    Raises ``TransportError`` for a host out of reach.
    """
    found = look(host, engine, transport)
    missing = tuple(Check(name=subject, status="fail", detail=error.message, hint=error.hint) for subject, error in found.errors.items())
    return found, (*_checks(host, engine, found, transport, space), *missing)


def _checks(host: Host, engine: Engine, found: Discovery, transport: Transport, space: SearchSpace | None) -> tuple[Check, ...]:
    machine = found.machine
    parts: list[Part] = [
        lambda: _clock(transport),
        lambda: disk_checks(host, machine),
        lambda: system_checks(host, machine),
        lambda: weight_checks("model", found.model.weights if found.model else None),
        lambda: weight_checks("drafter", found.drafter.weights if found.drafter else None),
        lambda: _drafter(found, host, space),
        lambda: check_flags(host, found.build, space) if found.build else (),
    ]
    if host.simulate is None:
        gpus = found.gpus or ()
        parts += [
            lambda: gpu_checks(host, gpus, found.link, found.driver, machine) if found.gpus is not None else (),
            lambda: hardware_checks(host, machine, len(gpus)),
            lambda: _headers(host, transport) if "engine" not in found.errors else (),
        ]
    return (*_occupancy(host, engine, found, transport), *(check for part in parts for check in _guarded(part)))


def _guarded(part: Part) -> tuple[Check, ...]:
    try:
        return part()
    except AutotunerError as error:
        return (Check(name="host", status="fail", detail=error.message, hint=error.hint),)


def _occupancy(host: Host, engine: Engine, found: Discovery, transport: Transport) -> tuple[Check, ...]:
    """Who uses the host: a tuner, production, others; and whether a server could be started.

    Needs the host's programs; what can be told without them is told when they fail.
    """
    try:
        host_side = manager_for(host, transport).host_side
        state = _state_folder(host_side.state, found.machine, transport)
        tenant = tenant_of(host, host_side)
        listener = listener_on(host.endpoint.port, host_side)
    except AutotunerError as error:
        failed = [Check(name="state-folder", status="fail", detail=error.message, hint=error.hint)]
        if lacks_rights(host, found.machine):
            failed.clear()  # that is told by the check of the rights themselves
        return (*failed, *unit_checks(found.machine, survey.named_units(host)), *_port_as_told(host, found.machine))
    if tenant is not None:  # what it does there would look like foreign processes, and like production
        return (state, _lease(host, tenant))
    parts: list[Part] = [
        lambda: _served(host, listener, host_side, found.machine),
        lambda: launch_checks(host, engine, host_side, probed="engine" not in found.errors),
    ]
    if host.simulate is None and found.gpus is not None:
        ours = frozenset(listener.owner.tree) if listener.owner and looks_like_engine(listener.owner.argv, host) else frozenset()
        units = frozenset(survey.named_units(host))
        parts += [lambda: process_checks(found.machine, ours, units), lambda: clock_checks(found.gpus or (), found.machine)]
    return (state, *(check for part in parts for check in _guarded(part)))


def _state_folder(state: str, machine: Machine, transport: Transport) -> Check:
    if state == SYSTEM_STATE and machine.uid != 0:  # root's, and written by root's program alone
        return Check(name="state-folder", status="pass", detail=f"{state} is kept by the program that runs as root")
    probe = f"{state}/.preflight"
    try:
        transport.write(probe, b"x" * 4096, mode=0o600)
        transport.remove(probe)
    except AutotunerError as error:
        return Check(name="state-folder", status="fail", detail=error.message, hint=error.hint)
    return Check(name="state-folder", status="pass", detail=f"{state} can be written")


def _lease(host: Host, tenant: Tenant) -> Check:
    return Check(name="lease", status="fail", detail=f"{host.name} is being tuned by {tenant}", hint="wait until that has ended")


def _served(host: Host, listener: Listener, host_side: HostSide, machine: Machine) -> tuple[Check, ...]:
    """What serves, by the service manager's way of knowing it."""
    if host.service.manager == "systemd":
        return production_checks(host, host_side)
    return (_port(host, listener, machine),)


def _port(host: Host, listener: Listener, machine: Machine) -> Check:
    port, owner = host.endpoint.port, listener.owner
    if not listener.listening:
        return Check(name="port", status="pass", detail=f"nothing listens on port {port}")
    if owner is not None and owner.left_by_tuner:
        detail = f"{owner} was left on port {port} by a tuner that died; the next start of the tuner stops it"
        return Check(name="port", status="warning", detail=detail)
    if owner is None or not looks_like_engine(owner.argv, host):
        who = str(owner) if owner else holder(machine.sockets, port) or str(listener)
        return Check(
            name="port",
            status="fail",
            detail=f"port {port} is held by {who}, which is not {host.engine.name}",
            hint="choose another endpoint.port, or stop that process yourself: it is never stopped from here",
        )
    if host.service.production == "none":
        return Check(
            name="port",
            status="fail",
            detail=f"{owner} serves on port {port}, but service.production is none",
            hint="write `production: auto` to have it stopped while tuning and brought back, or stop it yourself",
        )
    if owner.problems:
        return Check(
            name="port",
            status="fail",
            detail=f"{owner} could not be brought back: {'; '.join(owner.problems)}",
            hint="mend that, or write service.production with argv, env and cwd",
        )
    return Check(name="port", status="pass", detail=f"{owner} serves on port {port}; it is stopped while tuning and brought back")


def _port_as_told(host: Host, machine: Machine) -> tuple[Check, ...]:
    """Who holds the port by the kernel's word alone: enough to name it, not to tell whether it can be brought back."""
    who = holder(machine.sockets, host.endpoint.port)
    if who is None:
        return ()
    detail = f"port {host.endpoint.port} is held by {who}; whether it can be brought back could not be asked"
    return (Check(name="port", status="warning", detail=detail, hint="mend what failed first, then ask again"),)


def _clock(transport: Transport) -> tuple[Check, ...]:
    before = time.time()
    done = transport.run(clock.COMMAND, timeout_s=_TIMEOUT_S)
    return clock_check(clock.skew(before=before, text=done.stdout, after=time.time()))


def _drafter(found: Discovery, host: Host, space: SearchSpace | None) -> tuple[Check, ...]:
    if host.engine.name != "sglang" or found.model is None or "drafter" in found.errors or (found.drafter is None and space is None):
        return ()
    from autotuner.engines.sglang.drafter import check_drafter  # noqa: PLC0415 - other engines do without

    return check_drafter(found.drafter, found.model, space or _drafting_space(found.drafter))


def _drafting_space(drafter: DrafterFacts | None) -> SearchSpace:
    """What the host's drafter is for, where no search space was named."""
    return SearchSpace.model_validate(
        {
            "apiVersion": API_VERSION,
            "kind": "SearchSpace",
            "metadata": {"name": "drafter", "description": drafter.path if drafter else ""},
            "engine": "sglang",
            "parameters": {"spec": Categorical(type="categorical", choices=("dflash",))},
        }
    )


def _headers(host: Host, transport: Transport) -> tuple[Check, ...]:
    """Engines compile kernels at the first launch; what is missing shows up as a crash minutes into it."""
    done = transport.run((host.engine.python, "-c", _BUILD_PROBE), timeout_s=_TIMEOUT_S, env=host.engine.env, again=True)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        detail = f"{host.engine.python} cannot be asked: {done.stderr.strip()[-200:]}"
        hint = "is engine.python of the host document the interpreter of the engine's environment?"
        return (Check(name="python-headers", status="warning", detail=detail, hint=hint),)
    if found["header"]:
        return (Check(name="python-headers", status="pass", detail=f"{found['include']}/Python.h is there"),)
    hint = "install python3-dev of that version, or set CPATH in engine.env: kernels are compiled at the first launch"
    return (Check(name="python-headers", status="warning", detail=f"{found['include']}/Python.h is missing", hint=hint),)
