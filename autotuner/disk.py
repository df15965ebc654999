"""Files on this machine: replaced as a whole or not at all; a disk that refuses becomes one sentence for a person.

What is written on the host itself is not for here: ``services/onhost`` must run there without the rest of the package.
"""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from autotuner.errors import AutotunerError, Refused, UsageError

_PROBE_BYTES = 64 * 1024
_NOT_A_FOLDER = "a part of the path is a file, or its end is a folder"
_HINTS = {
    errno.ENOSPC: "the disk is full: free some space there",
    errno.EDQUOT: "the disk quota is used up: free some space there",
    errno.EROFS: "the file system is mounted read-only: choose another folder, or remount it",
    errno.EACCES: "check owner and mode of the folder (ls -ld), or choose another one",
    errno.EPERM: "check owner and mode of the folder (ls -ld), or choose another one",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: _NOT_A_FOLDER,
    errno.EEXIST: _NOT_A_FOLDER,
    errno.EISDIR: _NOT_A_FOLDER,
    errno.ELOOP: "symbolic links are not followed when records are written: put a file or folder of its own there",
}


def replace(path: Path, data: bytes, *, mode: int = 0o644, owner: str | None = None) -> None:
    """Write atomically and durably: a temporary file beside it, fsync, rename, fsync of the folder.

    ``owner`` is ``USER`` or ``USER:GROUP``. Raises ``OSError``, and ``LookupError`` for an owner that is not there.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if owner is not None:
                user, _, group = owner.partition(":")
                shutil.chown(temporary, user, group or None)
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make sure that the names in a folder survive a power cut. Raises ``OSError``."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_foreign(paths: Iterable[Path]) -> None:
    """Refuse what is a symbolic link or belongs to another user; what is not there is no trouble. Raises ``Refused`` and ``OSError``."""
    for path in paths:
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(found.st_mode):
            raise Refused(f"{path} is a symbolic link, which is not followed", hint="put a file or folder of its own there")
        if found.st_uid != os.geteuid():
            raise Refused(
                f"{path} belongs to {_user(found.st_uid)}, and this is {_user(os.geteuid())}",
                hint=f"run the same command as {_user(found.st_uid)}, or name another folder with --state-dir",
            )


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def probe(folder: Path) -> None:
    """Find out whether files could be written into ``folder``, which need not be there yet. Leaves nothing behind. Raises ``OSError``."""
    existing = next(part for part in (folder, *folder.absolute().parents) if part.exists())
    with tempfile.TemporaryFile(dir=existing) as file:
        file.write(b"\0" * _PROBE_BYTES)
        file.flush()


def full(error: BaseException) -> bool:
    """Whether an error of ours came from a disk without room."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in {errno.ENOSPC, errno.EDQUOT}


def foreseen(error: OSError) -> bool:
    """Whether the error is one that a person can mend."""
    return error.errno in _HINTS


def refused(doing: str, path: object, error: OSError, *, then: str = "") -> AutotunerError:
    """``cannot write PATH: No space left on device``, with what to do about it and ``then`` after that."""
    where = f"cannot {doing} {path}: " if path is not None else ""
    hints = [part for part in (_HINTS.get(error.errno or 0), then) if part]
    return AutotunerError(f"{where}{error.strerror or error}", hint="; ".join(hints) or None)


@contextmanager
def refusals(doing: str, path: object, *, then: str = "") -> Iterator[None]:
    """Raise ``AutotunerError`` for every ``OSError`` inside."""
    try:
        yield
    except OSError as error:
        raise refused(doing, path, error, then=then) from error


@contextmanager
def readable(path: object, *, then: str = "") -> Iterator[None]:
    """Raise ``UsageError`` for every ``OSError`` inside: a person named this file, and corrects its name or the file."""
    try:
        yield
    except OSError as error:
        told = refused("read", path, error, then=then)
        raise UsageError(told.message, hint=told.hint or "check the path") from error
