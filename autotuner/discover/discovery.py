"""Everything that is to be known about a host before the first launch."""

from __future__ import annotations

import dataclasses
import difflib
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from autotuner.discover import checkpoint, gpus, survey, topology
from autotuner.discover.expectations import check_expected
from autotuner.discover.safetensors import read_weights
from autotuner.discover.survey import Section
from autotuner.engines.base import Engine
from autotuner.errors import AutotunerError, StopStudy
from autotuner.model.facts import DrafterFacts, EngineBuild, Gpu, HostFacts, ModelFacts, Weights
from autotuner.model.host import Host
from autotuner.model.machine import Machine
from autotuner.transports.base import Transport

_TIMEOUT_S = 60.0
_NOT_FOUND = 127
_SHOWN = 12
_Facts = TypeVar("_Facts")


@dataclass(slots=True, kw_only=True)
class Discovery:
    """What was found, piece by piece; ``None`` for a piece that could not be, whose error says why."""

    machine: Machine
    gpus: tuple[Gpu, ...] | None = None
    driver: str = "none"
    link: str | None = None
    model: ModelFacts | None = None
    drafter: DrafterFacts | None = None
    build: EngineBuild | None = None
    facts: HostFacts | None = None
    """All of it, when nothing was missing."""
    errors: dict[str, AutotunerError] = field(default_factory=dict)
    """Subject → why it could not be found."""

    def complete(self) -> HostFacts:
        """The facts.

        Raises ``StopStudy`` naming everything that is not there, ``Refused`` when the host is not what its document expects.
        """
        errors = list(self.errors.values())
        if len(errors) == 1:
            raise errors[0]
        if errors or self.facts is None:
            hints = [error.hint for error in errors if error.hint]
            raise StopStudy("; ".join(error.message for error in errors), hint="; ".join(dict.fromkeys(hints)))
        return self.facts


def discover(host: Host, engine: Engine, transport: Transport) -> HostFacts:
    """Facts of ``host``; of a simulated one they come from its profile. Raises as ``Discovery.complete`` does."""
    return look(host, engine, transport).complete()


def look(host: Host, engine: Engine, transport: Transport) -> Discovery:
    """Find out everything; a piece that is missing keeps no other from being found. Raises ``TransportError`` for a host out of reach."""
    sections = survey.look_over(host, transport)
    found = Discovery(machine=survey.machine_of(sections))
    _try(found, "engine", lambda: setattr(found, "build", engine.probe(transport, host)))
    if host.simulate is not None:
        _try(found, "simulation", lambda: _simulated(host, found))
    else:
        _try(found, "gpus", lambda: _gpus(host, sections, found, transport.address))
        _try(found, "model", lambda: setattr(found, "model", _model(host, transport)))
        _try(found, "drafter", lambda: setattr(found, "drafter", _drafter(host, transport)))
        _try(found, "disk", lambda: _complete(sections, found, transport.address))
    facts = found.facts
    if facts is not None:
        _try(found, "expect", lambda: check_expected(host, facts))
    return found


def _try(found: Discovery, subject: str, part: Callable[[], None]) -> None:
    try:
        part()
    except AutotunerError as error:
        found.errors[subject] = error


def _simulated(host: Host, found: Discovery) -> None:
    from autotuner.engines.simulated.facts import simulated_facts  # noqa: PLC0415 - real hosts need no simulator

    if found.build is not None:
        facts = dataclasses.replace(simulated_facts(host, found.build), machine=found.machine)
        found.gpus, found.driver, found.link = facts.gpus, facts.driver, facts.link
        found.model, found.drafter, found.facts = facts.model, facts.drafter, facts


def _gpus(host: Host, sections: Mapping[str, Section], found: Discovery, address: str) -> None:
    asked = sections.get("gpus", Section())
    found.gpus, found.driver = _visible(host, asked.returncode, asked.text, sections.get("mig", Section()).text, address)
    found.link = topology.link_between([gpu.index for gpu in found.gpus], sections.get("topology", Section()).text)


