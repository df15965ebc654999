"""A systemd unit, rendered in full so that a person can read every flag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@+=:,./-")


def render_unit(*, description: str, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> str:
    """The text of a service unit. No value can add a directive or be expanded (``systemd.syntax(7)``, ``systemd.service(5)``).

    Raises ``ValueError`` for control characters other than a tab or a newline, which no unit file can hold.
    """
    lines = ["[Unit]", f"Description={_plain(description)}", "After=network-online.target", "Wants=network-online.target", "", "[Service]"]
    lines += [f"Environment={_quoted(f'{name}={value}', dollar=False)}" for name, value in sorted(env.items())]
    lines += [f"WorkingDirectory={_plain(cwd)}"]
    first, *rest = [_quoted(word, dollar=True) for word in argv]
    lines += ["ExecStart=" + " \\\n    ".join([first, *_flag_lines(rest)])]
    lines += ["KillMode=control-group", "TimeoutStopSec=60", "Restart=on-failure", "StandardOutput=journal", "StandardError=journal"]
    lines += ["", "[Install]", "WantedBy=multi-user.target", ""]
    return "\n".join(lines)


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
    text = _checked(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t").replace("%", "%%")
    return f'"{text.replace("$", "$$") if dollar else text}"'


def _plain(value: str) -> str:
    """A value that runs to the end of its line."""
    return " ".join(_checked(value).split()).replace("%", "%%").rstrip("\\")


def _checked(value: str) -> str:
    bad = [character for character in value if (ord(character) < 32 and character not in "\n\t") or character == "\x7f"]
    if bad:
        msg = f"a unit file cannot hold the control character {bad[0]!r}"
        raise ValueError(msg)
    return value
