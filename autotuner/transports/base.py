"""Transport: the one way in which anything is done on a host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A command that ended."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        """Whether it ended with 0."""
        return self.returncode == 0


class Transport(Protocol):
    """Acts on one host. Implementations map every foreign error to ``TransportError``.

    Commands are lists of arguments, never shell strings, so no value can become a word of a shell. Every call has a timeout.
    """

    address: str
    """How people name the other end: ``local`` or ``user@host:port``."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Completed:
        """Run a command to its end. ``env`` is added to the host's own environment.

        Raises ``TransportError`` when the outcome is unknown (timeout, lost connection); a missing program is return code 127.
        """
        ...

    def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Bytes of a file. Raises ``FileNotFoundError`` when it is not there."""
        ...

    def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file atomically: a temporary file beside it, fsync, rename. Makes the folders above it."""
        ...

    def exists(self, path: str) -> bool:
        """Whether anything is at ``path``."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; nothing happens when it is not there."""
        ...

    def close(self) -> None:
        """Give back what the transport holds."""
        ...
