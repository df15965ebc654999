"""Who listens on the endpoint's port, and whether that is the engine."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autotuner.model.host import Host
from autotuner.services.hostside import HostSide
from autotuner.services.onhost.processes import SERVICE_MARK, SESSION_MARK, service_name
from autotuner.services.onhost.sockets import TABLES, parse_listeners
from autotuner.transports.base import Transport

_INTERPRETER = re.compile(r"^(python|pypy)[0-9.]*$")
_SHOWN_WORDS = 5
_SHOWN = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The launch command behind a listener, as the host's inspection describes it; ``details`` hold its environment and are not shown."""

    pid: int
    argv: tuple[str, ...]
    problems: tuple[str, ...]
    """Why it could not be started again as it is."""
    tree: tuple[int, ...]
    """It and everything below it."""
    details: dict[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return f"{shown(self.argv)} (pid {self.pid})"

    @property
    def left_by_tuner(self) -> bool:
        """Whether a tuner started it as a candidate."""
        return bool(self.details["marks"][SESSION_MARK])

    @property
    def service(self) -> str | None:
        """The name under which a service manager started it, if one did."""
        return service_name(self.details["marks"][SERVICE_MARK] or "") or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """What listens on a port: nothing, somebody, or somebody who cannot be seen (``owner`` is ``None``)."""

    listening: bool
    owner: Owner | None = None

    def __str__(self) -> str:
        return str(self.owner) if self.owner else "a process that this user cannot see"


def listener_on(port: int, host_side: HostSide) -> Listener:
    """Who listens on ``port`` of the host now."""
    return read_listener(host_side.call("inspect", {"port": port}))


def read_listener(reply: dict[str, Any]) -> Listener:
    """The host's answer to ``inspect``."""
    owner = reply.get("owner")
    if owner is None:
        return Listener(listening=bool(reply.get("listening")))
    return Listener(
        listening=True,
        owner=Owner(
            pid=owner["pid"], argv=tuple(owner["argv"]), problems=tuple(owner["problems"]), tree=tuple(owner["tree"]), details=owner
        ),
    )


def shown(argv: Sequence[str]) -> str:
    """The beginning of a command line, short enough for a message."""
    words = [word if word.isprintable() else repr(word) for word in argv]
    text = " ".join(words[:_SHOWN_WORDS]) + (" …" if len(words) > _SHOWN_WORDS else "")
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def port_open(port: int, transport: Transport) -> bool:
    """Whether anything listens on ``port`` of the host, at any address. Reads two files; runs nothing."""
    for table in TABLES:
        try:
            text = transport.read(table).decode(errors="replace")
        except FileNotFoundError:
            continue  # a kernel without IPv6 has one table only
        if port in parse_listeners(text):
            return True
    return False


def looks_like_engine(argv: Sequence[str], host: Host) -> bool:
    """Whether a command line starts the host's engine: its own program, or an interpreter that is told to run a part of it.

    ``nginx -c /etc/sglang.conf`` does not; ``python -m sglang.launch_server`` and ``/opt/venv/bin/sglang serve`` do.
    """
    if not argv:
        return False
    word = re.compile(rf"(^|[/._-]){host.engine.name}([/._-]|$)")
    program = posixpath.basename(argv[0])
    if word.search(program):
        return True
    if not _INTERPRETER.match(program):
        return False
    target = _target(argv[1:])
    return bool(word.search(target)) or target.startswith("autotuner.engines.simulated")


def _target(arguments: Sequence[str]) -> str:
    """The module or script that an interpreter is told to run."""
    for index, argument in enumerate(arguments):
        if argument == "-m":
            return arguments[index + 1] if index + 1 < len(arguments) else ""
        if not argument.startswith("-"):
            return argument
    return ""
