"""Commands and streams on one channel each: both outputs are read as they come, so that neither end waits for the other."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import paramiko

from autotuner.errors import TransportError
from autotuner.transports.ssh.failures import Lost, mapped
from autotuner.transports.ssh.quoting import CommandLine

_CHUNK = 1 << 16
_WINDOW_WAIT_S = 0.02
_UNKNOWN = -1


def _end_input(channel: paramiko.Channel) -> None:
    """Say that no more input comes, unless the channel was closed meanwhile.

    The library's own ``shutdown_write`` sends this after it has let go of the channel's lock, and so may send it after the answer to the
    other side's close; sshd ends the whole connection for that ("ieof packet referred to nonexistent channel").
    """
    with channel.lock:
        message = None if channel.closed else channel._send_eof()  # noqa: SLF001
        if message is not None:
            channel.transport._send_user_message(message)  # noqa: SLF001


class TimedOut(TransportError):
    """The command did not end in time; the connection stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A command that ended, with its output as bytes."""

    returncode: int
    stdout: bytes
    stderr: bytes


class _Bell:
    """Rings when a buffer of the channel gets data or ends. Its owner silences it, so that no ring is lost between two buffers."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.set = ring

    def clear(self) -> None:
        """The buffers call this when they are empty."""


def run(channel: paramiko.Channel, command: CommandLine, stdin: bytes, timeout_s: float, who: str) -> Ended:
    """Run the command on a channel of its own and close that.

    Raises ``Lost`` when the connection broke, and ``TimedOut`` after ``timeout_s``: the command then still runs.
    """
    deadline = time.monotonic() + timeout_s
    rung = threading.Event()
    bell = _Bell(rung.set)
    try:
        with mapped(who):
            channel.settimeout(_WINDOW_WAIT_S)
            channel.exec_command(command.text)
            channel.in_buffer.set_event(bell)
            channel.in_stderr_buffer.set_event(bell)
            conversation = _Conversation(channel, stdin)
            while not conversation.over():
                if time.monotonic() >= deadline:
                    raise TimedOut(
                        f"{who}: {command.name} did not end within {timeout_s:g} s",
                        hint="the host may be overloaded, and the command may still run there; run it by hand to see what it waits for",
                    )
                waiting = _WINDOW_WAIT_S if conversation.sending else min(0.25, max(0.0, deadline - time.monotonic()))
                rung.wait(waiting)
                rung.clear()
                conversation.move()
            conversation.move()
        if channel.exit_status == _UNKNOWN:
            raise Lost(
                f"{who}: the connection was lost while {command.name} ran: how it ended is not known", hint="ask the host for its state"
            )
        return Ended(returncode=channel.exit_status, stdout=bytes(conversation.stdout), stderr=bytes(conversation.stderr))
    finally:
        _close(channel)


class _Conversation:
    """Feeds a command and reads it, never waiting long for either."""

    def __init__(self, channel: paramiko.Channel, stdin: bytes) -> None:
        self._channel = channel
        self._rest = memoryview(stdin)
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.sending = True

    def over(self) -> bool:
        """Whether the command ended and nothing more comes. The end of output and the return code come in either order."""
        channel = self._channel
        return bool(channel.closed or (channel.eof_received and channel.status_event.is_set()))

    def move(self) -> None:
        """Read what is there and send what fits."""
        channel = self._channel
        while channel.recv_ready():
            self.stdout += channel.recv(_CHUNK)
        while channel.recv_stderr_ready():
            self.stderr += channel.recv_stderr(_CHUNK)
        if self.sending and not channel.closed:
            self._send()

    def _send(self) -> None:
        try:
            while self._rest and self._channel.send_ready():
                sent = self._channel.send(self._rest[:_CHUNK].tobytes())
                if not sent:
                    break
                self._rest = self._rest[sent:]
            if not self._rest:
                _end_input(self._channel)
                self.sending = False
        except TimeoutError:
            pass
        except OSError:
            # The command closed its input without reading it all, as it may; its return code says whether that was right.
            self.sending = False


def _close(channel: paramiko.Channel) -> None:
    with contextlib.suppress(Exception):
        channel.close()


class SshStream:
    """A program on the host that is talked to. Made by ``SshTransport.stream``."""

    def __init__(self, channel: paramiko.Channel, command: CommandLine, who: str, let_go: Callable[[], None]) -> None:
        self._channel = channel
        self._name = command.name
        self._who = who
        self._let_go = let_go
        self._lock = threading.Lock()
        self._rung = False
        self._closed = False
        self._readable, self._ringing = os.pipe()
        try:
            with mapped(who):
                channel.exec_command(command.text)
                bell = _Bell(self._ring)
                channel.in_buffer.set_event(bell)
                channel.in_stderr_buffer.set_event(bell)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """The descriptor that becomes readable when there is output, or when it has ended."""
        return self._readable

    def write(self, data: bytes) -> None:
        """All of ``data`` to its standard input. Raises ``TransportError`` when it is gone."""
        with mapped(self._who):
            try:
                self._channel.sendall(data)
            except OSError as error:
                raise TransportError(
                    f"{self._who}: {self._name} ended, or the connection was lost", hint="ask the host for its state"
                ) from error

    def read(self) -> bytes | None:
        """Output that is there now without waiting: ``None`` when there is none yet, empty when it has ended."""
        channel = self._channel
        self._silence()
        while channel.recv_stderr_ready():
            channel.recv_stderr(_CHUNK)
        ended = channel.closed or channel.eof_received
        data: bytes | None = channel.recv(_CHUNK) if channel.recv_ready() else None
        if channel.recv_ready() or ended:
            self._ring()
        return b"" if data is None and ended else data

    def close(self) -> None:
        """Close its input and let go of it. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._readable)
            os.close(self._ringing)
        _close(self._channel)
        self._let_go()

    def _ring(self) -> None:
        with self._lock:
            if not self._rung and not self._closed:
                self._rung = True
                os.write(self._ringing, b"*")

    def _silence(self) -> None:
        with self._lock:
            if self._rung and not self._closed:
                os.read(self._readable, 1)
                self._rung = False
