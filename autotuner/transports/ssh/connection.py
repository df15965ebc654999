"""One connection to a host, through bastions where there are some, watched by a heartbeat."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import paramiko

from autotuner.errors import TransportError
from autotuner.transports.ssh import channels
from autotuner.transports.ssh.channels import Ended, SshStream, TimedOut
from autotuner.transports.ssh.failures import Lost, Peer, mapped
from autotuner.transports.ssh.heartbeat import Ear, Heartbeat
from autotuner.transports.ssh.login import CHANNEL_S, log_in
from autotuner.transports.ssh.quoting import CommandLine, quoted
from autotuner.transports.ssh.settings import Target

CONNECT_S = 10.0
_USER_TIMEOUT_MS = 15_000
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 2))
MOST_CHANNELS = 8
"""OpenSSH allows ten sessions for one connection (MaxSessions)."""

_CROWDED_S = 5.0
_CROWDED_PAUSE_S = 0.05

# The command's shell is known by its token and leads a process group of its own. OpenSSH has a request to signal a command, but refuses it
# where the login is root's. The token comes by the standard input, so that the search does not find itself.
_KILL = (
    "/bin/sh",
    "-c",
    'grep -lsaF -f - /proc/[0-9]*/cmdline | while IFS=/ read -r _ _ pid _; do kill -s KILL -- "-$pid"; done',
)
_KILL_S = 10.0

# What the library has to say is said by our errors; without this its errors would go to the user's terminal.
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)


class Connection:
    """A connection that stands or does not; it is never made anew. Raises on construction what ``log_in`` raises, and ``Lost``."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self.who = targets[-1].who
        self._slots = threading.BoundedSemaphore(MOST_CHANNELS)
        self._sessions: list[paramiko.Transport] = []
        try:
            sock: Any = _open_socket(targets[0])
            for number, target in enumerate(targets):
                ear = Ear(sock)
                try:
                    self._sessions.append(log_in(ear, target))
                except BaseException:
                    sock.close()
                    raise
                if number + 1 < len(targets):
                    sock = self._through(target, targets[number + 1])
        except BaseException:
            self.close()
            raise
        self._session = self._sessions[-1]
        self._heartbeat = Heartbeat(self._session, ear, self.close)

    @property
    def alive(self) -> bool:
        """Whether it stands, as far as is known."""
        return bool(self._session.is_active())

    @property
    def gaps(self) -> int:
        """How often the host was not heard of for an interval of the heartbeat."""
        return self._heartbeat.gaps

    @property
    def rtt_s(self) -> float | None:
        """Median round trip in seconds."""
        return self._heartbeat.rtt_s

    def run(self, command: CommandLine, *, stdin: bytes, timeout_s: float) -> Ended:
        """Run a command to its end. Raises ``Lost``, and ``TimedOut`` after ``timeout_s``.

        After a timeout its process group is killed; what left that group, or belongs to another user, may go on.
        """
        with self._slot(timeout_s):
            try:
                return channels.run(self._channel(), command, stdin, timeout_s, self.who)
            except TimedOut:
                with contextlib.suppress(TransportError):
                    channels.run(self._channel(), quoted(_KILL), command.token.encode(), _KILL_S, self.who)
                raise

    def stream(self, command: CommandLine) -> SshStream | None:
        """Start a program to talk to; ``None`` when every channel is taken."""
        if not self._slots.acquire(blocking=False):
            return None
        once = _once(self._slots.release)
        try:
            return SshStream(self._channel(), command, self.who, once)
        except BaseException:
            once()
            raise

    def close(self) -> None:
        """Close it, the innermost session first."""
        heartbeat = getattr(self, "_heartbeat", None)
        if heartbeat is not None:
            heartbeat.stop()
        for session in reversed(self._sessions):
            with contextlib.suppress(Exception):
                session.close()

    def _channel(self) -> paramiko.Channel:
        """A new channel. sshd counts one that was closed for a moment longer than we do, so a refusal is not final at once."""
        until = time.monotonic() + _CROWDED_S
        while True:
            try:
                with mapped(self.who):
                    return self._session.open_session(timeout=CHANNEL_S)
            except Lost:
                if not self.alive or time.monotonic() > until:
                    raise
            time.sleep(_CROWDED_PAUSE_S)

    def _through(self, bastion: Target, target: Target) -> paramiko.Channel:
        with mapped(Peer(f"{target.name} through {bastion.name}", target.by_hand())):
            session = self._sessions[-1]
            return session.open_channel("direct-tcpip", (target.host, target.port), ("127.0.0.1", 0), timeout=CONNECT_S)

    @contextlib.contextmanager
    def _slot(self, timeout_s: float) -> Iterator[None]:
        if not self._slots.acquire(timeout=timeout_s):
            raise TransportError(
                f"{self.who}: {MOST_CHANNELS} commands run already, and none ended within {timeout_s:g} s",
                hint="the host may be overloaded",
            )
        try:
            yield
        finally:
            self._slots.release()


def _once(act: Callable[[], None]) -> Callable[[], None]:
    left = [act]

    def run() -> None:
        if left:
            left.pop()()

    return run


def _open_socket(target: Target) -> socket.socket:
    """A TCP connection whose silent death the kernel notices. Tries every address of the name."""
    with mapped(target.who):
        error = OSError("the name has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(CONNECT_S)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in _KEEPALIVE:
                    sock.setsockopt(socket.IPPROTO_TCP, option, value)
                sock.connect(address)
            except OSError as failed:
                sock.close()
                error = failed
            else:
                return sock
        raise error
