"""The facts of a host as ``doctor`` shows them: one row a subject for people, one object for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from autotuner.model.facts import DrafterFacts, Gpu, HostFacts, ModelFacts, Weights
from autotuner.model.machine import Machine

_SHOWN_LIMITS = {"nofile": "open files", "memlock": "locked memory"}


def facts_rows(facts: HostFacts) -> dict[str, str]:
    """What decides whether results are comparable."""
    drafter = facts.drafter
    gpus = f"{len(facts.gpus)} × {facts.gpus[0].name}, {facts.gpus[0].memory_gib:.0f} GiB each" if facts.gpus else "none"
    block = "" if drafter is None else f" (block {drafter.block_size or 'unknown'}{_weights(drafter.weights, ', ')})"
    return {
        "GPUs": f"{gpus}, {facts.link}, driver {facts.driver}",
        "machine": f"{facts.cpus} CPUs, {facts.memory_gib:.0f} GiB, {facts.disk_free_gib:.0f} GiB of disk free",
        "engine": f"{facts.build.engine} {facts.build.version}, {len(facts.build.flags)} flags",
        "model": f"{facts.model.path} ({facts.model.architecture or 'unknown architecture'}{_weights(facts.model.weights, ', ')})",
        "drafter": "none" if drafter is None else f"{drafter.path}{block}",
        "fingerprint": facts.fingerprint.digest,
    }


def machine_rows(machine: Machine, facts: HostFacts | None) -> dict[str, str]:
    """The state of the machine; a row without anything to say is left out."""
    rows = {"system": _system(machine), "processors": _processors(machine), "memory": _memory(machine)}
    rows["disks"] = ", ".join(f"{disk.free_gib:.0f} GiB free for {role} ({disk.kind})" for role, disk in machine.disks.items())
    rows["limits"] = ", ".join(
        f"{_SHOWN_LIMITS.get(name, name)} {_amount(name, soft)} (at most {_amount(name, hard)})"
        for name, (soft, hard) in machine.limits.items()
    )
    if facts is None or not facts.simulated:
        rows |= {"CUDA": _cuda(machine), "links": _links(machine), "GPU state": _states(machine)}
    return {name: value for name, value in rows.items() if value}


def _system(machine: Machine) -> str:
    booted = "" if machine.booted_by_systemd else " (not booted)"
    parts = [
        machine.os,
        f"kernel {machine.kernel}" if machine.kernel else "",
        f"in {machine.virtualization}" if machine.virtualization not in {"", "none"} else "",
        f"systemd {machine.systemd}{booted}" if machine.systemd else "no systemd",
        f"cgroup v{machine.cgroups}" if machine.cgroups else "",
        f"user {machine.user}" if machine.user else "",
    ]
    return ", ".join(part for part in parts if part)


def _processors(machine: Machine) -> str:
    found = machine.processors
    governors = " and ".join(machine.governors)
    parts = [
        found.model or "",
        f"{found.count} in {found.sockets or '?'} sockets, {found.numa_nodes or '?'} NUMA nodes" if found.count else "",
        f"governor {governors}" if governors else "",
    ]
    return ", ".join(part for part in parts if part)


def _memory(machine: Machine) -> str:
    memory = machine.memory
    if not memory.total:
        return ""
    swap = f", {memory.swap_used:.1f} of {memory.swap:.0f} GiB swap used" if memory.swap else ", no swap"
    return f"{memory.available:.0f} of {memory.total:.0f} GiB available{swap}"


def _cuda(machine: Machine) -> str:
    kit, driver = machine.toolkit, machine.driver_cuda
    parts = [
        f"driver runs CUDA up to {driver[0]}.{driver[1]}" if driver else "",
        f"toolkit {kit.version[0]}.{kit.version[1]} at {kit.where}" if kit else "",
    ]
    return ", ".join(part for part in parts if part)


def _links(machine: Machine) -> str:
    """How many pairs are connected in which way, and which GPUs are near to which NUMA node."""
    pairs = Counter(how for (one, other), how in machine.links.items() if one < other)
    near: dict[str, list[str]] = {}
    for gpu, affinity in machine.affinities.items():
        if affinity.numa:
            near.setdefault(affinity.numa, []).append(str(gpu))
    told = [f"{how} × {count}" for how, count in sorted(pairs.items())]
    return "; ".join([", ".join(told), *(f"NUMA {node}: GPU {', '.join(gpus)}" for node, gpus in sorted(near.items()))]).strip("; ")


def _states(machine: Machine) -> str:
    told = []
    for state in machine.gpus:
        reasons = ", ".join(machine.clock_reasons.get(state.index, ()))
        heat = f" {state.temperature_c} °C" if state.temperature_c is not None else ""
        told.append(f"{state.index}: {state.sm_mhz or '?'}/{state.sm_max_mhz or '?'} MHz{heat}{f' ({reasons})' if reasons else ''}")
    return "; ".join(told)


def _weights(weights: Weights | None, before: str) -> str:
    if weights is None or not weights.parameters:
        return ""
    kinds = ", ".join(f"{dtype} {count / weights.parameters:.0%}" for dtype, count in _most(weights))
    return f"{before}{weights.parameters / 1e9:.2f} G elements in {weights.files} files: {kinds}"


def _most(weights: Weights) -> list[tuple[str, int]]:
    return sorted(weights.elements.items(), key=lambda item: -item[1])


def _amount(name: str, value: int | None) -> str:
    if value is None:
        return "unlimited"
    return f"{value >> 10} KiB" if name == "memlock" else str(value)


def weights_object(facts: ModelFacts | DrafterFacts) -> dict[str, object]:
    """A checkpoint for programs."""
    weights = facts.weights
    return {
        "path": facts.path,
        "weights_gib": facts.weights_gib,
        "digest": facts.digest,
        "files": None if weights is None else weights.files,
        "bytes": None if weights is None else weights.bytes,
        "elements": None if weights is None else dict(_most(weights)),
        "problems": [] if weights is None else list(weights.problems),
    }


def machine_object(machine: Machine, gpus: Sequence[Gpu]) -> dict[str, object]:
    """A machine for programs: as its class says, but with what belongs to one GPU in one place, and pairs as ``0-1``."""
    told = asdict(machine)
    for name in ("gpus", "clock_reasons", "affinities", "process_units"):
        told.pop(name)
    known = {gpu.index: gpu for gpu in gpus}
    told["links"] = {f"{one}-{other}": how for (one, other), how in machine.links.items() if one < other}
    told["processes"] = [asdict(process) | {"unit": machine.process_units.get(process.pid)} for process in machine.processes]
    told["gpus"] = [
        (asdict(known[state.index]) if state.index in known else {})
        | asdict(state)
        | {"clock_reasons": list(machine.clock_reasons.get(state.index, ()))}
        | (asdict(machine.affinities[state.index]) if state.index in machine.affinities else {})
        for state in machine.gpus
    ]
    return told
