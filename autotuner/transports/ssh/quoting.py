"""The one place where a command becomes text for a shell.

sshd hands the text to the user's login shell, whatever that is (bash, fish, csh). So the text consists of a constant script and of words
in an alphabet that every shell leaves alone between single quotes; ``/bin/sh`` gets them as positional parameters and undoes the coding.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotuner.errors import UsageError

# Neither quote, exclamation mark, backslash nor newline: csh and fish treat some of these even between single quotes. The command is not
# exec'ed, so that its death by a signal becomes a return code: sshd reports a signal in a way that paramiko does not understand.
_SCRIPT = (
    "shift; _n=$#; "
    'while [ "$_n" -gt 0 ]; do '
    'case $1 in =*) _a=${1#=} ;; *) _a=$(printf %bx "${1#+}"); _a=${_a%x} ;; esac; '
    'shift; set -- "$@" "$_a"; _n=$((_n-1)); '
    "done; "
    'if [ -n "$1" ]; then cd -- "$1" 2>/dev/null || { printf "%s: no such folder" "$1" >&2; exit 126; }; fi; '
    "_n=$2; shift 2; "
    'while [ "$_n" -gt 0 ]; do export "$1"; shift; _n=$((_n-1)); done; '
    "unset _n _a; "
    '"$@"; exit $?'
)
_PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b"'\\!")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command as text for any login shell. Made only by ``quoted``, so whatever reaches a channel was quoted."""

    text: str
    name: str
    """The program, for messages."""
    token: str
    """Stands on this command line alone, so that its process is found again."""


def quoted(argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None) -> CommandLine:
    """The command line that runs ``argv`` in ``cwd`` with ``env`` added. Raises ``UsageError`` for what no program can be given."""
    if not argv:
        raise UsageError("an empty command cannot be run", hint="name a program")
    variables = [f"{name}={value}" for name, value in (env or {}).items()]
    folder = "" if cwd is None else cwd if cwd.startswith("/") else f"./{cwd}"
    words = [_word(word) for word in (folder, str(len(variables)), *variables, *argv)]
    token = secrets.token_hex(16)
    return CommandLine(f"exec /bin/sh -c '{_SCRIPT}' sh {token} {' '.join(words)}", name=argv[0], token=token)


def _word(value: str) -> str:
    try:
        data = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{value!r} cannot be given to a program: it is no text", hint="remove the character that is no character"
        ) from error
    if 0 in data:
        raise UsageError(f"{value!r} cannot be given to a program: it holds a NUL byte", hint="remove the NUL byte")
    if all(byte in _PLAIN for byte in data):
        return f"'={value}'"
    return "'+" + "".join(chr(byte) if byte in _PLAIN else f"\\0{byte:03o}" for byte in data) + "'"
