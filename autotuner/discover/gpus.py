"""GPUs: what the driver reports, which of them the engine may see, and who uses them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from autotuner.errors import StopStudy
from autotuner.model.facts import Gpu
from autotuner.model.machine import GpuProcess, GpuState, MigDevice

FACTS_COMMAND = ("nvidia-smi", "--query-gpu=index,name,memory.total,compute_cap,driver_version,uuid", "--format=csv,noheader,nounits")
MEMORY_COMMAND = ("nvidia-smi", "--query-gpu=uuid,memory.used", "--format=csv,noheader,nounits")
PROCESSES_COMMAND = ("nvidia-smi", "--query-compute-apps=pid,process_name,used_memory,gpu_uuid", "--format=csv,noheader,nounits")
_STATES = (
    "index,pci.bus_id,persistence_mode,mig.mode.current,ecc.errors.uncorrected.volatile.total,"
    "clocks.current.sm,clocks.max.sm,temperature.gpu,power.draw,power.limit"
)
STATES_COMMAND = ("nvidia-smi", f"--query-gpu={_STATES}", "--format=csv,noheader,nounits")
REASONS_COMMAND = ("nvidia-smi", "--query-gpu=index,clocks_event_reasons.active", "--format=csv,noheader,nounits")
OLD_REASONS_COMMAND = ("nvidia-smi", "--query-gpu=index,clocks_throttle_reasons.active", "--format=csv,noheader,nounits")
"""The name of the same field on drivers before 535."""
LIST_COMMAND = ("nvidia-smi", "-L")

_MIB_PER_GIB = 1024
_REASONS = {
    0x1: "idle",
    0x2: "application-clocks",
    0x4: "power-cap",
    0x8: "hardware-slowdown",
    0x10: "sync-boost",
    0x20: "software-thermal",
    0x40: "hardware-thermal",
    0x80: "power-brake",
    0x100: "display-clocks",
}
_HEX = re.compile(r"^0x[0-9a-fA-F]{1,16}$")
_GPU_LINE = re.compile(r"^GPU (\d{1,9}):")
_MIG_LINE = re.compile(r"^\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)\s]+)\)")
_MIG_MEMORY = re.compile(r"(\d{1,6})gb")


def parse_gpus(text: str) -> tuple[tuple[Gpu, ...], str]:
    """GPUs in index order, and the driver's version, from the output of ``FACTS_COMMAND``.

    Raises ``StopStudy`` for a line that is not understood: a driver too old for a field, or a GPU that fell off the bus.
    """
    gpus: list[Gpu] = []
    driver = "none"
    for row in rows(text):
        try:
            index, name, memory, capability, driver, uuid = row
            major, minor = capability.split(".")
            memory_gib = round(float(memory) / _MIB_PER_GIB, 2)
            gpus.append(Gpu(index=int(index), name=name, memory_gib=memory_gib, sm=int(major) * 10 + int(minor), uuid=uuid))
        except ValueError as error:
            raise StopStudy(f"nvidia-smi: not understood: {', '.join(row)}", hint=_driver_hint(text)) from error
    return tuple(sorted(gpus, key=lambda gpu: gpu.index)), driver


def answered(text: str, returncode: int | None) -> tuple[tuple[Gpu, ...], str]:
    """As ``parse_gpus``, of a command that ended with ``returncode`` (``None``: it did not end). Raises ``StopStudy`` with what it said."""
    if returncode is None:
        raise StopStudy("nvidia-smi was not asked to its end", hint="run nvidia-smi on the host: does it hang?")
    if returncode != 0:
        said = text.strip().splitlines()
        raise StopStudy(f"nvidia-smi failed: {said[0] if said else f'it ended with {returncode}'}", hint=_driver_hint(text))
    return parse_gpus(text)


def _driver_hint(text: str) -> str:
    if "version mismatch" in text:
        return "the driver was updated while its old kernel module is loaded: reboot the host"
    if "couldn't communicate" in text:
        return "the driver's kernel module is not loaded: look at `dkms status` and `dmesg`, then install the driver again"
    if "No devices were found" in text:
        return "the driver sees no GPU: look at `lspci` and `dmesg`; in a container, was it started with its GPUs?"
    return "run nvidia-smi on the host: the driver or a GPU may be in trouble"


def visible(gpus: Sequence[Gpu], wanted: str | None, devices: Sequence[MigDevice] = ()) -> tuple[Gpu, ...]:
    """The GPUs that an engine with this ``CUDA_VISIBLE_DEVICES`` sees, in its order; all of them when it is not set.

    As CUDA does it, the list ends at the first entry that names no GPU. A MIG device counts as a GPU with the memory of its profile.
    """
    if wanted is None:
        return tuple(gpus)
    parts = [_part(device, gpus) for device in devices if any(gpu.index == device.parent for gpu in gpus)]
    found: list[Gpu] = []
    for entry in (part.strip() for part in wanted.split(",")):
        match = next((gpu for gpu in (*gpus, *parts) if entry and _names(entry, gpu)), None)
        if match is None:
            break
        found.append(match)
    return tuple(found)


def names_mig(wanted: str | None) -> bool:
    """Whether this ``CUDA_VISIBLE_DEVICES`` names MIG devices."""
    return wanted is not None and any(entry.strip().startswith("MIG-") for entry in wanted.split(","))


def _names(entry: str, gpu: Gpu) -> bool:
    by_index = str(gpu.index) == entry and not gpu.uuid.startswith("MIG-")
    return by_index or (len(entry) > 4 and gpu.uuid.startswith(entry))


def _part(device: MigDevice, gpus: Sequence[Gpu]) -> Gpu:
    parent = next(gpu for gpu in gpus if gpu.index == device.parent)
    memory = _MIG_MEMORY.search(device.profile)
    memory_gib = float(memory[1]) if memory else parent.memory_gib
    return Gpu(index=parent.index, name=f"{parent.name} MIG {device.profile}", memory_gib=memory_gib, sm=parent.sm, uuid=device.uuid)


def parse_mig_devices(text: str) -> tuple[MigDevice, ...]:
    """MIG devices in order, from the output of ``LIST_COMMAND``; none where MIG is off."""
    found: list[MigDevice] = []
    parent = -1
    for line in text.splitlines():
        gpu, device = _GPU_LINE.match(line), _MIG_LINE.match(line)
        if gpu is not None:
            parent = int(gpu[1])
        elif device is not None and parent >= 0:
            found.append(MigDevice(uuid=device[2], profile=device[1], parent=parent))
    return tuple(found)


def parse_states(text: str) -> tuple[GpuState, ...]:
    """The state of every GPU, from the output of ``STATES_COMMAND``; lines of another kind are passed over."""
    return tuple(
        GpuState(
            index=int(row[0]),
            bus=row[1],
            persistence=_switch(row[2]),
            mig=_switch(row[3]),
            ecc_uncorrected=integer(row[4]),
            sm_mhz=integer(row[5]),
            sm_max_mhz=integer(row[6]),
            temperature_c=integer(row[7]),
            power_w=decimal(row[8]),
            power_limit_w=decimal(row[9]),
        )
        for row in rows(text)
        if len(row) == 10 and integer(row[0]) is not None
    )


def parse_reasons(text: str) -> Mapping[int, tuple[str, ...]]:
    """GPU index → why its clocks are not at their highest, from the output of ``REASONS_COMMAND``; a GPU that does not say is left out."""
    return {
        int(row[0]): reasons
        for row in rows(text)
        if len(row) == 2 and integer(row[0]) is not None and (reasons := reasons_of(row[1])) is not None
    }


def reasons_of(word: str) -> tuple[str, ...] | None:
    """The reasons that a bit mask stands for; ``None`` for what is no mask (``[N/A]``)."""
    return tuple(name for bit, name in _REASONS.items() if int(word, 16) & bit) if _HEX.match(word) else None


def parse_processes(text: str) -> tuple[GpuProcess, ...]:
    """Processes with GPU memory, from the output of ``PROCESSES_COMMAND``; lines of another kind are passed over."""
    return tuple(
        GpuProcess(pid=int(row[0]), name=", ".join(row[1:-2]), memory_mib=integer(row[-2]), gpu=row[-1])  # the name may hold commas
        for row in rows(text)
        if len(row) >= 4 and integer(row[0]) is not None
    )


def parse_memory(text: str) -> dict[str, int]:
    """UUID → MiB in use, from the output of ``MEMORY_COMMAND``; a GPU that does not say is left out."""
    return {row[0]: int(row[1]) for row in rows(text) if len(row) == 2 and integer(row[1]) is not None}


def rows(text: str) -> list[list[str]]:
    """nvidia-smi separates by commas and quotes nothing."""
    return [[field.strip() for field in line.split(",")] for line in text.splitlines() if line.strip()]


def _switch(word: str) -> bool | None:
    """``None`` for ``[N/A]``, ``[Not Supported]`` and every other word."""
    return {"Enabled": True, "Disabled": False}.get(word)


def integer(word: str) -> int | None:
    """``None`` for ``[N/A]``, ``[Not Supported]`` and every other word."""
    return int(word) if re.fullmatch(r"[0-9]{1,18}", word) else None


def decimal(word: str) -> float | None:
    """``None`` for every word that is no plain decimal number."""
    return float(word) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", word) else None
