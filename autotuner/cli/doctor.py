"""The ``doctor`` command: everything that would keep a host from being tuned, all of it at once, before anything is touched."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotuner.cli.machine_text import facts_rows, machine_object, machine_rows, weights_object
from autotuner.cli.options import Options
from autotuner.documents import load_host, load_space
from autotuner.errors import AutotunerError
from autotuner.model.facts import HostFacts
from autotuner.model.host import Host
from autotuner.model.machine import Machine
from autotuner.model.recommendation import Check
from autotuner.model.space import SearchSpace

if TYPE_CHECKING:
    from autotuner.bench.floor import Floor

RECORDS_GIB = 1.0
"""Room that a night's records may need on the controller, with a wide margin."""

_ANSWER_S = 30.0
_WORDS = {"pass": ("ok", "green"), "warning": ("warning", "yellow"), "fail": ("FAIL", "red")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What was found; ``machine`` is ``None`` when the host could not be reached, ``facts`` also when something needed was not there."""

    host: Host
    facts: HostFacts | None
    checks: tuple[Check, ...]
    machine: Machine | None = None
    floor: Floor | None = None
    """The load generator's own, where it was asked for."""

    @property
    def healthy(self) -> bool:
        """Whether nothing failed."""
        return all(check.status != "fail" for check in self.checks)


@click.command(short_help="Look a host over and say what would keep it from being tuned.")
@click.argument("host")
@click.option("--space", help="Check the drafter also against this search space: a name or a file.")
@click.option("--load-self-test", is_flag=True, help="Measure also what the load generator costs by itself on this machine.")
@click.option("--concurrency", default=128, show_default=True, type=click.IntRange(1, 4096), help="Of the self-test: requests at once.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def doctor(options: Options, host: str, space: str | None, concurrency: int, *, load_self_test: bool, as_json: bool) -> int:
    """Look HOST over and say what would keep it from being tuned.

    HOST is a name (`hosts/NAME.yaml`) or a path. Nothing on the host is changed but for the tuner's own program, which
    is put there. Ends with 1 when a check fails.

    With --load-self-test the load generator is driven against a simulated engine on this machine, up to the wanted
    concurrency. What it found is kept in the state folder; recommendations and benches name it.
    """
    found = examine(load_host(host), options.state_dir, space=load_space(space) if space else None)
    if load_self_test:
        found = with_floor(found, options.state_dir, concurrency)
    click.echo(as_json_text(found) if as_json else as_text(found))
    return 0 if found.healthy else 1


def examine(host: Host, state_dir: Path, *, space: SearchSpace | None = None) -> Examination:
    """Discover the host and run every check; what cannot be reached is a failed check, not an exception."""
    here = check_state_dir(state_dir)
    way = "ssh" if host.transport.type == "ssh" else "host"
    try:
        return _look(host, space, here, state_dir)
    except AutotunerError as error:
        failed = Check(name=way, status="fail", detail=error.message, hint=error.hint)
        return Examination(host=host, facts=None, checks=(here, failed))


def with_floor(found: Examination, state_dir: Path, concurrency: int) -> Examination:
    """The examination with a self-test of the load generator, which is kept in the state folder."""
    from autotuner.bench import selftest
    from autotuner.bench.floor import write_floor
    from autotuner.cli.floor_text import floor_check

    try:
        floor = selftest.measure_floor(concurrency, should_stop=lambda: False, plan=selftest.PLAN)
        write_floor(state_dir, floor)
    except AutotunerError as error:
        failed = Check(name="load-generator", status="fail", detail=error.message, hint=error.hint)
        return replace(found, checks=(*found.checks, failed))
    return replace(found, floor=floor, checks=(*found.checks, floor_check(floor)))


def _look(host: Host, space: SearchSpace | None, here: Check, state_dir: Path) -> Examination:
    from autotuner.discover import examine as look_over
    from autotuner.engines.registry import engine_for
    from autotuner.transports.registry import transport_for

    engine = engine_for(host)
    transport = transport_for(host)
    try:
        transport.run(("true",), timeout_s=_ANSWER_S)  # whoever cannot get in needs no other advice
        found, there = look_over(host, engine, transport, space=space)
        way = _way_in(transport.address, transport.rtt_s) if host.transport.type == "ssh" else ()
        return Examination(host=host, facts=found.facts, machine=found.machine, checks=(here, *_sandbox(host, state_dir), *way, *there))
    finally:
        transport.close()


def _sandbox(host: Host, state_dir: Path) -> tuple[Check, ...]:
    """Whether answers can be judged by running their code on this machine; a simulated engine's are not."""
    from autotuner.quality.probe import sandbox_check

    return () if host.simulate is not None else (sandbox_check((state_dir.absolute(),)),)


def _way_in(address: str, rtt_s: float | None) -> tuple[Check, ...]:
    trip = "" if rtt_s is None else f", {rtt_s * 1000:.1f} ms there and back"
    return (Check(name="ssh", status="pass", detail=f"{address} answers{trip}"),)


def check_state_dir(folder: Path, *, free_gib: Callable[[Path], float] | None = None) -> Check:
    """Whether studies and records can be kept there. The folder is not made."""
    existing = next(part for part in (folder, *folder.parents) if part.exists())
    hint = "choose another folder with `--state-dir` or AUTOTUNER_STATE_DIR"
    if not existing.is_dir():
        return Check(name="state-dir", status="fail", detail=f"`{existing}` is not a folder", hint=hint)
    if not os.access(existing, os.W_OK | os.X_OK):
        return Check(name="state-dir", status="fail", detail=f"`{existing}` cannot be written by this user", hint=hint)
    free = (free_gib or _free_gib)(existing)
    if free < RECORDS_GIB:
        detail = f"{free:.1f} GiB free at `{existing}`, {RECORDS_GIB:.0f} GiB wanted for a night's records"
        return Check(name="state-dir", status="fail", detail=detail, hint=hint)
    return Check(name="state-dir", status="pass", detail=f"`{folder}` can be written, {free:.0f} GiB free")


def _free_gib(path: Path) -> float:
    return shutil.disk_usage(path).free / 2**30


def as_json_text(found: Examination) -> str:
    """The examination as one JSON object."""
    from autotuner.cli.floor_text import floor_object

    facts = found.facts
    return json.dumps(
        {
            "host": found.host.name,
            "simulated": found.host.simulate is not None,
            "healthy": found.healthy,
            "facts": None if facts is None else facts.names(),
            "engine": None if facts is None else {"name": facts.build.engine, "version": facts.build.version},
            "model": None if facts is None else weights_object(facts.model),
            "drafter": None if facts is None or facts.drafter is None else weights_object(facts.drafter),
            "machine": None if found.machine is None else machine_object(found.machine, facts.gpus if facts else ()),
            "fingerprint": None if facts is None else {"digest": facts.fingerprint.digest} | facts.fingerprint.as_dict(),
            "load_self_test": None if found.floor is None else floor_object(found.floor),
            "checks": [check.model_dump() for check in found.checks],
        },
        indent=2,
        ensure_ascii=False,
    )


def as_text(found: Examination) -> str:
    """The examination for a person: facts, then every check, failures last so that they stay on the screen."""
    from autotuner.cli.floor_text import floor_lines

    mark = " (simulated)" if found.host.simulate is not None else ""
    order = {"pass": 0, "warning": 1, "fail": 2}
    lines = [f"{found.host.name}{mark}", *(f"  {line}" for line in _facts_lines(found)), ""]
    if found.floor is not None:
        lines += [*(f"  {line}" for line in floor_lines(found.floor)), ""]
    for check in sorted(found.checks, key=lambda check: order[check.status]):
        word, colour = _WORDS[check.status]
        lines.append(f"{click.style(f'{word:<8}', fg=colour)}{check.name}: {check.detail}")
        if check.hint and check.status != "pass":
            lines.append(f"{'':<8}hint: {check.hint}")
    return "\n".join([*lines, "", _verdict(found)])


def _facts_lines(found: Examination) -> list[str]:
    rows = {} if found.facts is None else facts_rows(found.facts)
    if found.machine is not None:
        rows |= machine_rows(found.machine, found.facts)
    return [f"{name:<12}{value}" for name, value in rows.items()]


def _verdict(found: Examination) -> str:
    failed = sum(check.status == "fail" for check in found.checks)
    warned = sum(check.status == "warning" for check in found.checks)
    if failed:
        return f"{found.host.name} cannot be tuned: {failed} of {len(found.checks)} checks failed, {warned} warned"
    return f"{found.host.name} can be tuned: {len(found.checks)} checks, {warned} warned"
