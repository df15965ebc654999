"""The journal of a unit, as JSON."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import systemctl

LIMIT = 1 << 20
"""Bytes of log text that one call returns at most, but for its last line."""
OUT_OF_MEMORY = "fe6faa94e7774663a0da52717891d8ef"
"""MESSAGE_ID: a process of the unit was killed because memory ran out."""
STOPPING = "de5b426a63be47a7b6ac3eaac82e2f6f"
"""MESSAGE_ID: somebody, or another unit, asked for the unit to be stopped; not when it ended by itself."""

_FIELDS = "--output-fields=MESSAGE,_LINE_BREAK"
_KERNEL_LINES = 2000
_READ_S = 20.0


class Piece(NamedTuple):
    """Log text, and where it ends."""

    text: bytes
    cursor: str


def end() -> str:
    """Cursor of the last entry there is; empty when there is none."""
    said = systemctl.tool(["journalctl", "--no-pager", "--quiet", "--all", "--output=json", _FIELDS, "--lines=1"])
    return parse_entry(said.out.encode())[1]


def read(matches: list[str], cursor: str, *, limit: int = LIMIT) -> Piece:
    """What was written after ``cursor`` (empty: from the beginning) by whatever the journal's ``FIELD=VALUE`` match."""
    argv = ["journalctl", "--no-pager", "--quiet", "--all", "--output=json", _FIELDS]
    # Not --after-cursor: it leaves out one entry too many when the one at the cursor does not match.
    argv += [f"--cursor={cursor}"] if cursor else []
    found, size, begins = [], 0, cursor
    try:
        process = subprocess.Popen(
            [*argv, *matches], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=systemctl.ENV
        )
    except OSError:
        return Piece(b"", cursor)
    with process:
        with _bounded(process):
            for line in process.stdout or ():
                text, place = parse_entry(line)
                if begins and place == begins:
                    continue
                found.append(text)
                size += len(text)
                cursor = place or cursor
                if size >= limit:
                    break
        process.kill()
    return Piece(b"".join(found), cursor)


@contextlib.contextmanager
def _bounded(process: subprocess.Popen[bytes]) -> Iterator[None]:
    timer = threading.Timer(_READ_S, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def parse_entry(line: bytes) -> tuple[bytes, str]:
    """Text with its line end, and cursor, of one entry; both empty for a line that is none."""
    try:
        entry = json.loads(line)
    except ValueError:
        return b"", ""
    if not isinstance(entry, dict):
        return b"", ""
    text = message(entry.get("MESSAGE"))
    return (text if entry.get("_LINE_BREAK") == "line-max" else text + b"\n"), str(entry.get("__CURSOR", ""))


def message(value: Any) -> bytes:
    """A field: text, a list of bytes when it is not UTF-8, ``None`` when it was too long, a list of these when it was given twice."""
    if isinstance(value, list):
        if all(isinstance(part, int) for part in value):
            return bytes(part & 0xFF for part in value)
        return message(value[0])
    return b"" if value is None else str(value).encode(errors="surrogateescape")


def noted(unit: str, message_id: str, invocation: str) -> bool:
    """Whether PID 1 wrote this message about this run of a unit."""
    asked = ["journalctl", "--no-pager", "--quiet", "--output=cat", "--lines=1", f"UNIT={unit}", f"MESSAGE_ID={message_id}"]
    asked += [f"INVOCATION_ID={invocation}"] if invocation else []
    return bool(systemctl.tool(asked).out.strip())


def killed_by_kernel(unit: str, pid: int) -> bool:
    """Whether the kernel's log says that it killed this process, or one of this unit, because memory ran out."""
    asked = ["journalctl", "--no-pager", "--quiet", "--output=cat", "--boot", f"--lines={_KERNEL_LINES}", "_TRANSPORT=kernel"]
    return says_out_of_memory(systemctl.tool(asked).out, unit, pid)


def says_out_of_memory(text: str, unit: str, pid: int) -> bool:
    """The same for the text of a kernel log."""
    for line in text.splitlines():
        if "oom-kill:" in line and (f"/{unit}" in line or f",pid={pid}," in line):
            return True
        if "ut of memory: Killed process" in line and f"process {pid} " in line:
            return True
    return False


def sync() -> None:
    """Have everything that was written so far readable."""
    systemctl.tool(["journalctl", "--sync"], 5.0)
