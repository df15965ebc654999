"""The load generator's own floor on this machine, and how it is kept: what no measurement from here can resolve. Pure but for its file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from autotuner import disk

FILE = "self-test.json"
"""In the state folder."""
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorPoint:
    """One concurrency; times in milliseconds, shares 0 to 1, all over the steady window."""

    concurrency: int
    chunks_s: float
    """Chunks per second of all streams together."""
    lag_p50_ms: float | None
    """From the kernel's receive stamp to the read in user space; ``None`` without kernel stamps."""
    lag_p99_ms: float | None
    lag_max_ms: float | None
    cpu: float
    """CPU seconds per second of the busiest process of the load generator."""
    cpu_us_per_chunk: float | None
    """CPU of all its processes for one chunk, if each were as busy as the busiest: at most."""
    coalesced: float
    invalid: tuple[str, ...] = ()
    """Limits that were broken at every attempt."""

    @property
    def valid(self) -> bool:
        """Whether a measurement at this concurrency would have counted."""
        return not self.invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What the self-test of one machine found."""

    machine: str
    cpus: int
    at: str
    """ISO 8601, UTC."""
    tool: str
    clock: str
    """``kernel`` or ``user``: whose stamps the answers carry."""
    wanted: int
    points: tuple[FloorPoint, ...]
    """Lowest concurrency first."""
    schema: int = SCHEMA

    @property
    def highest_valid(self) -> int | None:
        """The highest concurrency up to which everything was valid."""
        found: int | None = None
        for point in self.points:
            if not point.valid:
                break
            found = point.concurrency
        return found

    @property
    def holds(self) -> bool:
        """Whether the wanted concurrency can be measured from here."""
        return self.highest_valid == self.wanted

    @property
    def sentence(self) -> str:
        """All that evidence needs to say."""
        highest = self.highest_valid
        when = f"self-test of {self.at[:10]} on {self.machine}"
        if highest is None:
            return f"{when}: the load generator is not valid at any concurrency"
        point = next(point for point in self.points if point.concurrency == highest)
        lag = "no kernel stamps" if point.lag_p99_ms is None else f"read lag p99 {point.lag_p99_ms:.2f} ms"
        cost = "" if point.cpu_us_per_chunk is None else f", {point.cpu_us_per_chunk:.0f} µs of CPU per chunk"
        beyond = "" if self.holds else f"; not at {self.wanted}"
        return f"{when}: valid up to {highest} concurrent requests ({lag}{cost}, {point.chunks_s:.0f} chunks/s){beyond}"


_FLOOR = TypeAdapter(Floor)


def write_floor(folder: Path, floor: Floor) -> Path:
    """Keep it as evidence. Raises ``AutotunerError`` when the folder cannot be written."""
    path = folder / FILE
    with disk.refusals("write", path):
        folder.mkdir(parents=True, exist_ok=True)
        disk.replace(path, _FLOOR.dump_json(floor, indent=1) + b"\n")
    return path


def read_floor(folder: Path) -> Floor | None:
    """What the latest self-test found; ``None`` when there was none, or its file is not one of this version."""
    try:
        found = _FLOOR.validate_json((folder / FILE).read_bytes())
    except (OSError, ValidationError):
        return None
    return found if found.schema == SCHEMA else None
