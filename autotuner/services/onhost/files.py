"""Files on the host that a crash or a full disk must not corrupt."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def write_json(path: Path, content: dict[str, Any], mode: int = 0o600) -> None:
    """Write atomically and durably: temporary file, fsync, rename, fsync of the folder."""
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
        _write_synced(temporary, content, mode)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
    sync_folder(path.parent)
    return True


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
def locked(path: Path) -> Iterator[None]:
    """Hold the advisory lock of a file or folder; waits for it. The kernel gives it back when the holder dies."""
    flags = os.O_RDONLY | os.O_DIRECTORY if path.is_dir() else os.O_RDWR | os.O_CREAT
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_synced(path: Path, content: dict[str, Any], mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(json.dumps(content).encode())
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
