"""What a person asks of a host outside of a night: how it is, who tunes it, its logs, and to bring back what a dead tuner left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotuner.decide.unit import full_name
from autotuner.deploy.recovery import bring_back
from autotuner.deploy.state import SessionState, session_state
from autotuner.discover.ports import Listener, listener_on
from autotuner.discover.tenancy import holder_lives, how_to_stop, lease_names
from autotuner.discover.units import Unit, read_units, units_request
from autotuner.engines.registry import engine_for
from autotuner.errors import AutotunerError, NotRestored, Refused, UsageError
from autotuner.model.host import Host, ProductionUnit, SshTransport
from autotuner.services.hostside import HostSide, grant_script
from autotuner.services.registry import manager_for
from autotuner.transports.registry import transport_for

_UNITS_TIMEOUT_S = 90.0
"""Engines let a health request wait for a generated token, and it is asked on the host."""
_CHANGE_SLACK_S = 60.0
_STOPPED = {"inactive", "failed"}
_STARTED = {"active", "activating", "reloading"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds the lease of a host; ``alive`` says whether it may still act, or is gone."""

    who: str
    purpose: str
    since: str
    node: str
    pid: int | None
    how_to_stop: str
    """What a person does to end it."""
    alive: bool
    session: str
    token: str | None
    expires_s: float | None
    """Seconds until the lease expires unless it is renewed; ``None`` when the host cannot say."""

    def __str__(self) -> str:
        return f"{self.who} since {self.since}: {self.purpose}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """How a host is now."""

    address: str
    manager: str
    production: Unit | None
    """``None`` when nothing serves as a unit; of plain processes the listener says it."""
    answers: bool | None
    """Whether production's ready path says that it can serve; ``None`` when it was not asked."""
    others: tuple[Unit, ...]
    candidates: tuple[Unit, ...]
    problems: tuple[str, ...]
    """What would keep the host from being brought back to what it is now; not asked while a candidate serves in production's place."""
    holder: Holder | None
    session: SessionState
    listener: Listener

    @property
    def left_behind(self) -> bool:
        """Whether a tuner that is gone left something to restore."""
        alive = self.holder is not None and self.holder.alive
        return not alive and (self.session.token is not None or self.holder is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The end of a log; ``source`` is the unit or the file that it was read from."""

    source: str
    text: str


@contextlib.contextmanager
def reached(host: Host, *, looking: bool = False) -> Iterator[HostSide]:
    """The host's own programs, over a connection that is closed afterwards; ``looking``: also where its disk is full.

    Raises ``TransportError`` when it cannot be reached.
    """
    transport = transport_for(host)
    try:
        host_side = manager_for(host, transport).host_side
        host_side.only_looks = looking
        yield host_side
    finally:
        transport.close()


def session_folder(host: Host, host_side: HostSide) -> str:
    """Where a session of this host keeps its files."""
    return f"{host_side.state}/sessions/{host.endpoint.port}"


def holder_of(host: Host, host_side: HostSide) -> Holder | None:
    """Who holds the lease; one that is gone counts only when nobody else does."""
    return next(iter(_holders(host, host_side)), None)


def look(host: Host, host_side: HostSide) -> Situation:
    """How the host is. Nothing is changed."""
    folder = session_folder(host, host_side)
    listener = listener_on(host.endpoint.port, host_side)
    tuned = listener.owner is not None and listener.owner.left_by_tuner
    units = read_units({})
    answers: bool | None = None
    candidates: tuple[Unit, ...] = ()
    if host.service.manager == "systemd":
        reply = _asked(host, host_side, "units", units_request(host, engine_for(host).endpoints), timeout_s=_UNITS_TIMEOUT_S)
        units = read_units(reply)
        answers = bool(units.production.details.get("answered")) if units.production and units.production.active else None
        shown = _asked(host, host_side, "unit-show", {"port": host.endpoint.port})
        candidates = read_units(shown).all
    return Situation(
        address=host_side.transport.address,
        manager=host.service.manager,
        production=units.production,
        answers=answers,
        others=units.others,
        candidates=candidates,
        problems=() if tuned else tuple(reason.message for reason in units.reasons),
        holder=holder_of(host, host_side),
        session=session_state(host_side, folder),
        listener=listener,
    )


def restore(host: Host, host_side: HostSide, *, take_over: bool) -> str | None:
    """Bring back what a dead tuner left, and end its session; returns whose it was, or ``None`` when nothing was left.

    Raises ``Refused`` while a tuner is alive, unless ``take_over`` ends its session, and ``NotRestored`` when it cannot be done.
    """
    folder = session_folder(host, host_side)
    holders = _holders(host, host_side)
    if holders and holders[0].alive and not take_over:
        raise _taken(host, holders[0])
    left = session_state(host_side, folder).token
    bring_back(host, host_side, folder)
    _refuse_orphans(host, host_side, folder)
    for name in lease_names(host):  # one that cannot be read names nobody, and would be in the way for ever
        _asked(host, host_side, "break-lease", {"path": f"{host_side.leases}/{name}.json", "token": None})
    for holder in holders:
        if holder.session not in {"", folder}:
            bring_back(host, host_side, holder.session)
        for name in lease_names(host):
            _asked(host, host_side, "break-lease", {"path": f"{host_side.leases}/{name}.json", "token": holder.token})
    if not holders:
        return None if left is None else "a tuner that is gone"
    return str(holders[0])


def _refuse_orphans(host: Host, host_side: HostSide, folder: str) -> None:
    """Candidates that run although no session says what served before them. Raises ``NotRestored``."""
    if host.service.manager != "systemd":
        return
    running = [unit.name for unit in read_units(_asked(host, host_side, "unit-show", {"port": host.endpoint.port})).all if unit.active]
    if running and session_state(host_side, folder).token is None:
        raise NotRestored(
            f"{host.name}: {', '.join(running)} still runs, and nothing on the host says any more what served before it",
            hint=f"start production, which ends it: autotuner service {host.name} start",
        )


def change(host: Host, host_side: HostSide, verb: str, *, conflicts: bool) -> tuple[str, ...]:
    """Start or stop (``verb``) the production unit, with ``conflicts`` the units in conflict, too; returns their names in the order done.

    Raises ``UsageError`` where production is no unit, ``Refused`` while somebody tunes the host or has left something to restore.
    """
    units = _units_to_change(host, host_side, verb, conflicts=conflicts)
    holder = holder_of(host, host_side)
    if holder is not None and holder.alive:
        raise _taken(host, holder)
    if session_state(host_side, session_folder(host, host_side)).token is not None:
        raise Refused(
            f"{host.name}: a tuner that is gone has left this host to be restored", hint=f"first: autotuner service {host.name} restore"
        )
    _refuse_unloadable(host, host_side, verb, units)
    patience_s = host.limits.stop_timeout_s if verb == "stop" else host.limits.ready_timeout_s
    request = {"verb": verb, "units": list(units), "timeout_s": patience_s}
    reply = _asked(host, host_side, "unit-do", request, timeout_s=len(units) * (patience_s + _CHANGE_SLACK_S))
    wanted = _STOPPED if verb == "stop" else _STARTED
    for unit in reply["units"]:
        if unit["ActiveState"] not in wanted:
            raise AutotunerError(
                f"{host.name}: {unit['name']} did not {verb}: it is {unit['ActiveState']} ({unit.get('Result') or unit.get('SubState')})",
                hint=f"on the host: systemctl status {unit['name']}; its log: autotuner service {host.name} logs",
            )
    return units


def _refuse_unloadable(host: Host, host_side: HostSide, verb: str, names: tuple[str, ...]) -> None:
    """Units that are not there, and masked ones that are to be started. Raises ``AutotunerError``; none was touched then."""
    for unit in read_units(_asked(host, host_side, "unit-show", {"units": list(names)}, timeout_s=_UNITS_TIMEOUT_S)).all:
        load = unit.details.get("LoadState")
        if unit.active:
            continue
        if load == "not-found":
            raise _no_unit(host, unit.name)
        if load == "masked" and verb == "start":
            raise AutotunerError(
                f"{host.name}: {unit.name} is masked: systemd starts it for nobody", hint=f"on the host: systemctl unmask {unit.name}"
            )


def _no_unit(host: Host, name: str) -> AutotunerError:
    return AutotunerError(
        f"{host.name}: {name} does not exist on the host",
        hint="correct the unit's name in `service:` of the host document; on the host: systemctl list-units --all",
    )


def logs(host: Host, host_side: HostSide, *, lines: int, candidate: bool) -> Log:
    """The end of the log of production, or of the newest candidate. Raises ``UsageError`` when there is none."""
    if host.service.manager == "systemd":
        which = {"port": host.endpoint.port} if candidate else {"unit": _production_unit(host)}
        reply = _asked(host, host_side, "unit-log", {**which, "lines": lines})
        if reply["unit"] is None:
            raise _no_candidate(host)
        if not reply["text"] and not candidate and not reply["exists"]:
            raise _no_unit(host, reply["unit"])
        return Log(source=reply["unit"], text=reply["text"])
    path = _newest_candidate_log(host, host_side) if candidate else _production_log(host, host_side)
    done = host_side.transport.run(["tail", "-n", str(lines), "--", path], timeout_s=30)
    if not done.ok:
        raise AutotunerError(f"{host.name}: {path} cannot be read: {done.stderr.strip()}", hint="does this user own it?")
    return Log(source=path, text=done.stdout)


def script_to_grant(host: Host) -> str:
    """The script with which an administrator lets the document's user manage its units. Raises ``UsageError`` where none is needed."""
    if host.service.manager != "systemd":
        raise UsageError(f"{host.name}: plain processes need nothing granted: the user's own rights are enough", hint="see docs/hosts.md")
    if not isinstance(host.transport, SshTransport) or host.transport.user is None:
        raise UsageError(f"{host.name}: the host document names no user to grant anything to", hint="write `user:` under `transport:`")
    if host.transport.user == "root":
        raise UsageError(f"{host.name}: root needs nothing granted", hint="write another `user:` under `transport:`, or leave it as it is")
    return grant_script(host.transport.user, (_production_unit(host), *map(full_name, host.service.conflicts)))


def _taken(host: Host, holder: Holder) -> Refused:
    return Refused(
        f"{host.name} is being tuned by {holder}",
        hint=f"stop that tuner, and it brings production back itself: {holder.how_to_stop}; "
        f"one that hangs or cannot be reached: autotuner service {host.name} restore --take-over",
    )


def _units_to_change(host: Host, host_side: HostSide, verb: str, *, conflicts: bool) -> tuple[str, ...]:
    """In the order in which a night does it: what is in conflict is stopped first and started last."""
    if host.service.manager == "systemd":
        production, beside = _production_unit(host), tuple(map(full_name, host.service.conflicts)) if conflicts else ()
        return (production, *reversed(beside)) if verb == "start" else (*beside, production)
    raise UsageError(
        f"{host.name}: production is no systemd unit (manager: {host.service.manager}), so it is not stopped or started alone",
        hint=_by_hand(host, host_side, verb),
    )


def _by_hand(host: Host, host_side: HostSide, verb: str) -> str:
    """What a person does instead where production is a plain process."""
    owner = listener_on(host.endpoint.port, host_side).owner
    if verb == "stop":
        return f"on the host: kill {owner.pid}" if owner else f"nothing that could be stopped listens on port {host.endpoint.port}"
    if session_state(host_side, session_folder(host, host_side)).token is not None:
        return f"a tuner left it stopped: autotuner service {host.name} restore"
    return f"{owner} serves already" if owner else "start it on the host with its own command line; a night finds it by its port"


def _production_unit(host: Host) -> str:
    if isinstance(host.service.production, ProductionUnit):
        return full_name(host.service.production.unit)
    raise UsageError(
        f"{host.name}: the host document names no production unit",
        hint="write `production: {unit: NAME}` under `service:` of the host document",
    )


def _newest_candidate_log(host: Host, host_side: HostSide) -> str:
    done = host_side.transport.run(["ls", "-1t", f"{host_side.state}/services"], timeout_s=30)
    names = done.stdout.splitlines() if done.ok else []
    if not names:
        raise _no_candidate(host)
    return f"{host_side.state}/services/{names[0]}/log"


def _no_candidate(host: Host) -> UsageError:
    return UsageError(f"{host.name}: no candidate has left a log there", hint=f"autotuner trials {host.name} lists what was launched")


def _production_log(host: Host, host_side: HostSide) -> str:
    """The file that production writes to; after a restore without one of its own that is beside the session."""
    owner = listener_on(host.endpoint.port, host_side).owner
    path = None if owner is None else (owner.details.get("stderr") or owner.details.get("stdout"))
    if path is None:
        why = "nothing that this user can see listens" if owner is None else f"{owner} writes its log to no file"
        raise UsageError(f"{host.name}: there is no log of production: {why}", hint=f"autotuner service {host.name} show")
    return str(path)


def _holders(host: Host, host_side: HostSide) -> list[Holder]:
    """Everybody whose lease is there, those who may still act first; each once."""
    reply = _asked(host, host_side, "leases", {"folder": host_side.leases, "names": list(lease_names(host))})
    held = {lease["content"].get("token"): lease for lease in reply.get("held", [])}
    return sorted((_holder(host_side, lease) for lease in held.values()), key=lambda holder: not holder.alive)


def _holder(host_side: HostSide, lease: Mapping[str, Any]) -> Holder:
    content = lease["content"]
    session = str(content.get("session") or "")
    state = session_state(host_side, session) if session else None
    return Holder(
        who=str(content.get("holder", "?")),
        purpose=str(content.get("purpose", "?")),
        since=str(content.get("since", "?")),
        node=str(content.get("node") or ""),
        pid=content.get("pid"),
        how_to_stop=how_to_stop(content),
        alive=holder_lives(content, by_host=bool(lease["alive"])),
        session=session,
        token=content.get("token"),
        expires_s=state.remaining_s if state is not None and state.token == content.get("token") else None,
    )


def _asked(host: Host, host_side: HostSide, command: str, request: Mapping[str, Any], *, timeout_s: float = 30.0) -> dict[str, Any]:
    """The host's answer. Raises ``Refused`` for what this user may not do there, ``AutotunerError`` for everything else that it refused."""
    reply = host_side.call(command, request, timeout_s=timeout_s)
    if "error" not in reply:
        return reply
    if reply.get("kind") == "not-allowed":
        raise Refused(f"{host.name}: {reply['error']}", hint=f"an administrator allows it: autotuner service {host.name} grant")
    raise AutotunerError(f"{host.name}: {command}: {reply['error']}", hint=f"autotuner service {host.name} show says how it is now")
