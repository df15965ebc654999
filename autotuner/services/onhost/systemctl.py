"""systemd of this machine, through its own tools: every call is bounded, in one language and one time zone.

Root talks to PID 1 directly, so nothing here needs a message bus. Stops and starts are asked for without waiting, and then looked at:
a tool that hangs must never hang a restore.
"""

from __future__ import annotations

import calendar
import re
import subprocess
import time
from collections.abc import Callable
from typing import Any, NamedTuple

TIMEOUT_S = 20.0
"""For a tool that only asks PID 1."""
ENV = {
    "LC_ALL": "C",
    "TZ": "UTC",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "SYSTEMD_COLORS": "0",
    "SYSTEMD_PAGER": "",
}
_POLL_S = 0.1
_TIMED_OUT = 124
_MISSING = 127
_LINE = re.compile(r"([A-Z][A-Za-z0-9]*)=(.*)", re.DOTALL)
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|min|h|d|w|month|y)(?![a-z])")
_SPAN_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "month": 2629800.0, "y": 31557600.0}
_ARGV = re.compile(r"path=(?P<path>.*?) ; argv\[\]=(?P<argv>.*?) ; ignore_errors=", re.DOTALL)

ENDED = ("inactive", "failed")
"""ActiveState of a unit that runs nothing."""


class Answer(NamedTuple):
    """What a tool said."""

    code: int
    out: str
    err: str


def tool(argv: list[str], timeout_s: float = TIMEOUT_S) -> Answer:
    """Run one of systemd's tools."""
    try:
        done = subprocess.run(argv, capture_output=True, env=ENV, stdin=subprocess.DEVNULL, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return Answer(_TIMED_OUT, "", f"{argv[0]} did not answer within {timeout_s:g} s")
    except OSError as error:
        return Answer(_MISSING, "", f"{argv[0]}: {error.strerror}")
    return Answer(done.returncode, done.stdout.decode(errors="surrogateescape"), done.stderr.decode(errors="replace").strip())


def systemctl(*arguments: str, timeout_s: float = TIMEOUT_S) -> Answer:
    """Run ``systemctl``; unit names go behind ``--``."""
    return tool(["systemctl", "--no-pager", "--no-ask-password", *arguments], timeout_s)


def show(unit: str, *properties: str) -> dict[str, str]:
    """Properties of a unit, empty when PID 1 does not answer. A unit that does not exist has properties, too."""
    return parse_show(systemctl("show", f"--property={','.join(properties)}", "--", unit).out)


def parse_show(text: str) -> dict[str, str]:
    """``KEY=VALUE`` lines of ``systemctl show``. A line of another form goes on with the value before it."""
    found: dict[str, str] = {}
    last = None
    for line in text.split("\n"):
        match = _LINE.fullmatch(line)
        if match:
            last = match[1]
            found[last] = f"{found[last]}\n{match[2]}" if last in found else match[2]
        elif last is not None and line:
            found[last] += f"\n{line}"
    return found


def parse_names(text: str) -> list[str]:
    """Unit names of ``systemctl list-units --plain --no-legend``."""
    return [line.split()[0] for line in text.splitlines() if line.split()]


def parse_moment(text: str) -> float | None:
    """Seconds since 1970 of ``Sun 2026-11-29 19:41:05 UTC``; ``None`` when it is none."""
    match = _STAMP.search(text)
    return calendar.timegm(time.strptime(match[1], "%Y-%m-%d %H:%M:%S")) if match and text.endswith("UTC") else None


def parse_span(text: str) -> float | None:
    """Seconds of ``1min 30.5s``; ``None`` for ``infinity``, for nothing, and for what is no span."""
    parts = _SPAN.findall(text)
    if not parts or _SPAN.sub("", text).strip():
        return None
    return sum(float(number) * _SPAN_S[unit] for number, unit in parts)


def parse_command(text: str) -> tuple[str, str] | None:
    """Program and command line of ``ExecStart`` as ``systemctl show`` prints it: words joined by single blanks, nothing quoted.

    ``None`` when there is none, or more than one.
    """
    found = list(_ARGV.finditer(text))
    return (found[0]["path"], found[0]["argv"]) if len(found) == 1 else None


def units_like(pattern: str) -> list[str]:
    """Names of the loaded units that match, in whatever state."""
    return parse_names(systemctl("list-units", "--all", "--plain", "--no-legend", "--full", "--", pattern).out)


def state(unit: str) -> dict[str, str]:
    """LoadState, ActiveState, SubState, ControlGroup and Result of a unit."""
    return show(unit, "LoadState", "ActiveState", "SubState", "ControlGroup", "Result")


def await_end(unit: str, timeout_s: float) -> bool:
    """Whether the unit came to run nothing within this time."""
    deadline = time.monotonic() + timeout_s
    while state(unit).get("ActiveState") not in ENDED:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def end(unit: str, grace_s: float, *, kill_s: float = 15.0, say: Callable[[str], None] = lambda _: None) -> bool:
    """Stop a unit; what is left of it after ``grace_s`` is killed. Whether nothing of it runs any more."""
    asked = systemctl("stop", "--no-block", "--", unit)
    if asked.code != 0 and state(unit).get("LoadState") == "loaded":
        say(f"stop {unit}: {asked.err}")
    if await_end(unit, grace_s):
        return True
    say(f"{unit} did not stop within {grace_s:g} s: killing it")
    systemctl("kill", "--signal=SIGKILL", "--", unit)
    return await_end(unit, kill_s)


def word(text: str) -> str:
    """One word of a command line in a unit file. Raises ``ValueError`` for one that cannot stand there."""
    if any(character < " " for character in text):
        raise ValueError(f"{text!r} cannot stand in a unit file")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def listed(values: dict[str, str], name: str) -> list[str]:
    """The words of a property that lists units or paths."""
    return values.get(name, "").split()


def number(values: dict[str, Any], name: str) -> int:
    """A property that is a number; 0 when it is not there."""
    text = str(values.get(name, ""))
    return int(text) if text.isdigit() else 0
