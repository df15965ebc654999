"""A systemd unit, rendered in full so that a person can read every flag."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@+=:,./-")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_UNIT_NAME = re.compile(r"[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]*\.[a-z]+\Z")
_UNIT_KINDS = (".service", ".socket", ".target", ".timer", ".path", ".mount", ".automount", ".slice", ".scope", ".swap", ".device")
_LONGEST_NAME = 255
_PROGRAM_PREFIXES = "-@+!:"
_PROGRAM_FORBIDDEN = frozenset("\"'\\\n\t")
_LONGEST_LINE = 1 << 20
"""systemd reads no longer line, continued ones counted as one."""
_ESCAPES: dict[str, str | int | None] = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "%": "%%"}


def render_unit(*, description: str, argv: Sequence[str], env: Mapping[str, str], cwd: str, conflicts: Sequence[str] = ()) -> str:
    """The text of a service unit. No value can add a directive or be expanded (``systemd.syntax(7)``, ``systemd.service(5)``).

    ``conflicts``: units that must not run beside this one, because they want the same GPUs; systemd itself stops them before it starts it.
    Raises ``ValueError`` for what no unit file can hold: control characters other than a tab or a newline, half characters, a working
    directory that is not absolute and plain, a program that systemd would not find under its name, and lines above 1 MiB.
    """
    lines = ["[Unit]", f"Description={_described(description)}", *_order(conflicts), "Wants=network-online.target", "", "[Service]"]
    lines += [f"Environment={_quoted(f'{_variable(name)}={value}', dollar=False)}" for name, value in sorted(env.items())]
    lines += [f"WorkingDirectory={_folder(cwd)}", f"ExecStart={_command(argv)}"]
    lines += ["KillMode=control-group", "TimeoutStopSec=60", "Restart=on-failure", "StandardOutput=journal", "StandardError=journal"]
    lines += ["", "[Install]", "WantedBy=multi-user.target", ""]
    text = "\n".join(lines)
    if any(len(line.encode()) >= _LONGEST_LINE for line in text.replace(" \\\n", " ").split("\n")):
        raise ValueError("a line would be longer than 1 MiB, and systemd reads no such line")
    return text


def read_folder(unit: str) -> str:
    """The working directory in the text of a unit that ``render_unit`` wrote; ``/`` where none stands."""
    found = re.search(r"^WorkingDirectory=(.*)$", unit, re.MULTILINE)
    if found is None:
        return "/"
    path = found[1].replace("%%", "%")
    bare = path.removesuffix("/")
    return bare if bare.endswith((" ", "\\")) else path


def read_conflicts(unit: str) -> tuple[str, ...]:
    """The units in conflict in the text of a unit that ``render_unit`` wrote."""
    found = re.search(r"^Conflicts=(.*)$", unit, re.MULTILINE)
    return tuple(found[1].split()) if found else ()


def full_name(name: str) -> str:
    """A unit's name with its kind, as systemd completes it."""
    return name if name.endswith(_UNIT_KINDS) else f"{name}.service"


def is_unit_name(name: str) -> bool:
    """Whether a unit can be called so, its kind included."""
    return len(name) <= _LONGEST_NAME and _UNIT_NAME.match(name) is not None


def _order(conflicts: Sequence[str]) -> list[str]:
    for name in conflicts:
        if not is_unit_name(name):
            raise ValueError(f"{name!r} is not the name of a unit")
    names = " ".join(conflicts)
    return [f"Conflicts={names}", f"After=network-online.target {names}"] if conflicts else ["After=network-online.target"]


def _command(argv: Sequence[str]) -> str:
    """The command line, a flag with its values on each line."""
    if not argv:
        raise ValueError("there is no program to run")
    program, *rest = argv
    if program.startswith(tuple(_PROGRAM_PREFIXES)):
        raise ValueError(f"the program {program!r} begins with a character that has a meaning to systemd there")
    if not program or program.endswith("/") or ("/" in program and not program.startswith("/")):
        raise ValueError(f"the program {program!r} is neither a name nor an absolute path")
    if not _PROGRAM_FORBIDDEN.isdisjoint(program):
        raise ValueError(f"the program {program!r} holds a quote, a backslash or white space that systemd accepts in no program's name")
    # A variable is never looked for in the program's own path, so a doubled dollar would stay doubled there: then it is switched off.
    literal = "$" in program
    first = (":" if literal else "") + _quoted(program, dollar=False)
    return " \\\n    ".join([first, *_flag_lines([_quoted(word, dollar=not literal) for word in rest])])


def _flag_lines(words: Sequence[str]) -> list[str]:
    """One line per flag together with its values."""
    lines: list[str] = []
    for word in words:
        if lines and not word.startswith("-"):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _quoted(value: str, *, dollar: bool) -> str:
    """A word that systemd reads back as exactly ``value``; ``$`` is special in command lines only."""
    if value and _SAFE.issuperset(value):
        return value
    escapes = {**_ESCAPES, "$": "$$"} if dollar else _ESCAPES
    return f'"{_checked(value).translate(str.maketrans(escapes))}"'


def _variable(name: str) -> str:
    if not _ENV_NAME.match(name):
        raise ValueError(f"{name!r} is not the name of an environment variable")
    return name


def _described(value: str) -> str:
    """Text for people that runs to the end of its line: white space becomes one space, a backslash at the end would continue the line."""
    return " ".join(_checked(value).split()).replace("%", "%%").rstrip("\\ ")


def _folder(path: str) -> str:
    """A path that runs to the end of its line. A slash behind it keeps a space or a backslash at its end from being dropped."""
    if not path.startswith("/") or ".." in path.split("/") or any(character in _checked(path) for character in "\n\t"):
        raise ValueError(f"the working directory {path!r} is not a plain absolute path")
    return path.replace("%", "%%") + ("/" if path.endswith((" ", "\\")) else "")


def _checked(value: str) -> str:
    for character in value:
        code = ord(character)
        if (code < 32 and character not in "\n\t") or code == 127:
            raise ValueError(f"a unit file cannot hold the control character {character!r}")
        if 0xD800 <= code <= 0xDFFF or 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE:
            raise ValueError(f"a unit file cannot hold {character!r}, which is no character of Unicode")
    return value
