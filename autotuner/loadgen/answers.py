"""What came over a connection, and how it is read: HTTP/1 heads and bodies, and streams of server-sent events.

Standard library only, Python 3.10 on, and free of other modules of the project: it travels to hosts together with ``wire``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

HEAD_LIMIT = 1 << 16
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


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


class BodyReader:
    """Takes an HTTP/1 answer in pieces and gives its body in pieces, without buffering a chunk that is still on its way."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.complete = False
        self._buffer = b""
        self._left = 0
        self._state: Callable[[], bytes | None] = self._read_head

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
        self._left = _chunk_size(self._buffer[:end])
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


def chunks_end(body: bytes) -> bool:
    """Whether a body in chunks, without its head, is complete: goes from chunk to chunk and looks at nothing in between.

    Raises ``WireError`` of kind ``malformed``.
    """
    at = 0
    while (end := body.find(b"\r\n", at)) >= 0:
        size = _chunk_size(body[at:end])
        at = end + 2
        if size == 0:
            return body.startswith(b"\r\n", at) or body.find(b"\r\n\r\n", at) >= 0
        at += size + 2
    return False


def _chunk_size(line: bytes) -> int:
    text = line.partition(b";")[0].strip()
    try:
        return int(text, 16)
    except ValueError:
        raise WireError("malformed", f"chunk size is {text[:40]!r}") from None
