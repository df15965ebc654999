"""``Include`` of ssh configuration files, which paramiko passes over."""

from __future__ import annotations

import glob
import shlex
from pathlib import Path

from autotuner.errors import UsageError

_DEEPEST = 16


def expanded(file: Path, depth: int = 0) -> str:
    """Text of the file with what it includes in place. Raises ``OSError``, and ``UsageError`` for an Include within a block."""
    lines: list[str] = []
    block = "Host *"
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        word, value = _keyword(line)
        if word in {"host", "match"}:
            block = line
        if word != "include":
            lines.append(line)
            continue
        if block.split() != ["Host", "*"]:
            raise UsageError(
                f"{file}:{number}: Include within a block ({block.strip()}) is not supported", hint="move it above the first Host line"
            )
        if depth == _DEEPEST:
            raise UsageError(f"{file}:{number}: files include each other more than {_DEEPEST} deep", hint="correct the Include lines")
        for included in _files(file, value):
            lines += [*expanded(included, depth + 1).splitlines(), block]
    return "\n".join(lines) + "\n"


def _keyword(line: str) -> tuple[str, str]:
    word, _, value = line.strip().replace("=", " ", 1).partition(" ")
    return word.lower(), value.strip()


def _files(file: Path, value: str) -> list[Path]:
    found = []
    for pattern in shlex.split(value):
        path = Path(pattern).expanduser()
        absolute = path if path.is_absolute() else Path("/etc/ssh" if file.is_relative_to("/etc/ssh") else Path.home() / ".ssh") / path
        found += [Path(name) for name in sorted(glob.glob(str(absolute)))]  # noqa: PTH207 - absolute patterns
    return [path for path in found if path.is_file()]
