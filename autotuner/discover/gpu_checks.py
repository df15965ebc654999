"""What the GPUs' state says against tuning on them. Pure: facts in, checks out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from autotuner.discover.gpus import names_mig
from autotuner.discover.toolkit import mismatches, shown
from autotuner.model.facts import Gpu
from autotuner.model.host import Host
from autotuner.model.machine import GpuProcess, GpuState, Machine
from autotuner.model.recommendation import Check

SLOW_SHARE = 0.6
"""A busy GPU whose clock is below this share of its highest, without a reason, is held down by a setting."""

_SLOWED = {
    "hardware-slowdown": "the hardware slows it down",
    "hardware-thermal": "it is too hot",
    "software-thermal": "it is too hot",
    "power-brake": "its power supply holds it back",
}


def gpu_checks(host: Host, gpus: Sequence[Gpu], link: str | None, driver: str, machine: Machine) -> tuple[Check, ...]:
    """One check a subject for the GPUs that the engine will see."""
    states = [state for state in machine.gpus if any(gpu.index == state.index for gpu in gpus)] or list(machine.gpus)
    found = [_present(gpus, link, driver), *_mig(host, states), *_memory_errors(states), *_persistence(states)]
    return (*found, *_toolkit(gpus, driver, machine))


def _present(gpus: Sequence[Gpu], link: str | None, driver: str) -> Check:
    if not gpus:
        return Check(
            name="gpus", status="fail", detail="no NVIDIA GPU was found", hint="is the driver installed? run nvidia-smi on the host"
        )
    first = gpus[0]
    names = sorted({gpu.name for gpu in gpus})
    if len(names) > 1:
        hint = "set CUDA_VISIBLE_DEVICES in engine.env to those of one kind"
        return Check(name="gpus", status="warning", detail=f"GPUs of several kinds: {', '.join(names)}", hint=hint)
    how = f", {link}" if link else ""
    detail = f"{len(gpus)} × {first.name}, {first.memory_gib:.0f} GiB{how}, driver {driver}"
    return Check(name="gpus", status="pass", detail=detail)


def _mig(host: Host, states: Sequence[GpuState]) -> Iterable[Check]:
    on = _which(states, lambda state: state.mig is True)
    if on and not names_mig(host.engine.env.get("CUDA_VISIBLE_DEVICES")):
        yield Check(
            name="mig",
            status="fail",
            detail=f"{on} divided into MIG devices: the engine would see a part of each",
            hint="switch MIG off (nvidia-smi -mig 0), or name the devices in CUDA_VISIBLE_DEVICES of engine.env (MIG-…, see nvidia-smi -L)",
        )


def _memory_errors(states: Sequence[GpuState]) -> Iterable[Check]:
    bad = [state for state in states if state.ecc_uncorrected]
    if bad:
        told = ", ".join(f"GPU {state.index}: {state.ecc_uncorrected}" for state in bad)
        yield Check(
            name="gpu-memory-errors",
            status="fail",
            detail=f"uncorrectable memory errors since the driver was loaded: {told}",
            hint="reset the GPU (nvidia-smi -r -i INDEX) or reboot; when they come back, have it replaced",
        )


def _persistence(states: Sequence[GpuState]) -> Iterable[Check]:
    off = _which(states, lambda state: state.persistence is False)
    if off:
        yield Check(
            name="persistence",
            status="warning",
            detail=f"{off} without persistence mode: the driver is loaded anew for every launch",
            hint="nvidia-smi -pm 1, or enable nvidia-persistenced.service",
        )


def clock_checks(gpus: Sequence[Gpu], machine: Machine) -> tuple[Check, ...]:
    """Whether the GPUs are slowed down now. Sound are an idle GPU at low clocks, and one at its power limit."""
    slowed, slow = [], []
    for state in machine.gpus:
        if gpus and all(gpu.index != state.index for gpu in gpus):
            continue
        reasons = machine.clock_reasons.get(state.index, ())
        why = [_SLOWED[reason] for reason in reasons if reason in _SLOWED]
        clock = f"GPU {state.index} at {state.sm_mhz or '?'} of {state.sm_max_mhz or '?'} MHz"
        if why:
            heat = f" ({state.temperature_c} °C)" if state.temperature_c is not None else ""
            slowed.append(f"{clock}: {' and '.join(dict.fromkeys(why))}{heat}")
        elif state.index in machine.clock_reasons and _held_down(state, reasons):
            slow.append(clock)
    if slowed:
        hint = "look after cooling and power supply (nvidia-smi -q -d PERFORMANCE): what is measured now is another, slower GPU"
        return (Check(name="gpu-clocks", status="warning", detail="; ".join(slowed), hint=hint),)
    if slow:
        hint = "undo a limit that was set by hand: nvidia-smi -rgc and nvidia-smi -rac"
        return (
            Check(name="gpu-clocks", status="warning", detail=f"far below their highest clock while busy: {'; '.join(slow)}", hint=hint),
        )
    if not machine.clock_reasons:
        return ()
    return (Check(name="gpu-clocks", status="pass", detail="no GPU is slowed down"),)


def _held_down(state: GpuState, reasons: Sequence[str]) -> bool:
    if {"idle", "power-cap", "sync-boost"} & set(reasons) or state.sm_mhz is None or not state.sm_max_mhz:
        return False
    return state.sm_mhz < SLOW_SHARE * state.sm_max_mhz


def process_checks(machine: Machine, ours: frozenset[int], units: frozenset[str]) -> tuple[Check, ...]:
    """Foreign processes on the GPUs: those that are neither among ``ours`` (pids) nor of one of ``units``."""

    def foreign(process: GpuProcess) -> bool:
        unit = machine.process_units.get(process.pid)
        return process.pid not in ours and unit not in units

    found = [process for process in machine.processes if foreign(process)]
    if not found:
        return (Check(name="gpu-processes", status="pass", detail="no foreign process uses a GPU"),)
    named = ", ".join(
        f"{process.name} (pid {process.pid}{_of(machine, process)}, {'?' if process.memory_mib is None else process.memory_mib} MiB)"
        for process in found
    )
    seen = all(process.pid in machine.process_units for process in found)
    return (
        Check(
            name="gpu-processes",
            status="fail" if seen else "warning",
            detail=f"foreign processes use the GPUs: {named}",
            hint="stop them: what they take changes every number" if seen else "they run outside of this container: check on its host",
        ),
    )


def _of(machine: Machine, process: GpuProcess) -> str:
    unit = machine.process_units.get(process.pid)
    return f" of {unit}" if unit and unit.endswith(".service") else ""


def _toolkit(gpus: Sequence[Gpu], driver: str, machine: Machine) -> Iterable[Check]:
    kit = machine.toolkit
    if kit is None or not kit.compiler:
        where = f"nvcc was not found (CUDA {shown(kit.version)} without its compiler at {kit.where})" if kit else "nvcc was not found"
        hint = "only some kernels need it; if a launch fails with CUDA_HOME or nvcc in its log, install the toolkit of the driver's version"
        yield Check(name="cuda-toolkit", status="warning", detail=where, hint=hint)
        return
    wrong = tuple(mismatches(kit, driver, machine.driver_cuda, frozenset(gpu.sm for gpu in gpus)))
    for detail, hint in wrong:
        yield Check(name="cuda-toolkit", status="warning", detail=detail, hint=hint)
    if not wrong:
        yield Check(name="cuda-toolkit", status="pass", detail=f"CUDA {shown(kit.version)} at {kit.where}")


def _which(states: Sequence[GpuState], condition: Callable[[GpuState], bool]) -> str:
    """``GPU 1 is``, ``GPUs 0, 3 are``, ``all GPUs are``; empty for none."""
    found = [str(state.index) for state in states if condition(state)]
    if not found:
        return ""
    if len(found) == len(states) > 1:
        return "all GPUs are"
    return f"GPU {found[0]} is" if len(found) == 1 else f"GPUs {', '.join(found)} are"
