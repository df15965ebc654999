"""Results of cells: one line of JSON each while they run, then one document and the table of docs/reliability.md."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.hosts.matrix.cells import CELLS, CODES, PHASES, TABLE, name
from tests.hosts.matrix.oracle import lost_results
from tests.hosts.matrix.scene import Scene
from tests.hosts.matrix.virtual_faults import VIRTUAL, VIRTUAL_CELLS

FOLDER = os.environ.get("AUTOTUNER_MATRIX_RESULTS")
"""Where results are kept; nowhere when it is not set. Read when the module is loaded: the tests' own environment is cleaned later."""


def keep(kind: str, cell: str, scene: Scene, violations: Iterable[str], **more: object) -> None:
    """Keep the result of one cell."""
    found = {
        "violations": list(violations),
        "restored_s": scene.restored_s,
        "exit_code": scene.controller.code,
        "lost_results": lost_results(scene.controller),
        "errors": scene.controller.errors,
    }
    _append({"kind": kind, "cell": cell, **found, **more})


def keep_failure(kind: str, cell: str, reason: str) -> None:
    """Keep that a cell could not be judged: the phase was not reached, or something hung."""
    _append({"kind": kind, "cell": cell, "violations": [reason], "restored_s": None, "exit_code": None, "lost_results": 0, "errors": []})


def _append(result: dict[str, Any]) -> None:
    if not FOLDER:
        return
    folder = Path(FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps({"t": time.time(), **result}) + "\n")


def read(folder: Path) -> list[dict[str, Any]]:
    """Every result under a folder; of a cell that ran again the last one."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    lines = [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    for result in sorted(lines, key=lambda result: float(result["t"])):
        found[result["kind"], result["cell"]] = result
    return list(found.values())


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The numbers that are published."""
    cells = [result for result in results if result["kind"] == "cell"]
    kills = [result for result in results if result["kind"] == "kill"]
    times = [result["restored_s"] for result in (*cells, *kills) if result["restored_s"]]
    broken = sum(bool(result["violations"]) for result in kills)
    return {
        "cells": len(cells),
        "passed": sum(not result["violations"] for result in cells),
        "violations": sum(len(result["violations"]) for result in (*cells, *kills)),
        "restore_s": {"p50": round(statistics.median(times), 2), "max": round(max(times), 2)} if times else None,
        "kills": len(kills),
        "kills_violated": broken,
        "kills_bound": round(3 / len(kills), 4) if kills and not broken else None,
        "lost_results": sum(result["lost_results"] for result in (*cells, *kills)),
    }


def table(results: list[dict[str, Any]]) -> str:
    """The matrix as Markdown: the code where a cell passed, ✗ where it was violated, · where it did not run.

    Faults of the virtual tier have their rows when one of them ran, and only they when nothing else did.
    """
    ran = {result["cell"]: not result["violations"] for result in results if result["kind"] == "cell"}
    codes = {name(fault, phase): code for fault, phase, code in (*CELLS, *VIRTUAL_CELLS)}
    shown = [row for row in (TABLE, VIRTUAL) if any(name(fault, phase) in ran for fault in row for phase in PHASES)]

    def mark(fault: str, phase: str) -> str:
        cell = name(fault, phase)
        if cell not in codes:
            return ""
        return "·" if cell not in ran else codes[cell] if ran[cell] else f"**{codes[cell]} ✗**"

    rows = [f"| {fault} | " + " | ".join(mark(fault, phase) for phase in PHASES) + " |" for row in shown for fault in row]
    head = ["| fault | " + " | ".join(PHASES) + " |", "| --- |" + " --- |" * len(PHASES)]
    used = {code for row in shown for phases in row.values() for code in phases}
    legend = [f"`{code}` {meaning}" for code, meaning in CODES.items() if code in used]
    return "\n".join([*head, *rows, "", "; ".join(legend) + "."])


def publish(folder: Path) -> None:
    """Write the numbers, ``results.json``, and the table, ``table.md``, of the cells under a folder beside it."""
    found = read(folder)
    document = {"summary": summary(found), "results": found}
    (folder.parent / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder.parent / "table.md").write_text(table(found) + "\n")


if __name__ == "__main__":
    publish(Path(sys.argv[1]))
