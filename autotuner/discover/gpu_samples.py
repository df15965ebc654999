"""What nvidia-smi says again and again while a cell is measured, and what that means for it. Pure: lines in, reports out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean

from autotuner.discover.gpus import decimal, integer, reasons_of, rows
from autotuner.model.measurement import GpuReport

_FIELDS = "index,uuid,power.draw,clocks.current.sm,temperature.gpu,utilization.gpu,memory.used"
QUERIES = (f"{_FIELDS},clocks_event_reasons.active", f"{_FIELDS},clocks_throttle_reasons.active")
"""Fields of a sample; the second names the last one as drivers before 535 do."""
APPS_QUERY = "pid,gpu_uuid"

CLOCK_STEP = 0.1
"""A GPU whose clock differs by more than this share between the halves of a window was not the same GPU in both."""
_SLOWED = {
    "hardware-slowdown": "the hardware slowed it down",
    "hardware-thermal": "it was too hot",
    "software-thermal": "it was too hot",
    "power-brake": "its power supply held it back",
}
"""Reasons that a sound GPU under load does not have. One at its power limit is sound."""
_CALM = {"idle", "application-clocks", "display-clocks"}
_FEWEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU at a moment of CLOCK_MONOTONIC; ``None`` for what the driver does not say."""

    at_ns: int
    index: int
    uuid: str
    power_w: float | None
    sm_mhz: float | None
    temperature_c: float | None
    utilization: float | None
    memory_mib: float | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSample:
    """A process on a GPU at a moment of CLOCK_MONOTONIC."""

    at_ns: int
    pid: int
    gpu: str


def parse_line(line: str, at_ns: int) -> GpuSample | AppSample | None:
    """One line of either query, heard at ``at_ns``; ``None`` for a line of any other kind, or one that was cut short."""
    row = next(iter(rows(line)), [])
    if len(row) == 2 and integer(row[0]) is not None and row[1].startswith("GPU-"):
        return AppSample(at_ns=at_ns, pid=int(row[0]), gpu=row[1])
    if len(row) != 8 or integer(row[0]) is None or not row[1].startswith("GPU-"):
        return None
    share = decimal(row[5])
    return GpuSample(
        at_ns=at_ns,
        index=int(row[0]),
        uuid=row[1],
        power_w=decimal(row[2]),
        sm_mhz=decimal(row[3]),
        temperature_c=decimal(row[4]),
        utilization=None if share is None else share / 100,
        memory_mib=decimal(row[6]),
        reasons=reasons_of(row[7]) or (),
    )


def gpu_reports(samples: Sequence[GpuSample], foreign: Collection[AppSample]) -> tuple[GpuReport, ...]:
    """A report for every GPU that was seen, in order of their index. ``foreign`` are processes that are not the server's."""
    return tuple(
        GpuReport(
            index=index,
            power_w=_mean([sample.power_w for sample in mine]),
            sm_clock_mhz=_mean([sample.sm_mhz for sample in mine]),
            temperature_c=_highest([sample.temperature_c for sample in mine]),
            utilization=_mean([sample.utilization for sample in mine]),
            memory_mib=_highest([sample.memory_mib for sample in mine]),
            throttled=tuple(sorted({reason for sample in mine for reason in sample.reasons} - _CALM)),
            foreign_pids=tuple(sorted({app.pid for app in foreign if app.gpu == mine[0].uuid})),
        )
        for index, mine in _by_gpu(samples)
    )


def spoilt(samples: Sequence[GpuSample], reports: Sequence[GpuReport]) -> tuple[str, ...]:
    """A sentence for everything that made the GPUs others than those of an undisturbed window."""
    found: list[str] = []
    told = {report.index: report for report in reports}
    for index, mine in _by_gpu(samples):
        slowed = [sample for sample in mine if set(sample.reasons) & set(_SLOWED)]
        why = dict.fromkeys(_SLOWED[reason] for sample in slowed for reason in sample.reasons if reason in _SLOWED)
        if slowed:
            heat = _highest([sample.temperature_c for sample in slowed])
            hot = "" if heat is None else f" ({heat:.0f} °C)"
            found.append(f"GPU {index} was throttled in {len(slowed)} of {len(mine)} samples: {' and '.join(why)}{hot}")
        step = _clock_step(mine)
        if step is not None:
            found.append(f"the clock of GPU {index} went from {step[0]:.0f} to {step[1]:.0f} MHz within the window")
        pids = told[index].foreign_pids if index in told else ()
        if pids:
            many = "processes" if len(pids) > 1 else "process"
            found.append(f"GPU {index} had another tenant: {many} {', '.join(map(str, pids))}, not of this server")
    return tuple(found)


def _clock_step(mine: Sequence[GpuSample]) -> tuple[float, float] | None:
    """Mean clock of the two halves of what was sampled while it worked, where they differ by too much."""
    clocks = [sample.sm_mhz for sample in mine if sample.sm_mhz is not None and "idle" not in sample.reasons]
    if len(clocks) < _FEWEST:
        return None
    half = len(clocks) // 2
    first, second = fmean(clocks[:half]), fmean(clocks[half:])
    return (first, second) if abs(first - second) > CLOCK_STEP * max(first, second) else None


def _by_gpu(samples: Sequence[GpuSample]) -> list[tuple[int, list[GpuSample]]]:
    found: dict[int, list[GpuSample]] = {}
    for sample in samples:
        found.setdefault(sample.index, []).append(sample)
    return sorted(found.items())


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _highest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
