"""Progress of a launch, from the lines that SGLang logs."""

from __future__ import annotations

import re

from autotuner.model.outcome import Stage

_MARKERS: tuple[tuple[Stage, str], ...] = (
    (Stage.PARSE, r"'python -m sglang\.launch_server' is still supported"),
    (Stage.RESOLVE, r"server_args=ServerArgs\("),
    (Stage.DIST_INIT, r"Init torch distributed begin"),
    (Stage.LOAD, r"Load weight begin"),
    (Stage.KV_SIZING, r"Load weight end|KV Cache is allocated|Memory pool end"),
    (Stage.GRAPH_CAPTURE, r"(?i:Capture (?:[a-z]+ ){0,3}cuda graph begin)"),
    (Stage.WARMUP, r"Started server process \[\d+\]|Application startup complete|Uvicorn running on"),
    (Stage.READY, r"The server is fired up and ready to roll"),
    (Stage.STOP, r"SIGTERM received"),
)
_ANY = re.compile("|".join(f"(?P<s{index}>{pattern})" for index, (_, pattern) in enumerate(_MARKERS)))
_HEAD = 320
"""Markers stand at the beginning of a line, after the time and the rank; the rest may be thousands of characters of arguments."""


def stage_of(line: str) -> Stage | None:
    """The stage that a line marks the arrival at, if any.

    The drafter is loaded after the target, so ``dist-init``, ``load`` and ``kv-sizing`` come twice when speculation is on.
    """
    match = _ANY.search(line, 0, _HEAD)
    return _MARKERS[int((match.lastgroup or "s0")[1:])][0] if match else None


def last_stage(log: str) -> Stage | None:
    """Where a log ends, as far as markers say; being told to stop is not counted."""
    for line in reversed(log.splitlines()):
        stage = stage_of(line)
        if stage is not None and stage is not Stage.STOP:
            return stage
    return None


def reached(log: str, stage: Stage) -> bool:
    """Whether a log shows that ``stage`` was arrived at."""
    return any(stage_of(line) is stage for line in log.splitlines())
