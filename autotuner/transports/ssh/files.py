"""Files of the host through constant shell scripts, whose values are positional parameters. Binary-safe; no SFTP is needed on the host."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable

from autotuner import disk
from autotuner.errors import AutotunerError, TransportError
from autotuner.transports.ssh.channels import Ended

Execute = Callable[..., Ended]
"""``execute(argv, stdin=bytes, timeout_s=seconds)``; the command is repeated when the connection is lost."""

_READ = """
head -c 0 -- "$1" >/dev/null || exit 1
if [ -z "$3" ]; then exec tail -c "+$2" -- "$1"; fi
tail -c "+$2" -- "$1" | head -c "$3"
"""

# The digest is compared before the rename: a connection that breaks ends the input early, which must not become a short file.
_WRITE = """
set -e
folder=$(dirname -- "$1")
mkdir -p -- "$folder"
part=$(mktemp -- "$folder/.$(basename -- "$1").XXXXXXXX")
trap 'rm -f -- "$part"' EXIT
trap 'exit 1' HUP INT TERM
cat >"$part"
[ "$(sha256sum <"$part")" = "$4  -" ] || { echo "the data did not arrive whole" >&2; exit 74; }
[ -z "$3" ] || chown -- "$3" "$part"
chmod -- "$2" "$part"
sync -- "$part"
mv -fT -- "$part" "$1"
sync -- "$folder"
sha256sum <"$1"
"""
_EXISTS = '[ -e "$1" ] || [ -L "$1" ]'
_REMOVE = 'rm -f -- "$1"'

_TIMEOUT_S = 120.0
_SLOWEST_BYTES_PER_S = 16 * 1024
_NO_PROGRAM = 126
_NAMES = {os.strerror(number): number for number in errno.errorcode}


def read(execute: Execute, who: str, path: str, *, offset: int, limit: int | None) -> bytes:
    """Bytes of a file. Raises ``FileNotFoundError`` when it is not there."""
    ended = _script(execute, _READ, path, str(offset + 1), "" if limit is None else str(limit))
    if ended.returncode == 0 and not ended.stderr:
        return ended.stdout
    error = _error(ended)
    if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ESRCH}:
        raise FileNotFoundError(errno.ENOENT, "no such file", path)
    raise _refused(ended, error, who, "read", path)


def write(execute: Execute, who: str, path: str, data: bytes, *, mode: int, owner: str | None) -> None:
    """Write a file atomically and durably, and compare what is there afterwards."""
    digest = hashlib.sha256(data).hexdigest()
    ended = _script(execute, _WRITE, path, f"{mode:04o}", owner or "", digest, stdin=data)
    if ended.returncode != 0:
        raise _refused(ended, _error(ended), who, "write", path)
    found = ended.stdout.decode(errors="replace").split()
    if not found or found[0] != digest:
        raise AutotunerError(
            f"{who}: {path} does not hold what was written to it", hint="check the disk and the kernel log of the host (dmesg)"
        )


def exists(execute: Execute, who: str, path: str) -> bool:
    """Whether anything is at ``path``."""
    ended = _script(execute, _EXISTS, path)
    if ended.returncode > 1:
        raise _refused(ended, _error(ended), who, "look at", path)
    return ended.returncode == 0


def remove(execute: Execute, who: str, path: str) -> None:
    """Remove a file; nothing happens when it is not there."""
    ended = _script(execute, _REMOVE, path)
    if ended.returncode != 0:
        raise _refused(ended, _error(ended), who, "remove", path)


def _script(execute: Execute, script: str, *values: str, stdin: bytes = b"") -> Ended:
    seconds = _TIMEOUT_S + len(stdin) / _SLOWEST_BYTES_PER_S
    return execute(["/bin/sh", "-c", script, "sh", *values], stdin=stdin, timeout_s=seconds, env={"LC_ALL": "C"})


def _error(ended: Ended) -> OSError:
    """The error that a program of the host reported, known again by the text of the C library."""
    lines = ended.stderr.decode(errors="replace").strip().splitlines() or [f"return code {ended.returncode}"]
    for line in lines:
        text = line.rpartition(": ")[2]
        if text in _NAMES:
            return OSError(_NAMES[text], text)
    return OSError(None, lines[-1])


def _refused(ended: Ended, error: OSError, who: str, doing: str, path: str) -> AutotunerError:
    if ended.returncode >= _NO_PROGRAM:
        return TransportError(
            f"{who}: cannot {doing} {path}: {error.strerror}", hint="the host needs the programs of GNU coreutils in its PATH"
        )
    return disk.refused(doing, f"{who}:{path}", error)
