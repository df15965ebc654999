"""A log as its parts: lines without time and rank, the tracebacks of ranks, and what is no sign of anything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_PREFIX = re.compile(r"^(?:\[\d{4}-\d\d-\d\d[^\]]*\]\s*|\[?rank\d+\]?:\s*(?!\[)|\((?:EngineCore|Worker)[^)]*\)\s*)+")
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?::\s|:?$)")
"""After its indented frames a traceback names the exception's type at the left margin."""
_TRACEBACK = "Traceback (most recent call last):"
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_NOISE = re.compile(
    r"server_args=ServerArgs\(|^Ignore import error|init failed \(|Received output for rid=|^(?:Receive|Finish):|it/s\]|\?it/s|s/it\]"
    r"|^(?:Prefill|Decode) batch|^INFO:\s|state was deleted in TokenizerManager"
)
_TOLD_TO_STOP = "SIGTERM received"
_MESSAGE_LINES = 8
"""Exceptions explain themselves in a few lines; more is somebody else's."""


@dataclass(frozen=True, slots=True)
class Block:
    """One traceback, chained ones included; ``last`` is the line (with its continuation) that names the final exception."""

    text: str
    last: str


def clean(line: str) -> str:
    """The line without time stamp and rank."""
    return _PREFIX.sub("", line.rstrip("\r\n"))


def quiet(line: str) -> bool:
    """Whether a (clean) line never tells of a failure: progress, arguments, requests, imports that are allowed to fail."""
    return not line.strip() or _NOISE.search(line) is not None


def until_stopped(log: str) -> tuple[list[str], bool]:
    """Lines before the server was told to stop, and whether it was: what children print then is no failure."""
    lines = log.splitlines()
    for index, line in enumerate(lines):
        if _TOLD_TO_STOP in line:
            return lines[:index], True
    return lines, False


def blocks(lines: Sequence[str]) -> list[Block]:
    """The tracebacks of a log in order; ``lines`` are as they were logged."""
    found: list[Block] = []
    index = 0
    while index < len(lines):
        if _TRACEBACK in lines[index]:
            end, last = _end(lines, index + 1)
            found.append(Block("\n".join(map(clean, lines[index:end])), last))
            index = end
        else:
            index += 1
    return found


def _end(lines: Sequence[str], start: int) -> tuple[int, str]:
    """Where the traceback that begins before ``start`` ends, and its last exception."""
    index, last = start, ""
    while index < len(lines):
        if _EXCEPTION.match(lines[index]):
            index, last = _message(lines, index)
            if not _goes_on(lines, index):
                break
        elif _anew(lines[index]):
            break
        else:
            index += 1
    return index, last


def _message(lines: Sequence[str], start: int) -> tuple[int, str]:
    """An exception's message: its line, and those after it up to one that begins something else."""
    end = start + 1
    while end < len(lines) and end - start < _MESSAGE_LINES and lines[end].strip() and not _begins(lines[end]):
        end += 1
    return end, "\n".join(map(clean, lines[start:end]))


def _anew(line: str) -> bool:
    """Whether the line was logged by itself: it carries a time or a rank, and does not begin another traceback."""
    return _PREFIX.match(line) is not None and _TRACEBACK not in line


def _begins(line: str) -> bool:
    return _PREFIX.match(line) is not None or line.startswith(_CHAIN) or _TRACEBACK in line or _EXCEPTION.match(line) is not None


def _goes_on(lines: Sequence[str], index: int) -> bool:
    """Whether a chained traceback follows after blank lines."""
    while index < len(lines) and not lines[index].strip():
        index += 1
    return index < len(lines) and lines[index].startswith(_CHAIN)
