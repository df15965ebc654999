"""The wire core: one request on one TCP connection, reads stamped by the kernel and only logged while it runs.

Standard library only, Python 3.10 on, and free of other modules of the project, so that this one file can be sent to a host. Parsing (HTTP
head, chunks, server-sent events) happens afterwards, from the log, so that neither JSON nor a slow event loop can move a timestamp. All
times are nanoseconds of CLOCK_MONOTONIC, which every process of one machine shares; kernel stamps are CLOCK_REALTIME and converted by an
offset that is taken once per request.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

SO_TIMESTAMPNS = 35
"""Linux; the socket module does not name it. The control message has the same number."""
TIMESPEC = struct.Struct("@ll")
READ_SIZE = 1 << 16
ANCILLARY_SIZE = 64
HEAD_LIMIT = 1 << 16
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
OFFSET_LOOKS = 5
OFFSET_QUICK_NS = 2_000
LAST_CHUNK = b"\r\n0\r\n\r\n"


class WireError(Exception):
    """The exchange failed below HTTP. ``kind``: ``connection``, ``stalled`` or ``malformed``."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


@dataclass(slots=True)
class ReadLog:
    """What was sent and received, and when; grows while the exchange runs and stays whole when it is abandoned."""

    sent_ns: int | None = None
    """Just before the first byte was sent; ``None`` while connecting."""
    reads: list[tuple[int, bytes]] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    """When each read was made, beside the kernel's stamp of it; 0 where the kernel gave none."""
    user_stamps: int = 0
    """Reads for which the kernel gave no stamp."""
    end_ns: int | None = None
    """When the answer was complete or the other side closed."""

    @property
    def clock(self) -> str:
        """``kernel`` when every read carries the kernel's receive time, else ``user``."""
        return "user" if self.user_stamps else "kernel"


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
                self._log.seen.append(seen_ns)
                return int(seconds * 1_000_000_000 + nanoseconds - self._offset_ns)
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


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and headers of an answer."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    size: int
    """Bytes up to and including the empty line."""

    def get(self, name: bytes) -> bytes | None:
        """The header's value, the last one when repeated; ``name`` in lower case."""
        values = [value for key, value in self.headers if key.lower() == name]
        return values[-1] if values else None

    @property
    def chunked(self) -> bool:
        """Whether the body comes in chunks."""
        return b"chunked" in (self.get(b"transfer-encoding") or b"").lower()

    @property
    def length(self) -> int | None:
        """Length of the body, when it is announced or there can be none. Raises ``WireError`` when it is no number."""
        if self.status in (204, 304):
            return 0
        value = self.get(b"content-length")
        if value is None or self.chunked:
            return None
        if not value.isdigit():
            raise WireError("malformed", f"Content-Length is {value[:40]!r}")
        return int(value)


def read_head(raw: bytes) -> Head | None:
    """Head at the beginning of ``raw``; ``None`` while it is incomplete. Raises ``WireError`` when it is not HTTP/1."""
    if not raw.startswith(b"HTTP/1."[: len(raw)]):
        raise WireError("malformed", f"not an HTTP/1 answer: {raw[:40]!r}")
    end = raw.find(b"\r\n\r\n")
    if end < 0:
        if len(raw) > HEAD_LIMIT:
            raise WireError("malformed", f"headers are longer than {HEAD_LIMIT} bytes")
        return None
    status_line, *lines = raw[:end].split(b"\r\n")
    parts = status_line.split(b" ", 2)
    if len(parts) < 2 or not parts[1].isdigit():
        raise WireError("malformed", f"status line is {status_line[:40]!r}")
    pairs = (line.partition(b":") for line in lines)
    return Head(int(parts[1]), tuple((name.strip(), value.strip()) for name, _, value in pairs), end + 4)


class _Framing:
    """Where the body ends, decided without decoding it."""

    def __init__(self, head: Head, received: int) -> None:
        self.received = received
        self._chunked = head.chunked
        self._length = head.length
        self._tail = b""

    def ended(self, data: bytes, log: ReadLog) -> bool:
        if self._length is not None:
            return self.received >= self._length
        if not self._chunked:
            return False
        self._tail = (self._tail + data[-len(LAST_CHUNK) :])[-len(LAST_CHUNK) :]
        # The same bytes may stand inside a chunk, so what looks like the end is read properly, once.
        return self._tail == LAST_CHUNK and BodyReader.of(log).complete


