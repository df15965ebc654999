"""Journal: a file of lines that only grows. A line counts when it is on the disk; on a full disk it goes where room was kept for it.

Every line is one JSON object, so that a line which a power cut tore is told from a whole one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path

from autotuner import disk

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What a full disk answers."""
_MODE = 0o600


class Journal:
    """Lines in ``path``, and beside it ``path.reserve`` when ``reserve`` bytes are to be kept for a disk that fills up."""

    def __init__(self, path: Path, *, reserve: int = 0) -> None:
        self.path = path
        self.reserve = path.with_name(f"{path.name}.reserve")
        self.torn = path.with_name(f"{path.name}.torn")
        self._reserve_bytes = reserve

    def append(self, line: bytes) -> bool:
        """Keep a line, given without its end. ``False`` says that the disk is full and the reserve has it.

        Raises ``OSError`` when it is kept nowhere; the file is then as before.
        """
        try:
            self._append(line)
        except OSError as error:
            if error.errno not in FULL or not self.reserve.exists():
                raise
            self._spend(line)
            return False
        return True

    def lines(self) -> list[bytes]:
        """Every line, whole or not, those in the reserve last. Raises ``OSError``."""
        found = [line for line in _read(self.path).split(b"\n") if line.strip()]
        return found + [line for line in self._held() if line not in found]

    def mend(self) -> bool:
        """Take off the end that a power cut tore, and keep it in ``path.torn``; whether there was one. Raises ``OSError``."""
        data = _read(self.path)
        end = len(data)
        while end:
            begin = data.rfind(b"\n", 0, end - 1) + 1
            if not data[begin:end].strip() or _whole(data[begin:end]):
                break
            end = begin
        if end == len(data) and (not data or data.endswith(b"\n")):
            return False
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW)
        try:
            if end == len(data):  # only the end of the line is missing
                _write(descriptor, b"\n")
                return False
            _append_to(self.torn, data[end:] + b"\n")
            os.ftruncate(descriptor, end)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return True

    def settle(self) -> None:
        """Bring what the reserve holds to where it belongs, and have the whole reserve again. Raises ``OSError`` on a full disk."""
        held = self._held()
        known = set(_read(self.path).split(b"\n")) if held else set()
        for line in held:
            if line not in known:
                self._append(line)
        if not self._reserve_bytes:
            return
        if not self.reserve.exists() or self.reserve.stat().st_size < self._reserve_bytes:
            # Zeros are written, not only promised: blocks that are on the disk can be written again however full it is.
            disk.replace(self.reserve, b"\0" * self._reserve_bytes, mode=_MODE)
        elif held:
            self._overwrite(b"\0" * self._reserve_bytes, at=0)

    def _append(self, line: bytes) -> None:
        new = not self.path.exists()
        if not new and _ends_torn(self.path):
            self.mend()
        _append_to(self.path, line + b"\n")
        if new:
            disk.sync_folder(self.path.parent)

    def _spend(self, line: bytes) -> None:
        held = b"".join(known + b"\n" for known in self._held())
        entry = line + b"\n\0"  # what a torn line left behind it must not follow
        if len(held) + len(entry) > self.reserve.stat().st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        try:
            self._overwrite(entry, at=len(held))
        except OSError as error:
            if held or error.errno not in FULL:
                raise
            # A file system that never writes in place: what the reserve takes up is given back instead.
            self.reserve.unlink()
            self._append(line)

    def _overwrite(self, data: bytes, *, at: int) -> None:
        descriptor = os.open(self.reserve, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            if os.pwrite(descriptor, data, at) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.reserve))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _held(self) -> list[bytes]:
        used = _read(self.reserve).split(b"\0", 1)[0]
        return [line for line in used.split(b"\n") if _whole(line)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _whole(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _append_to(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, _MODE)
    try:
        _write(descriptor, data)
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes) -> None:
    """One write, so that only the last line can be torn; all of it is on the disk afterwards, or nothing is in the file."""
    before = os.fstat(descriptor).st_size
    try:
        written = os.write(descriptor, data)
        os.fsync(descriptor)
    except OSError:
        _cut(descriptor, before)
        raise
    if written != len(data):
        _cut(descriptor, before)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _cut(descriptor: int, size: int) -> None:
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, size)


def _ends_torn(path: Path) -> bool:
    with path.open("rb") as stream:
        if stream.seek(0, os.SEEK_END) == 0:
            return False
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) != b"\n"
