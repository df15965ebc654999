"""The files of a bench: ``result.json``, ``result.csv`` and the requests of every point, whole after each of them."""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import autotuner
from autotuner import disk
from autotuner.bench.endpoint import Endpoint
from autotuner.bench.plan import BenchPlan
from autotuner.bench.session import BenchCell
from autotuner.errors import UsageError
from autotuner.model.measurement import METRICS
from autotuner.records import request_row

SCHEMA = 1
"""Of ``result.json``; goes up when a reader of an older one would misread it."""
RESULT = "result.json"
TABLE = "result.csv"
REQUESTS = "requests"


class ResultFolder:
    """Where a bench writes. Raises ``UsageError`` when it holds another result."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if (folder / RESULT).exists():
            raise UsageError(f"{folder} holds the result of another bench", hint="give another folder with --out")

    def make(self) -> None:
        """Make it, and see that there is room. Raises ``AutotunerError`` when it cannot be written."""
        with disk.refusals("write", self.folder):
            (self.folder / REQUESTS).mkdir(parents=True, exist_ok=True)
            disk.probe(self.folder)

    def write_requests(self, cell: BenchCell) -> None:
        """Keep the requests of a point: one JSON object per line, compressed."""
        rows = "".join(json.dumps(request_row(record), separators=(",", ":"), ensure_ascii=False) + "\n" for record in cell.records)
        path = self.folder / REQUESTS / f"{cell.point.key}.jsonl.gz"
        with disk.refusals("write", path):
            disk.replace(path, gzip.compress(rows.encode("utf-8", "replace"), compresslevel=3, mtime=0))

    def write_result(self, found: dict[str, Any], cells: Sequence[BenchCell]) -> None:
        """Write result and table anew."""
        for name, text in ((RESULT, json.dumps(found, indent=2, ensure_ascii=False) + "\n"), (TABLE, csv_text(cells))):
            path = self.folder / name
            with disk.refusals("write", path):
                disk.replace(path, text.encode("utf-8", "replace"))


def result_object(
    plan: BenchPlan, endpoint: Endpoint, cells: Sequence[BenchCell], *, started: dt.datetime, interrupted: bool = False
) -> dict[str, Any]:
    """Everything that was found, as plain values. No key is in it."""
    return {
        "schema": SCHEMA,
        "autotuner": autotuner.__version__,
        "label": plan.label,
        "url": endpoint.base_url,
        "path": endpoint.path,
        "model": endpoint.model,
        "engine": endpoint.engine,
        "notes": list(endpoint.notes),
        "load_floor": plan.load_floor,
        "started": started.isoformat(timespec="seconds"),
        "sampling": plan.sampling.model_dump(mode="json"),
        "prompts": _prompts(plan),
        "interrupted": interrupted,
        "planned": len(plan.points),
        "cells": [_cell(cell) for cell in cells],
    }


def _prompts(plan: BenchPlan) -> dict[str, Any]:
    prompts = plan.prompts
    if prompts.sized:
        return {"domains": list(prompts.domains), "seed": prompts.seed}
    return {"file": getattr(prompts, "path", None), "sha256": getattr(prompts, "digest", None), "nonce": getattr(prompts, "nonce", True)}


def _cell(cell: BenchCell) -> dict[str, Any]:
    result = dataclasses.asdict(dataclasses.replace(cell.result, warnings=()))
    context = cell.point.cell.context if cell.lengths is not None else None
    return {
        **{key: value for key, value in result.items() if key not in {"metrics", "warnings", "batch_means", "context"}},
        "load": cell.point.load,
        "rate": cell.point.rate,
        "context": context,
        "valid": cell.valid,
        "metrics": {
            name: {"value": value, **({"low": span.low, "high": span.high, "level": span.level} if span is not None else {})}
            for name, value in cell.result.metrics.items()
            for span in (cell.intervals.get(name),)
        },
        "batch_means": list(cell.result.batch_means),
        "prompt_lengths": None if cell.lengths is None else dataclasses.asdict(cell.lengths),
        "open_loop": None if cell.open_loop is None else dataclasses.asdict(cell.open_loop),
        "elapsed_s": cell.elapsed_s,
        "warnings": list(cell.warnings),
    }


def csv_text(cells: Sequence[BenchCell]) -> str:
    """One row per point; every metric, with the ends of its interval where any point has one."""
    head = ["key", "load", "rate", "context", "concurrency", "output_tokens", "window_s", "requests", "failed", "steady", "valid"]
    head += ["prompt_tokens_p50", "prompts_missed", "clock"]
    names = [name for name in METRICS if any(name in cell.result.metrics for cell in cells)]
    sure = {name for cell in cells for name in cell.intervals}
    ends = {name: ("", "_low", "_high") if name in sure else ("",) for name in names}
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([*head, *(f"{name}{end}" for name in names for end in ends[name]), "warnings"])
    for cell in cells:
        result, client = cell.result, cell.result.client
        row: list[object] = [result.key, cell.point.load, cell.point.rate, cell.point.cell.context if cell.lengths else None]
        row += [result.concurrency, result.output_tokens, round(result.window_s, 3), result.requests, result.failed]
        row += [result.steady, cell.valid, result.prompt_tokens_p50, cell.lengths.missed if cell.lengths else None]
        row.append(None if client is None else client.clock)
        for name in names:
            span = cell.intervals.get(name)
            values = [result.metrics.get(name), None if span is None else span.low, None if span is None else span.high]
            row += values[: len(ends[name])]
        rows.writerow([*("" if value is None else value for value in row), "; ".join(cell.warnings)])
    return text.getvalue()