class BodyReader:
    """Takes an HTTP/1 answer in pieces and gives its body in pieces, without buffering a chunk that is still on its way."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.complete = False
        self._buffer = b""
        self._left = 0
        self._state: Callable[[], bytes | None] = self._read_head

    @classmethod
    def of(cls, log: ReadLog) -> BodyReader:
        """A reader that has seen the whole log."""
        reader = cls()
        for _, data in log.reads:
            reader.feed(data)
        return reader

    def feed(self, data: bytes) -> bytes:
        """The part of the body that these bytes complete. Raises ``WireError`` of kind ``malformed``."""
        self._buffer += data
        out = []
        while not self.complete and (piece := self._state()) is not None:
            out.append(piece)
        return b"".join(out)

    def eof(self) -> None:
        """The other side closed: that ends a body without announced length."""
        if self._state == self._read_rest:
            self.complete = True

    def _read_head(self) -> bytes | None:
        self.head = read_head(self._buffer)
        if self.head is None:
            return None
        self._buffer = self._buffer[self.head.size :]
        length = self.head.length
        if self.head.chunked:
            self._state = self._read_size
        elif length is None:
            self._state = self._read_rest
        else:
            self._left, self.complete, self._state = length, length == 0, self._read_length
        return b""

    def _read_rest(self) -> bytes | None:
        return self._take(len(self._buffer))

    def _read_length(self) -> bytes | None:
        data = self._take(min(self._left, len(self._buffer)))
        self._left -= len(data or b"")
        self.complete = self._left == 0
        return data

    def _read_size(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            return None
        text = self._buffer[:end].partition(b";")[0].strip()
        try:
            self._left = int(text, 16)
        except ValueError:
            raise WireError("malformed", f"chunk size is {text[:40]!r}") from None
        self._buffer = self._buffer[end + 2 :]
        self._state = self._read_chunk if self._left else self._read_trailer
        return b""

    def _read_chunk(self) -> bytes | None:
        data = self._take(min(self._left, len(self._buffer)))
        self._left -= len(data or b"")
        if self._left == 0:
            self._state = self._read_chunk_end
        return data

    def _read_chunk_end(self) -> bytes | None:
        if len(self._buffer) < 2:
            return None
        if self._take(2) != b"\r\n":
            raise WireError("malformed", "a chunk is longer than its size says")
        self._state = self._read_size
        return b""

    def _read_trailer(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            return None
        self._buffer, self.complete = self._buffer[end + 2 :], end == 0
        return b""

    def _take(self, size: int) -> bytes | None:
        if size == 0:
            return None
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data


class EventReader:
    """Takes the body of an event stream in pieces and gives ``(event name, data)``.

    Lines end with LF or CRLF only: U+2028, U+2029 and U+0085 may stand inside JSON. Comments, ``id``, ``retry`` and unknown fields are
    skipped, and so is a byte order mark at the beginning. An event that no empty line ends is none.
    """

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        self._data: list[bytes] = []
        self._name = b""
        self._begun = False

    def feed(self, body: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The events that these bytes complete."""
        if b"\n" not in body:
            if body:
                self._partial.append(body)
            return
        *lines, rest = b"".join([*self._partial, body]).split(b"\n")
        self._partial = [rest] if rest else []
        if not self._begun:
            self._begun, lines[0] = True, lines[0].removeprefix(BYTE_ORDER_MARK)
        for line in lines:
            event = self._line(line.removesuffix(b"\r"))
            if event is not None:
                yield event

    def _line(self, line: bytes) -> tuple[bytes, bytes] | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value
        return None

    def _dispatch(self) -> tuple[bytes, bytes] | None:
        event = (self._name, b"\n".join(self._data)) if self._data else None
        self._name, self._data = b"", []
        return event


@dataclass(frozen=True, slots=True)
class Answer:
    """A log, read."""

    head: Head | None
    events: tuple[tuple[int, bytes, bytes], ...]
    """(time in ns of the read that completed it, event name, data)."""
    body: bytes
    complete: bool
    """Whether the body ended as HTTP says that it must."""


def read_answer(log: ReadLog) -> Answer:
    """HTTP and event stream of a log. Raises ``WireError`` of kind ``malformed``."""
    reader, events, body = BodyReader(), EventReader(), []
    found: list[tuple[int, bytes, bytes]] = []
    for stamp, data in log.reads:
        piece = reader.feed(data)
        body.append(piece)
        found.extend((stamp, name, text) for name, text in events.feed(piece))
    if log.end_ns is not None:
        reader.eof()
    return Answer(reader.head, tuple(found), b"".join(body), reader.complete)
