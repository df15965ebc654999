"""ServiceManager: starts a server so that it outlives the connection, watches it, and stops all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from autotuner.services.hostside import HostSide


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """A server to start. ``env`` is added to the host's environment; secrets are ``env:``/``file:`` references, resolved on the host."""

    name: str
    """Label of the process or unit, unique on the host while it runs: ``candidate-17-30000``."""
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"
    secrets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """Whether a started server still runs, and how it ended if not."""

    running: bool
    pid: int | None = None
    exit_code: int | None = None
    """As a shell gives it: negative for a signal."""
    out_of_memory: bool = False
    """The kernel ended it, or a process of it, because memory of the host ran out."""
    by_hand: bool = False
    """Somebody else had it stopped: it did not end by itself, and not by this tuner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """A started server, as its manager knows it; survives the controller (it is only a name and paths on the host)."""

    name: str
    pid: int
    log: str
    """Where its log is: a path on the host, or the journal's unit."""


class ServiceManager(Protocol):
    """Starts, watches and stops servers on one host through its transport."""

    name: str

    @property
    def host_side(self) -> HostSide:
        """The host's programs, through which it acts."""
        ...

    def start(self, spec: LaunchSpec, *, session: str) -> Handle:
        """Start the server detached, for the session whose folder on the host is ``session``. Starting what was started is no error.

        Raises ``TransportError``, and ``StopStudy`` when it cannot be started at all or the session has lost the host.
        """
        ...

    def status(self, handle: Handle) -> ServiceStatus:
        """How it is now."""
        ...

    def log(self, handle: Handle, *, offset: int = 0) -> bytes:
        """Log bytes from ``offset`` on, which only ever grows from call to call; empty when there are no new ones."""
        ...

    def stop(self, handle: Handle, *, timeout_s: float) -> bool:
        """SIGTERM to all of it, SIGKILL after ``timeout_s``; returns when no process of it is left. Idempotent.

        Returns whether it ran no more because somebody else had stopped it.
        Raises ``StopStudy`` when something is left that cannot be killed.
        """
        ...
