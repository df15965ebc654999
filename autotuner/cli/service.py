"""The ``service`` commands: what a person does about a host by hand, outside of a night or after one that went wrong."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from autotuner.errors import AutotunerError, UsageError
from autotuner.model.near import near

if TYPE_CHECKING:
    from autotuner.deploy.people import Holder, Situation
    from autotuner.discover.units import Unit
    from autotuner.model.host import Host

_MOST_LINES = 10_000
_COLUMN = 18
_ABOUT_HOST = "autotuner service HOST "


@dataclass(frozen=True, slots=True)
class Target:
    """The host that the commands are about; its document is read when one of them runs."""

    name: str

    def load(self) -> Host:
        """The host document."""
        from autotuner.documents import load_host

        return load_host(self.name)


class _Verbs(click.Group):
    """A group that lists its commands in the order of their use, says which word comes first, and fills the host into hints."""

    def invoke(self, ctx: click.Context) -> object:
        """As click does; what is raised deep below knows a host by its address only, and writes HOST for the name it has here."""
        try:
            return super().invoke(ctx)
        except AutotunerError as error:
            error.hint = for_host(error.hint, ctx.params["host"])
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        """As they are written below."""
        return list(self.commands)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown word is answered with what was probably meant."""
        host, word = ctx.params.get("host", "HOST"), args[0]
        if word not in self.commands and not word.startswith("-") and not ctx.resilient_parsing:
            meant = near(word, self.commands)
            hint = f"autotuner service {host} {meant}" if meant else f"one of: {', '.join(self.commands)}"
            if host in self.commands:
                hint = f"the host comes first: autotuner service {word} {host}"
            raise UsageError(f"there is nothing called `{word}` to do with a host", hint=hint)
        return super().resolve_command(ctx, args)


def for_host(hint: str | None, name: str) -> str | None:
    """The hint with the commands about a host spelled out, as a person types them."""
    return hint and hint.replace(_ABOUT_HOST, f"autotuner service {shlex.quote(name)} ")


@click.group(cls=_Verbs, short_help="Show, stop, start or restore what serves on a host, and read its logs.")
@click.argument("host")
@click.pass_context
def service(ctx: click.Context, host: str) -> None:
    """Show, stop, start or restore what serves on HOST, and read its logs.

    HOST is a name (`hosts/NAME.yaml`) or a path. Nothing is stopped or started while a tuner holds the host.
    """
    ctx.obj = Target(host)


