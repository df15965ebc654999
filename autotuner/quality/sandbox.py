"""Sandbox: where generated code runs, and nothing else of this machine is to be had. It hands out values, never a verdict.

The two kinds stand in ``bubblewrap`` and ``units``; which one works here is found out by running something in it (``probe``).
"""

from __future__ import annotations

import functools
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Protocol

WALL_S = 6.0
"""Whatever is not done by then is killed."""
CPU_S = 5
OUTPUT_BYTES = 1024 * 1024
"""Largest file that can be written in there, the one that takes standard output included."""
MEMORY_BYTES = 256 * 1024 * 1024
PROCESSES = 8
OPEN_FILES = 64
SCRATCH_BYTES = 16 * 1024 * 1024
PATH = "/usr/bin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run ended and what it wrote."""

    how: str
    """``finished``, ``timeout`` or ``killed``; ``not-started`` when it did not come to run anything."""
    output: bytes
    """Standard output, ``OUTPUT_BYTES`` at most."""
    detail: str = ""


class Sandbox(Protocol):
    """A way to run Python code shut in."""

    name: str
    """With its version, e.g. ``bubblewrap 0.8.0``."""

    def run(self, programs: Sequence[tuple[str, bytes]], arguments: Sequence[str]) -> Ended:
        """Run the first of ``programs`` (name, content), which all lie in ``/gate`` there or in the folder that ``{gate}`` names.

        Every ``{gate}`` in ``arguments`` becomes that folder. Returns when nothing of it is left. Never raises for what the code does.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """What the calls of one run returned: as many ``{"value": …}`` or ``{"error": …}`` as calls, or none and why."""

    found: tuple[dict[str, object], ...]
    how: str
    """As in ``Ended``; ``no-values`` when it finished and said nothing that can be used."""
    detail: str = ""


def call(sandbox: Sandbox, source: str, function: str, calls: Sequence[Sequence[object]]) -> Values:
    """Call ``function`` of ``source`` in the sandbox, once per list of arguments. Never raises for what the code does."""
    mark = secrets.token_hex(16)
    asked = json.dumps({"function": function, "calls": calls}).encode()
    programs = (("inside.py", _harness()), ("answer.py", source.encode(errors="replace")), ("calls.json", asked))
    ended = sandbox.run(programs, (mark, "{gate}/answer.py", "{gate}/calls.json"))
    found = _read(ended.output, mark.encode(), len(calls))
    if found is not None:
        return Values(found=found, how="finished")
    how = "no-values" if ended.how == "finished" else ended.how
    return Values(found=(), how=how, detail=ended.detail or f"{len(ended.output)} bytes of output, and no values among them")


@functools.cache
def _harness() -> bytes:
    return files("autotuner.quality").joinpath("inside.py").read_bytes()


def _read(output: bytes, mark: bytes, calls: int) -> tuple[dict[str, object], ...] | None:
    """The values in an output that anybody may have written. ``None`` when there is none that can be read."""
    line = next((line for line in output.split(b"\n") if line.startswith(mark + b" ")), None)
    if line is None:
        return None
    try:
        read = json.loads(line[len(mark) + 1 :])
    except (ValueError, RecursionError):
        return None
    if not isinstance(read, list) or len(read) != calls or not all(isinstance(item, dict) for item in read):
        return None
    return tuple(read)
