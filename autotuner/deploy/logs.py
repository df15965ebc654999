"""Follows the log of a server without reading any part of it twice."""

from __future__ import annotations

import re

from autotuner.services.base import Handle, ServiceManager

HEAD_CHARS = 2 << 20
TAIL_CHARS = 4 << 20
SHORT_BYTES = 1 << 18
"""A piece below this was all that there was when it was read."""
_LINE_END = re.compile(rb"\r\n|\n|\r")
"""Progress bars rewrite their line with a carriage return."""


class LogFollower:
    """Hands out new lines, and keeps the first and the last part of the log for whoever must explain it."""

    def __init__(self, services: ServiceManager, handle: Handle) -> None:
        self._services = services
        self._handle = handle
        self._offset = 0
        self._partial = b""
        self._head = ""
        self._tail = ""

    def lines(self) -> list[str]:
        """Complete lines that were written since the last call.

        A server that writes faster than it is read is not followed to its end, which would never come: a short piece is the last one.
        """
        found: list[str] = []
        more = True
        while more:
            chunk = self._services.log(self._handle, offset=self._offset)
            more = len(chunk) >= SHORT_BYTES
            self._offset += len(chunk)
            chunk = chunk.replace(b"\0", b"")  # a part that was given back to the file system reads as zeros
            self._keep(chunk.decode(errors="replace"))
            *complete, self._partial = _LINE_END.split(self._partial + chunk)
            found += [line.decode(errors="replace") for line in complete if line.strip()]
        return found

    @property
    def text(self) -> str:
        """What was read so far; of a very long log the middle is left out."""
        return self._head + self._tail

    def _keep(self, text: str) -> None:
        room = HEAD_CHARS - len(self._head)
        self._head += text[:room] if room > 0 else ""
        self._tail = (self._tail + text[max(room, 0) :])[-TAIL_CHARS:]
