"""GPUs: what the driver reports, which of them the engine may see, and who uses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotuner.errors import StopStudy
from autotuner.model.facts import Gpu

FACTS_COMMAND = ("nvidia-smi", "--query-gpu=index,name,memory.total,compute_cap,driver_version,uuid", "--format=csv,noheader,nounits")
MEMORY_COMMAND = ("nvidia-smi", "--query-gpu=uuid,memory.used", "--format=csv,noheader,nounits")
PROCESSES_COMMAND = ("nvidia-smi", "--query-compute-apps=pid,process_name,used_memory,gpu_uuid", "--format=csv,noheader,nounits")

_MIB_PER_GIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    name: str
    memory_mib: int | None
    """``None`` where the driver does not say (inside some containers)."""
    gpu: str
    """UUID of the GPU."""


def parse_gpus(text: str) -> tuple[tuple[Gpu, ...], str]:
    """GPUs in index order, and the driver's version, from the output of ``FACTS_COMMAND``.

    Raises ``StopStudy`` for a line that is not understood: a driver too old for a field, or a GPU that fell off the bus.
    """
    gpus: list[Gpu] = []
    driver = "none"
    for row in _rows(text):
        try:
            index, name, memory, capability, driver, uuid = row
            major, minor = capability.split(".")
            memory_gib = round(float(memory) / _MIB_PER_GIB, 2)
            gpus.append(Gpu(index=int(index), name=name, memory_gib=memory_gib, sm=int(major) * 10 + int(minor), uuid=uuid))
        except ValueError as error:
            raise StopStudy(
                f"nvidia-smi: not understood: {', '.join(row)}", hint="run nvidia-smi on the host: the driver or a GPU may be in trouble"
            ) from error
    return tuple(sorted(gpus, key=lambda gpu: gpu.index)), driver


def visible(gpus: Sequence[Gpu], wanted: str | None) -> tuple[Gpu, ...]:
    """The GPUs that an engine with this ``CUDA_VISIBLE_DEVICES`` sees, in its order; all of them when it is not set.

    As CUDA does it, the list ends at the first entry that names no GPU.
    """
    if wanted is None:
        return tuple(gpus)
    found: list[Gpu] = []
    for entry in (part.strip() for part in wanted.split(",")):
        match = next((gpu for gpu in gpus if entry and (str(gpu.index) == entry or (len(entry) > 4 and gpu.uuid.startswith(entry)))), None)
        if match is None:
            break
        found.append(match)
    return tuple(found)


def parse_processes(text: str) -> tuple[GpuProcess, ...]:
    """Processes with GPU memory, from the output of ``PROCESSES_COMMAND``; lines of another kind are passed over."""
    found: list[GpuProcess] = []
    for row in _rows(text):
        if len(row) >= 4 and row[0].isdecimal():  # the name may hold commas
            memory = int(row[-2]) if row[-2].isdecimal() else None
            found.append(GpuProcess(pid=int(row[0]), name=", ".join(row[1:-2]), memory_mib=memory, gpu=row[-1]))
    return tuple(found)


def parse_memory(text: str) -> dict[str, int]:
    """UUID → MiB in use, from the output of ``MEMORY_COMMAND``; a GPU that does not say is left out."""
    return {row[0]: int(row[1]) for row in _rows(text) if len(row) == 2 and row[1].isdecimal()}


def _rows(text: str) -> list[list[str]]:
    """nvidia-smi separates by commas and quotes nothing."""
    return [[field.strip() for field in line.split(",")] for line in text.splitlines() if line.strip()]
