"""Files on the host that a crash or a full disk must not corrupt."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""What the kernel says when nothing can be written any more."""
_SLOT = 4096


def write_json(path: Path, content: dict[str, Any], mode: int = 0o600) -> None:
    """Write atomically and durably: temporary file, fsync, rename, fsync of the folder."""
    write_bytes(path, json.dumps(content).encode(), mode)


def write_bytes(path: Path, content: bytes, mode: int = 0o600) -> None:
    """The same for any content."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write_synced(temporary, content, mode)
        temporary.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
    sync_folder(path.parent)


def create_json(path: Path, content: dict[str, Any], mode: int = 0o644) -> bool:
    """Create the file with its whole content, or return False when it is there already. Atomic between processes."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write_synced(temporary, json.dumps(content).encode(), mode)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
    sync_folder(path.parent)
    return True


def make_slot(path: Path) -> None:
    """A file that ``fill`` can rewrite later even when the disk has become full: its room is taken now."""
    if not path.exists():
        _write_synced(path, b" " * _SLOT, 0o600)


def fill(path: Path, content: dict[str, Any] | None) -> None:
    """Rewrite a slot in place; nothing is in it after ``None``. Atomic for readers as far as one page is, and not durable at once."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        size = max(_SLOT, os.fstat(descriptor).st_size)
        os.pwrite(descriptor, (b"" if content is None else json.dumps(content).encode()).ljust(size), 0)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any] | None:
    """The content, or None when the file is not there or is not a JSON object."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def sync_folder(folder: Path) -> None:
    """Make renames and removals in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file durably; nothing happens when it is not there."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
        sync_folder(path.parent)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the advisory lock of a folder; waits for it. The kernel gives it back when the holder dies.

    One that is removed and made anew while it is waited for is locked anew. Raises ``FileNotFoundError`` when there is none.
    """
    with _held(folder, os.O_RDONLY | os.O_DIRECTORY):
        yield


@contextlib.contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """The same for a file, which is made when there is none."""
    with _held(path, os.O_RDWR | os.O_CREAT):
        yield


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock of a folder now."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def _held(path: Path, flags: int) -> Iterator[None]:
    while True:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                yield
                return
        finally:
            os.close(descriptor)


def _write_synced(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
