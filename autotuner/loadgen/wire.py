"""The wire core: one request on one TCP connection, reads stamped by the kernel and only logged while it runs.

Standard library only, Python 3.10 on, and free of other modules of the project but ``answers``, so that the two can be sent to a host.
Parsing (HTTP head, chunks, server-sent events) happens afterwards, from the log, so that neither JSON nor a slow event loop can move a
timestamp. All times are nanoseconds of CLOCK_MONOTONIC, which every process of one machine shares; kernel stamps are CLOCK_REALTIME and
converted by an offset that is taken once per request.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import time
from collections.abc import Callable

from autotuner.loadgen.answers import Head, ReadLog, WireError, chunks_end, read_head

SO_TIMESTAMPNS = 35
"""Linux; the socket module does not name it. The control message has the same number."""
TIMESPEC = struct.Struct("@ll")
READ_SIZE = 1 << 16
ANCILLARY_SIZE = 64
STAMP_SLACK_NS = 1_000_000
"""By so much a stamp may miss the time in which it must lie: the offset between the clocks is known to some microseconds only."""
OFFSET_LOOKS = 5
OFFSET_QUICK_NS = 2_000
LAST_CHUNK = b"\r\n0\r\n\r\n"


class Connection:
    """One TCP connection, opened ahead of time and used for one request."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._log = ReadLog()
        self._done: asyncio.Future[None] | None = None
        self._offset_ns = 0
        self._framing: _Framing | None = None
        self._pending = b""
        self._on_read: Callable[[], None] | None = None

    @classmethod
    async def open(cls, host: str, port: int, *, timeout_s: float) -> Connection:
        """Connect. Raises ``WireError`` of kind ``connection``."""
        opening = asyncio.ensure_future(cls._connect(host, port))
        try:
            done, _ = await asyncio.wait({opening}, timeout=timeout_s)
        except asyncio.CancelledError:
            _let_go(opening)
            raise
        if not done:
            _let_go(opening)
            raise WireError("connection", f"{host}:{port}: no connection within {timeout_s:g} s")
        return opening.result()

    @classmethod
    async def _connect(cls, host: str, port: int) -> Connection:
        loop = asyncio.get_running_loop()
        failure = f"no address for {host}"
        try:
            for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                sock = _new_socket(family, kind, protocol)
                try:
                    await loop.sock_connect(sock, address)
                except BaseException as error:
                    sock.close()
                    if not isinstance(error, OSError):
                        raise
                    failure = f"{host}:{port}: {error.strerror or error}"
                    continue
                return cls(sock)
        except OSError as error:
            failure = f"{host}:{port}: {error.strerror or error}"
        raise WireError("connection", failure)

    def fresh(self) -> bool:
        """Whether the other side still waits for a request."""
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    async def exchange(self, request: bytes, log: ReadLog, *, stall_s: float, on_read: Callable[[], None] | None = None) -> None:
        """Send ``request`` and log the answer until it is complete or the other side closes; closes the connection in any case.

        Raises ``WireError``: ``connection`` (reset, refused writes), ``stalled`` (no byte for ``stall_s``), ``malformed`` (no HTTP).
        """
        loop = asyncio.get_running_loop()
        self._log, self._on_read, self._done = log, on_read, loop.create_future()
        self._offset_ns = realtime_offset_ns()
        loop.add_reader(self._sock, self._readable)
        log.sent_ns = time.monotonic_ns()
        watchdog = _Watchdog(loop, log, stall_s, self._settle)
        try:
            self._write(request)
            await self._done
        finally:
            watchdog.cancel()
            self.close()

    def close(self) -> None:
        """Close at once; what the server still has to say is dropped. Idempotent."""
        if self._sock.fileno() < 0:
            return
        if self._done is not None:
            loop = self._done.get_loop()
            loop.remove_reader(self._sock)
            loop.remove_writer(self._sock)
        self._sock.close()

    def _write(self, rest: bytes | memoryview) -> None:
        try:
            sent = self._sock.send(rest)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            # A server may refuse a request before it has read all of it: its answer, if any, tells more than the failed write.
            if not self._log.reads:
                self._settle(WireError("connection", f"while sending: {error.strerror or error}"))
            return
        loop = asyncio.get_running_loop()
        left = memoryview(rest)[sent:]
        if left:
            loop.add_writer(self._sock, self._write_more, left)

    def _write_more(self, rest: memoryview) -> None:
        asyncio.get_running_loop().remove_writer(self._sock)
        self._write(rest)

    def _readable(self) -> None:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(READ_SIZE, ANCILLARY_SIZE)
            seen_ns = time.monotonic_ns()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._settle(WireError("connection", f"while receiving: {error.strerror or error}"))
            return
        if not data:
            self._log.end_ns = seen_ns
            self._settle(None)
            return
        self._log.reads.append((self._stamp(ancillary, seen_ns), data))
        try:
            complete = self._complete(data)
        except WireError as error:
            self._settle(error)
            return
        if self._on_read is not None:
            self._on_read()
        if complete:
            self._log.end_ns = self._log.reads[-1][0]
            self._settle(None)

    def _stamp(self, ancillary: list[tuple[int, int, bytes]], seen_ns: int) -> int:
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(payload) >= TIMESPEC.size:
                seconds, nanoseconds = TIMESPEC.unpack_from(payload)
                stamp_ns = int(seconds * 1_000_000_000 + nanoseconds - self._offset_ns)
                # An answer comes after its question and before it is read: else the kernel has another time than this process.
                if (self._log.sent_ns or 0) - STAMP_SLACK_NS <= stamp_ns <= seen_ns + STAMP_SLACK_NS:
                    self._log.seen.append(seen_ns)
                    return stamp_ns
        self._log.seen.append(0)
        self._log.user_stamps += 1
        return seen_ns

    def _complete(self, data: bytes) -> bool:
        """Whether the answer ends with this read. Cheap for all reads but those that look like the end."""
        if self._framing is None:
            self._pending += data
            head = read_head(self._pending)
            if head is None:
                return False
            self._framing = _Framing(head, len(self._pending) - head.size)
            data, self._pending = self._pending, b""
        else:
            self._framing.received += len(data)
        return self._framing.ended(data, self._log)

    def _settle(self, error: WireError | None) -> None:
        if self._done is None or self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)