def _complete(sections: Mapping[str, Section], found: Discovery, address: str) -> None:
    disk = found.machine.disks.get("state")
    if disk is None:
        said = sections.get("disk-state", Section()).text.strip().splitlines()
        raise StopStudy(f"{address}: df: {said[-1] if said else 'nothing was printed'}", hint="is the folder's disk mounted?")
    if found.gpus is None or found.link is None or found.model is None or found.build is None or "drafter" in found.errors:
        return
    found.facts = HostFacts(
        gpus=found.gpus,
        driver=found.driver,
        link=found.link,
        cpus=survey.processor_count(sections, found.machine),
        memory_gib=found.machine.memory.total,
        disk_free_gib=round(disk.free_gib, 2),
        model=found.model,
        drafter=found.drafter,
        build=found.build,
        machine=found.machine,
    )


def find_gpus(host: Host, transport: Transport) -> tuple[tuple[Gpu, ...], str]:
    """GPUs that the engine will see, and the driver's version; none and ``none`` on a machine without NVIDIA's tools."""
    done = transport.run(gpus.FACTS_COMMAND, timeout_s=_TIMEOUT_S, again=True)
    mig = ""
    if done.ok and gpus.names_mig(host.engine.env.get("CUDA_VISIBLE_DEVICES")):
        mig = transport.run(gpus.LIST_COMMAND, timeout_s=_TIMEOUT_S, again=True).stdout
    return _visible(host, done.returncode, done.stdout + done.stderr, mig, transport.address)


def _visible(host: Host, returncode: int | None, text: str, mig: str, address: str) -> tuple[tuple[Gpu, ...], str]:
    if returncode == _NOT_FOUND:
        return (), "none"
    try:
        found, driver = gpus.answered(text, returncode)
    except StopStudy as error:
        raise StopStudy(f"{address}: {error.message}", hint=error.hint) from error
    return gpus.visible(found, host.engine.env.get("CUDA_VISIBLE_DEVICES"), gpus.parse_mig_devices(mig)), driver


def _model(host: Host, transport: Transport) -> ModelFacts:
    def facts(path: str, text: str, files: dict[str, int], weights: Weights | None) -> ModelFacts:
        return checkpoint.model_facts(path, text, files, host.model.context_length, weights=weights)

    return _checkpoint(host.model.path, "model", transport, facts)


def _drafter(host: Host, transport: Transport) -> DrafterFacts | None:
    def facts(path: str, text: str, files: dict[str, int], weights: Weights | None) -> DrafterFacts:
        return checkpoint.drafter_facts(path, text, files, weights=weights)

    path = host.model.drafter
    return None if path is None else _checkpoint(path, "drafter", transport, facts)


def _checkpoint(path: str, what: str, transport: Transport, facts: Callable[[str, str, dict[str, int], Weights | None], _Facts]) -> _Facts:
    """Facts from a checkpoint's folder. Raises ``StopStudy`` naming what was found instead."""
    done = transport.run(checkpoint.files_command(path), timeout_s=_TIMEOUT_S, again=True)
    if not done.ok:
        raise StopStudy(
            f"{transport.address}: {what} {path} is not there{_beside(path, transport)}",
            hint=f"correct `model:` of the host document, or copy the {what} there",
        )
    files = checkpoint.parse_files(done.stdout)
    if "config.json" not in files:
        inside = f"; it holds {', '.join(sorted(files)[:_SHOWN])}" if files else "; it is empty"
        raise StopStudy(f"{transport.address}: {what} {path} has no config.json{inside}", hint="give the folder that holds config.json")

    def read(file: str, offset: int, limit: int) -> bytes:
        return transport.read(file, offset=offset, limit=limit)

    try:
        text = transport.read(posixpath.join(path, "config.json")).decode(errors="replace")
        return facts(path, text, files, read_weights(path, checkpoint.weight_files(files), read))
    except ValueError as error:
        raise StopStudy(
            f"{transport.address}: {path}/config.json: {error}", hint="the file is damaged: copy the checkpoint again"
        ) from error


def _beside(path: str, transport: Transport) -> str:
    """What is in the nearest folder above that is there, the likeliest first."""
    folder, wanted = posixpath.split(path.rstrip("/"))
    while folder not in {"", "/"} and not transport.exists(folder):
        folder, wanted = posixpath.split(folder)
    done = transport.run(("ls", "-1", "--", folder or "."), timeout_s=_TIMEOUT_S, again=True)
    names = done.stdout.splitlines()
    if not done.ok or not names:
        return f"; {folder} is empty" if done.ok else ""
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    shown = [*near, *(name for name in names if name not in near)][:_SHOWN]
    return f"; {folder} holds {', '.join(shown)}{' …' if len(names) > len(shown) else ''}"
