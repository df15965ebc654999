"""SshTransport: a host that is reached over the network."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from autotuner.errors import TransportError
from autotuner.model.host import SshTransport as SshDocument
from autotuner.transports.base import Completed, Stream
from autotuner.transports.ssh import files
from autotuner.transports.ssh.channels import Ended
from autotuner.transports.ssh.connection import Connection
from autotuner.transports.ssh.failures import Lost, NotAdmitted
from autotuner.transports.ssh.quoting import CommandLine, quoted
from autotuner.transports.ssh.settings import targets

RETRY_S = 120.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_MARK = "autotuner"
_PROBE_S = 30.0


class SshTransport:
    """Acts on a host over SSH. Nothing is connected before the first command; a lost connection is made anew by the next one.

    A command that ``again`` was said of is repeated for up to ``retry_s`` seconds after the connection was lost; one that it was not said
    of raises ``TransportError``: how it ended is unknown. All methods may be called by several threads at once.
    """

    def __init__(self, document: SshDocument, *, retry_s: float = RETRY_S) -> None:
        self._document = document
        self._retry_s = retry_s
        self._targets = targets(document)
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._for_streams: list[Connection] = []
        self._admitted = False
        self._closed = False
        self._lost = 0
        self.address = str(self._targets[-1].who)

    @property
    def hostname(self) -> str:
        """Name or address of the machine itself, as the last bastion or the controller connects to it."""
        return self._targets[-1].host

    @property
    def interruptions(self) -> int:
        """How often the host was not heard of for three seconds, and how often the connection was lost (by silence: both)."""
        with self._lock:
            self._drop_dead()
            return self._lost + sum(connection.gaps for connection in self._connections())

    @property
    def rtt_s(self) -> float | None:
        """Median round-trip time to sshd in seconds; ``None`` before it was measured."""
        with self._lock:
            return self._connection.rtt_s if self._connection else None

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
        """Run a command to its end. See ``Transport.run``; death by a signal is return code 128 + signal, as a shell gives it."""
        ended = self._execute(quoted(argv, env=env, cwd=cwd), timeout_s=timeout_s, stdin=stdin, again=again)
        return Completed(
            returncode=ended.returncode, stdout=ended.stdout.decode(errors="replace"), stderr=ended.stderr.decode(errors="replace")
        )

    def stream(self, argv: Sequence[str]) -> Stream:
        """Start a program and talk to it, on connections of their own so that commands never wait behind measured traffic."""
        command = quoted(argv)
        with self._lock:
            self._connected()
            self._drop_dead()
            for connection in self._for_streams:
                stream = connection.stream(command)
                if stream is not None:
                    return stream
            connection = Connection(self._targets)
            self._for_streams.append(connection)
            stream = connection.stream(command)
        if stream is None:
            raise TransportError(f"{self.address}: a new connection has no room for a channel", hint="check MaxSessions in sshd_config")
        return stream

    def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Bytes of a file. Raises ``FileNotFoundError`` when it is not there."""
        return files.read(self._repeatable, self.address, path, offset=offset, limit=limit)

    def write(self, path: str, data: bytes, *, mode: int = 0o644, owner: str | None = None) -> None:
        """Write a file atomically and durably, and make the folders above it."""
        files.write(self._repeatable, self.address, path, data, mode=mode, owner=owner)

    def exists(self, path: str) -> bool:
        """Whether anything is at ``path``."""
        return files.exists(self._repeatable, self.address, path)

    def remove(self, path: str) -> None:
        """Remove a file; nothing happens when it is not there."""
        files.remove(self._repeatable, self.address, path)

    def fresh(self) -> SshTransport:
        """Another transport to the same host over connections of its own. The caller closes it."""
        other = SshTransport(self._document, retry_s=self._retry_s)
        other._admitted = self._admitted
        return other

    def close(self) -> None:
        """Close the connections for good: streams and commands end, and nothing connects again."""
        with self._lock:
            self._closed = True
            for connection in self._connections():
                self._lost += connection.gaps
                connection.close()
            self._connection = None
            self._for_streams.clear()

    def _repeatable(self, argv: Sequence[str], *, stdin: bytes, timeout_s: float, env: Mapping[str, str]) -> Ended:
        return self._execute(quoted(argv, env=env), timeout_s=timeout_s, stdin=stdin, again=True)

    def _execute(self, command: CommandLine, *, timeout_s: float, stdin: bytes, again: bool) -> Ended:
        until = time.monotonic() + self._retry_s
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return self._connected().run(command, stdin=stdin, timeout_s=timeout_s)
            except (Lost, NotAdmitted):
                # A host that never let us in is not waited for: the document is wrong, or the host is not there at all.
                if not again or not self._admitted or time.monotonic() + pause > until:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _connected(self) -> Connection:
        with self._lock:
            if self._closed:
                raise TransportError(f"{self.address}: this connection was closed", hint="this is a defect of autotuner: please report it")
            self._drop_dead()
            if self._connection is None:
                connection = Connection(self._targets)
                if not self._admitted:
                    try:
                        self._probe(connection)
                    except BaseException:
                        connection.close()
                        raise
                self._connection = connection
                self._admitted = True
            return self._connection

    def _probe(self, connection: Connection) -> None:
        """Find out whether a command's output is its own: a login shell that prints would falsify everything that is read."""
        ended = connection.run(quoted(["printf", "%s", _MARK]), stdin=b"", timeout_s=_PROBE_S)
        if ended.stdout != _MARK.encode() or ended.returncode != 0:
            said = " ".join((ended.stdout + b" " + ended.stderr).decode(errors="replace").split())[:200]
            raise TransportError(
                f"{self.address}: the login shell does not run a command cleanly: it said {said!r} (return code {ended.returncode})",
                hint="the account needs a real login shell whose startup files print nothing when no terminal is there",
            )

    def _connections(self) -> list[Connection]:
        return [*([self._connection] if self._connection else []), *self._for_streams]

    def _drop_dead(self) -> None:
        for connection in self._connections():
            if not connection.alive:
                connection.close()
                self._lost += 1 + connection.gaps
                if connection is self._connection:
                    self._connection = None
                else:
                    self._for_streams.remove(connection)