def _let_go(opening: asyncio.Future[Connection]) -> None:
    """Give up an attempt to connect; a connection that comes of it all the same is closed."""
    opening.add_done_callback(lambda done: None if done.cancelled() or done.exception() else done.result().close())
    opening.cancel()


class _Watchdog:
    """Fails an exchange that has been silent for too long. One timer per request, not one per read."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: ReadLog, stall_s: float, settle: Callable[[WireError], None]) -> None:
        self._loop, self._log, self._stall_s, self._settle = loop, log, stall_s, settle
        self._timer = loop.call_later(stall_s, self._look)

    def cancel(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        last_ns = self._log.reads[-1][0] if self._log.reads else self._log.sent_ns or time.monotonic_ns()
        left_s = self._stall_s - (time.monotonic_ns() - last_ns) / 1e9
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look)
        else:
            self._settle(WireError("stalled", f"no byte for {self._stall_s:g} s"))


def _new_socket(family: int, kind: int, protocol: int) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)  # noqa: FBT003 - the standard library's own signature
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _stamped(sock)
    return sock


def stamps_on() -> socket.socket:
    """Have the kernel stamp what arrives from now on, for as long as the socket is held.

    It begins a moment after the first socket asks for it, and ends when none is left that does: what came between two requests to a quiet
    server would have no stamp.
    """
    return _stamped(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))


def _stamped(sock: socket.socket) -> socket.socket:
    if sys.platform == "linux":  # elsewhere the number means something else
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return sock


def realtime_offset_ns() -> int:
    """CLOCK_REALTIME minus CLOCK_MONOTONIC, now: the quickest of a few looks, since a process may lose its CPU between two of them."""
    best_ns, offset_ns = 1 << 62, 0
    for _ in range(OFFSET_LOOKS):
        before = time.monotonic_ns()
        real = time.time_ns()
        after = time.monotonic_ns()
        if after - before < best_ns:
            best_ns, offset_ns = after - before, real - (before + after) // 2
        if best_ns < OFFSET_QUICK_NS:
            break
    return offset_ns


class _Framing:
    """Where the body ends, decided without decoding it."""

    def __init__(self, head: Head, received: int) -> None:
        self.received = received
        self._chunked = head.chunked
        self._length = head.length
        self._head_size = head.size
        self._tail = b""

    def ended(self, data: bytes, log: ReadLog) -> bool:
        if self._length is not None:
            return self.received >= self._length
        if not self._chunked:
            return False
        self._tail = (self._tail + data[-len(LAST_CHUNK) :])[-len(LAST_CHUNK) :]
        # The same bytes may stand inside a chunk, so what looks like the end is looked at properly.
        return self._tail == LAST_CHUNK and chunks_end(b"".join([data for _, data in log.reads])[self._head_size :])
