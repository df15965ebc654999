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


class Stream(Protocol):
    """A program on the host that runs while it is talked to; it ends when its input is closed or the connection is lost."""

    def fileno(self) -> int:
        """The descriptor that becomes readable when there is output, or when it has ended."""
        ...

    def write(self, data: bytes) -> None:
        """All of ``data`` to its standard input. Raises ``TransportError`` when it is gone."""
        ...

    def read(self) -> bytes | None:
        """Output that is there now without waiting: ``None`` when there is none yet, empty when it has ended."""
        ...

    def close(self) -> None:
        """Close its input and let go of it. Idempotent."""
        ...


class Transport(Protocol):
    """Acts on one host. Implementations map every foreign error to ``TransportError``.

    Commands are lists of arguments, never shell strings, so no value can become a word of a shell. Every call has a timeout.
    """

    address: str
    """How people name the other end: ``local`` or ``user@host:port``."""

    @property
    def interruptions(self) -> int:
        """How often the connection was lost so far. What was measured while this number changed is not to be trusted."""
        ...

    @property
    def rtt_s(self) -> float | None:
        """Median round-trip time to the host in seconds, as far as it was measured; ``None`` where there is no network between."""
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        again: bool = False,
    ) -> Completed:
        """Run a command to its end. ``env`` is added to the host's own environment.

        ``again`` says that the command may be run a second time without harm: a lost connection is then made anew, with growing pauses,
        and the command is repeated. Raises ``TransportError`` when the outcome is unknown (timeout, lost connection); a missing program is
        return code 127.
        """
        ...

    def stream(self, argv: Sequence[str]) -> Stream:
        """Start a program and talk to it. Raises ``TransportError``."""
        ...

    def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Bytes of a file. Raises ``FileNotFoundError`` when it is not there."""
        ...

    def write(self, path: str, data: bytes, *, mode: int = 0o644, owner: str | None = None) -> None:
        """Write a file atomically and durably: a temporary file beside it, fsync, rename, read back. Makes the folders above it.

        ``owner`` is ``USER`` or ``USER:GROUP``; the connection's own by default. Raises ``AutotunerError`` for a full or read-only disk.
        """
        ...

    def exists(self, path: str) -> bool:
        """Whether anything is at ``path``."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; nothing happens when it is not there."""
        ...

    def fresh(self) -> Transport:
        """Another transport to the same host that shares nothing with this one, not even the connection. The caller closes it."""
        ...

    def close(self) -> None:
        """Give back what the transport holds."""
        ...