@service.command(short_help="Show production, candidates, the lease, the dead-man switch and who listens.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def show(target: Target, *, as_json: bool) -> int:
    """Show production, candidates, the lease, the dead-man switch, who listens on the port and how the last restore ended.

    Nothing on the host is changed but for the tuner's own program, which is put there.
    """
    from autotuner.deploy import people

    host = target.load()
    with people.reached(host, looking=True) as host_side:
        found, folder = people.look(host, host_side), people.session_folder(host, host_side)
    told = as_json_object(host, found, folder=folder) if as_json else None
    click.echo(json.dumps(told, indent=2, ensure_ascii=False) if told is not None else as_text(host, found, folder=folder))
    return 0


@service.command(short_help="Stop production.")
@click.option("--conflicts", is_flag=True, help="Also the units in conflict that the host document names; they are stopped first.")
@click.pass_obj
def stop(target: Target, *, conflicts: bool) -> int:
    """Stop the production unit. Refused while a tuner holds the host."""
    return _change(target, "stop", "stopped", conflicts=conflicts)


@service.command(short_help="Start production.")
@click.option("--conflicts", is_flag=True, help="Also the units in conflict that the host document names; they are started last.")
@click.pass_obj
def start(target: Target, *, conflicts: bool) -> int:
    """Start the production unit. Refused while a tuner holds the host. The model loads after this command has ended."""
    return _change(target, "start", "started", conflicts=conflicts)


@service.command(short_help="Bring back what a dead tuner left.")
@click.option("--take-over", is_flag=True, help="Also when its tuner is alive or was heard of lately: it loses the host.")
@click.pass_obj
def restore(target: Target, *, take_over: bool) -> int:
    """Bring back what served before a tuner died: by the routine that ends every night, on the host itself.

    Ends with 5 when production is not as it was, and says what to do by hand. Waits as long as production takes to start.
    """
    from autotuner.deploy import people

    host = target.load()
    with people.reached(host) as host_side:
        whose = people.restore(host, host_side, take_over=take_over)
    if whose is None:
        click.echo(f"{host.name}: nothing is left to restore")
        return 0
    with people.reached(host) as host_side:  # what is told is what a new connection sees
        found = people.look(host, host_side)
    click.echo(f"{host.name}: restored; the host was held by {whose}")
    click.echo(as_text(host, found))
    return 0


@service.command(short_help="Print the end of production's log.")
@click.option("-n", "--lines", type=click.IntRange(min=1, max=_MOST_LINES), default=100, help="How many lines.")
@click.option("--candidate", is_flag=True, help="Of the newest candidate instead of production.")
@click.pass_obj
def logs(target: Target, *, lines: int, candidate: bool) -> int:
    """Print the end of production's log: the journal of its unit, or the file that its process writes to."""
    from autotuner.deploy import people

    host = target.load()
    with people.reached(host, looking=True) as host_side:
        log = people.logs(host, host_side, lines=lines, candidate=candidate)
    click.echo(f"{host.name}: {log.source}" + ("" if log.text else " is empty"), err=True)
    click.echo(log.text, nl=not log.text.endswith("\n") and bool(log.text))
    return 0


@service.command(short_help="Print what an administrator runs so that a user without root may tune.")
@click.pass_obj
def grant(target: Target) -> int:
    """Print the script that an administrator reviews and runs on HOST, so that its SSH user may tune without being root.

    It allows one program for the units that the host document names, and nothing else. Nothing is run by this command.
    """
    from autotuner.deploy import people

    click.echo(people.script_to_grant(target.load()), nl=False)
    return 0


def as_json_object(host: Host, found: Situation, *, folder: str | None = None) -> dict[str, object]:
    """The situation as plain values; ``folder`` is where a session of this host keeps its files."""
    listener, state = found.listener, found.session
    owner = listener.owner
    return {
        "host": host.name,
        "address": found.address,
        "manager": found.manager,
        "production": None if found.production is None else _unit_json(found.production) | {"answers": found.answers},
        "conflicts": [_unit_json(unit) for unit in found.others],
        "candidates": [_unit_json(unit) for unit in found.candidates],
        "lease": None if found.holder is None else holder_json(found.holder),
        "dead_man_switch": {"armed": state.armed, "remaining_s": state.remaining_s, "restoring": state.restoring},
        "listener": {
            "port": host.endpoint.port,
            "listening": listener.listening,
            "pid": owner.pid if owner else None,
            "command": list(owner.argv) if owner else None,
            "left_by_tuner": bool(owner and owner.left_by_tuner),
        },
        "left_to_restore": found.left_behind and not _unchanged(found, folder),
        "by_hand": state.by_hand,
        "last_restore": None
        if state.outcome is None
        else {"ok": state.outcome.ok, "detail": state.outcome.detail, "notes": list(state.outcome.notes)},
        "problems": list(found.problems),
    }


def holder_json(holder: Holder) -> dict[str, object]:
    """Who holds a host, as plain values."""
    return {
        "holder": holder.who,
        "purpose": holder.purpose,
        "since": holder.since,
        "node": holder.node,
        "pid": holder.pid,
        "alive": holder.alive,
        "expires_s": None if holder.expires_s is None else round(holder.expires_s, 1),
    }


def as_text(host: Host, found: Situation, *, folder: str | None = None) -> str:
    """The situation for a person, one line for each thing to know; ``folder`` as for ``as_json_object``."""
    listener, outcome = found.listener, found.session.outcome
    rows = [
        ("production", _production_text(host, found)),
        *[(unit.role, _unit_text(unit)) for unit in found.others],
        *[("candidate", _unit_text(unit)) for unit in found.candidates],
        ("lease", holder_text(found.holder)),
        ("dead-man switch", _switch_text(found)),
        (f"port {host.endpoint.port}", str(listener) if listener.listening else "nothing listens"),
        ("last restore", "none is recorded" if outcome is None else ("" if outcome.ok else "FAILED: ") + outcome.detail),
        *[("note", note) for note in (outcome.notes if outcome else ())],
        *[("by hand", found.session.by_hand or "") for _ in range(found.session.by_hand is not None)],
        *[("problem", problem) for problem in found.problems],
    ]
    lines = [f"{host.name} ({found.manager}, {found.address})", *(f"  {name:<{_COLUMN}}{text}" for name, text in rows)]
    if found.left_behind and _unchanged(found, folder):
        lines.append("a tuner that is gone left its lease alone: nothing on this host was changed, and the next `tune` takes it over")
    elif found.left_behind:
        lines.append(f"a tuner that is gone left this host to be restored: autotuner service {host.name} restore")
    return "\n".join(lines)


def _unchanged(found: Situation, folder: str | None) -> bool:
    """Whether a tuner died with the lease and without a session: what it changes, it takes down first."""
    owner = found.listener.owner
    candidate = bool(found.candidates) or (owner is not None and owner.left_by_tuner)
    return found.session.token is None and found.holder is not None and found.holder.session == folder and not candidate


def holder_text(holder: Holder | None) -> str:
    """Who holds a host, in words."""
    if holder is None:
        return "free: nobody tunes this host"
    if not holder.alive:
        return f"left by {holder}, who is gone"
    expiry = "" if holder.expires_s is None else f"; expires in {max(0.0, holder.expires_s):.0f} s unless it is renewed"
    return f"{holder}{expiry}"


def _change(target: Target, verb: str, done: str, *, conflicts: bool) -> int:
    from autotuner.deploy import people

    host = target.load()
    with people.reached(host) as host_side:
        names = people.change(host, host_side, verb, conflicts=conflicts)
    for name in names:
        click.echo(f"{host.name}: {done} {name}")
    return 0


def _production_text(host: Host, found: Situation) -> str:
    unit = found.production
    if unit is None:
        plain = host.service.manager == "process" and found.listener.owner is not None and not found.listener.owner.left_by_tuner
        return f"{found.listener.owner}" if plain else "nothing serves"
    health = {True: ", answers", False: ", does not answer", None: ""}[found.answers]
    return _unit_text(unit) + health


def _unit_text(unit: Unit) -> str:
    details = unit.details
    if details.get("LoadState") == "not-found" and not unit.active:
        return f"{unit.name}: does not exist on the host"
    state, sub, kept = (str(details.get(key) or "") for key in ("ActiveState", "SubState", "UnitFileState"))
    parts = [f"{state} ({sub})" if sub and sub != "dead" else state or ("active" if unit.active else "inactive")]
    parts += [f"pid {unit.pid}"] if unit.pid else []
    parts += [kept] if kept in {"enabled", "disabled", "masked"} else []
    return f"{unit.name}: {', '.join(parts)}"


def _switch_text(found: Situation) -> str:
    state = found.session
    if state.token is None:
        return "not armed: no session is on the host"
    if state.restoring:
        return "the host is bringing production back now"
    if not state.armed:
        return "NOT ARMED, and a session is on the host"
    if state.remaining_s is None:
        return "armed"
    return f"armed: in {max(0.0, state.remaining_s):.0f} s the host brings production back unless the tuner is heard of"


def _unit_json(unit: Unit) -> dict[str, object]:
    return {
        "name": unit.name,
        "role": unit.role,
        "active": unit.active,
        "state": unit.details.get("ActiveState"),
        "enabled": unit.details.get("UnitFileState"),
        "pid": unit.pid or None,
    }
