"""The little of HTTP/1.1 that the simulated server speaks: requests with a length, answers with a length or in chunks, keep-alive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass

HEAD_LIMIT = 1 << 16
BODY_LIMIT = 1 << 26
REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
LAST_CHUNK = b"0\r\n\r\n"


class MalformedRequestError(Exception):
    """The client did not speak HTTP; ``status`` is what it is told before the connection is closed."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """One request; header names are in lower case, ``path`` is without its query."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def keep_alive(self) -> bool:
        """Whether the client wants to use the connection again."""
        return self.headers.get("connection", "").lower() != "close"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    body: bytes
    content_type: str = JSON

    @classmethod
    def of(cls, value: object, status: int = 200) -> Answer:
        """A JSON answer."""
        return cls(status, json.dumps(value).encode())

    @classmethod
    def error(cls, status: int, message: str, kind: str = "BadRequestError") -> Answer:
        """An error in the shape that the engine gives all of them."""
        return cls.of({"object": "error", "message": message, "type": kind, "param": None, "code": status}, status)

    def encode(self, *, keep_alive: bool = True) -> bytes:
        """Bytes on the wire."""
        return head(self.status, self.content_type, f"content-length: {len(self.body)}", keep_alive=keep_alive) + self.body


def head(status: int, content_type: str, length: str, *, keep_alive: bool = True) -> bytes:
    """Status line and headers; ``length`` is the header that says where the body ends."""
    connection = "" if keep_alive else "connection: close\r\n"
    return f"HTTP/1.1 {status} {REASONS[status]}\r\ncontent-type: {content_type}\r\n{length}\r\n{connection}\r\n".encode()


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


async def read_request(reader: asyncio.StreamReader) -> HttpRequest | None:
    """The next request of a connection, ``None`` when the client is done. Raises ``MalformedRequestError``."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise MalformedRequestError(400, "the head of the request is cut short") from error
        return None
    except asyncio.LimitOverrunError as error:
        raise MalformedRequestError(413, "the head of the request is too long") from error
    first, *lines = raw.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise MalformedRequestError(400, "the first line is not that of a request")
    headers = {name.strip().lower(): value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}
    return HttpRequest(method=parts[0], path=parts[1].partition("?")[0], headers=headers, body=await _body(reader, headers))


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if "transfer-encoding" in headers:
        raise MalformedRequestError(400, "bodies in chunks are not read here: send a content-length")
    text = headers.get("content-length", "0")
    if not text.isdecimal():
        raise MalformedRequestError(400, "content-length is not a number")
    length = int(text)
    if length > BODY_LIMIT:
        raise MalformedRequestError(413, f"the body has {length} bytes, {BODY_LIMIT} are read at most")
    try:
        return await reader.readexactly(length) if length else b""
    except asyncio.IncompleteReadError as error:
        raise MalformedRequestError(400, "the body is shorter than its content-length") from error
