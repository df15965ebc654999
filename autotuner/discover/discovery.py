"""Everything that is to be known about a host before the first launch."""

from __future__ import annotations

import difflib
import posixpath
from collections.abc import Callable
from typing import TypeVar

from autotuner.discover import checkpoint, gpus, machine, topology
from autotuner.discover.expectations import check_expected
from autotuner.engines.base import Engine
from autotuner.errors import StopStudy
from autotuner.model.facts import DrafterFacts, Gpu, HostFacts, ModelFacts
from autotuner.model.host import Host
from autotuner.transports.base import Transport

_TIMEOUT_S = 60.0
_NOT_FOUND = 127
_SHOWN = 12
_Facts = TypeVar("_Facts")


def discover(host: Host, engine: Engine, transport: Transport) -> HostFacts:
    """Facts of ``host``; of a simulated one they come from its profile.

    Raises ``StopStudy`` when something needed is not there, ``Refused`` when the host is not what its document expects.
    """
    build = engine.probe(transport, host)
    if host.simulate is not None:
        from autotuner.engines.simulated.facts import simulated_facts  # noqa: PLC0415 - real hosts need no simulator

        facts = simulated_facts(host, build)
    else:
        found, driver = find_gpus(host, transport)
        facts = HostFacts(
            gpus=found,
            driver=driver,
            link=_link(found, transport),
            cpus=_cpus(transport),
            memory_gib=machine.parse_memory(_proc(transport, "/proc/meminfo")),
            disk_free_gib=round(disk_free(transport, "/var/tmp"), 2),  # noqa: S108 - where the state folder is; nothing is written
            model=_model(host, transport),
            drafter=_drafter(host, transport),
            build=build,
        )
    check_expected(host, facts)
    return facts


def find_gpus(host: Host, transport: Transport) -> tuple[tuple[Gpu, ...], str]:
    """GPUs that the engine will see, and the driver's version; none and ``none`` on a machine without NVIDIA's tools."""
    done = transport.run(gpus.FACTS_COMMAND, timeout_s=_TIMEOUT_S)
    if done.returncode == _NOT_FOUND:
        return (), "none"
    if not done.ok:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise StopStudy(
            f"{transport.address}: nvidia-smi failed: {said[0] if said else done.returncode}",
            hint="run nvidia-smi on the host and mend the driver",
        )
    found, driver = gpus.parse_gpus(done.stdout)
    return gpus.visible(found, host.engine.env.get("CUDA_VISIBLE_DEVICES")), driver


def disk_free(transport: Transport, path: str) -> float:
    """Free GiB where ``path`` is. Raises ``StopStudy`` when the host does not say."""
    done = transport.run(machine.disk_command(path), timeout_s=_TIMEOUT_S)
    free = machine.parse_free(done.stdout)
    if free is None:
        raise StopStudy(
            f"{transport.address}: df {path}: {done.stderr.strip() or 'nothing was printed'}", hint="is the folder's disk mounted?"
        )
    return free


def _link(found: tuple[Gpu, ...], transport: Transport) -> str:
    if len(found) <= 1:
        return "single"
    done = transport.run(topology.COMMAND, timeout_s=_TIMEOUT_S)
    return topology.link_between([gpu.index for gpu in found], done.stdout)


def _cpus(transport: Transport) -> int:
    done = transport.run(("nproc",), timeout_s=_TIMEOUT_S)
    text = done.stdout.strip()
    return int(text) if done.ok and text.isdigit() else machine.parse_cpus(_proc(transport, "/proc/cpuinfo"))


def _proc(transport: Transport, path: str) -> str:
    return transport.read(path).decode(errors="replace")


def _model(host: Host, transport: Transport) -> ModelFacts:
    def facts(path: str, text: str, files: dict[str, int]) -> ModelFacts:
        return checkpoint.model_facts(path, text, files, host.model.context_length)

    return _checkpoint(host.model.path, "model", transport, facts)


def _drafter(host: Host, transport: Transport) -> DrafterFacts | None:
    path = host.model.drafter
    return None if path is None else _checkpoint(path, "drafter", transport, checkpoint.drafter_facts)


def _checkpoint(path: str, what: str, transport: Transport, facts: Callable[[str, str, dict[str, int]], _Facts]) -> _Facts:
    """Facts from a checkpoint's folder. Raises ``StopStudy`` naming what was found instead."""
    done = transport.run(checkpoint.files_command(path), timeout_s=_TIMEOUT_S)
    if not done.ok:
        raise StopStudy(
            f"{transport.address}: {what} {path} is not there{_beside(path, transport)}",
            hint=f"correct `model:` of the host document, or copy the {what} there",
        )
    files = checkpoint.parse_files(done.stdout)
    if "config.json" not in files:
        inside = f"; it holds {', '.join(sorted(files)[:_SHOWN])}" if files else "; it is empty"
        raise StopStudy(f"{transport.address}: {what} {path} has no config.json{inside}", hint="give the folder that holds config.json")
    try:
        return facts(path, transport.read(posixpath.join(path, "config.json")).decode(errors="replace"), files)
    except ValueError as error:
        raise StopStudy(
            f"{transport.address}: {path}/config.json: {error}", hint="the file is damaged: copy the checkpoint again"
        ) from error


def _beside(path: str, transport: Transport) -> str:
    """What is in the nearest folder above that is there, the likeliest first."""
    folder, wanted = posixpath.split(path.rstrip("/"))
    while folder not in {"", "/"} and not transport.exists(folder):
        folder, wanted = posixpath.split(folder)
    done = transport.run(("ls", "-1", "--", folder or "."), timeout_s=_TIMEOUT_S)
    names = done.stdout.splitlines()
    if not done.ok or not names:
        return f"; {folder} is empty" if done.ok else ""
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    shown = [*near, *(name for name in names if name not in near)][:_SHOWN]
    return f"; {folder} holds {', '.join(shown)}{' …' if len(names) > len(shown) else ''}"
