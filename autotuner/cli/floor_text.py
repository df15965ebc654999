"""The load generator's self-test in words: a table, and one verdict as a check of the doctor."""

from __future__ import annotations

import dataclasses
from typing import Any

from autotuner.bench.floor import FILE, Floor
from autotuner.model.recommendation import Check

_HEAD = ("C", "chunks/s", "lag p50", "p99", "max (ms)", "CPU/chunk", "")


def floor_check(floor: Floor) -> Check:
    """The verdict: whether the wanted concurrency can be measured from this machine."""
    if floor.holds:
        return Check(name="load-generator", status="pass", detail=floor.sentence)
    point = floor.points[-1]
    detail = f"{floor.sentence}. At {point.concurrency}: {'; '.join(point.invalid)}"
    hint = "free this machine's processors and try again, drive the load from another one (`load: {source: host}`), or ask for less at once"
    return Check(name="load-generator", status="fail", detail=detail, hint=hint)


def floor_lines(floor: Floor) -> list[str]:
    """What was found at each concurrency."""
    stamps = "kernel stamps" if floor.clock == "kernel" else "the client's own stamps"
    rows: list[tuple[str, ...]] = [_HEAD]
    for point in floor.points:
        lags = (point.lag_p50_ms, point.lag_p99_ms, point.lag_max_ms)
        cost = "–" if point.cpu_us_per_chunk is None else f"{point.cpu_us_per_chunk:.0f} µs"
        told = ["–" if lag is None else f"{lag:.2f}" for lag in lags]
        rows.append((str(point.concurrency), f"{point.chunks_s:.0f}", *told, cost, "valid" if point.valid else "NOT VALID"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [f"load generator on {floor.machine}, {floor.cpus} CPUs, {stamps}; kept in {FILE} of the state folder", *table]


def floor_object(floor: Floor) -> dict[str, Any]:
    """The same as plain values."""
    return {**dataclasses.asdict(floor), "highest_valid": floor.highest_valid, "holds": floor.holds}
