"""The httpx transport around the wire core: httpx stays the interface, its own network stack stays out of the measured path.

The whole answer is received, as a log, before ``handle_async_request`` returns; the body is decoded from the log only when it is read.
Give ``extensions={"log": ReadLog()}`` with the request to keep the log of an exchange that fails or is cancelled.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx

from autotuner.loadgen.answers import Answer, ReadLog, WireError, read_answer, read_head
from autotuner.loadgen.lanes import Connections


class MeasuredTransport(httpx.AsyncBaseTransport):
    """Plain HTTP/1.1 with a fresh connection per request, opened before the clock of the request starts.

    ``spare`` connections at most are kept open ahead of time. ``stall_s`` is how long an exchange may be silent.
    """

    def __init__(self, *, stall_s: float, spare: int = 0) -> None:
        self._stall_s = stall_s
        self._spare = spare
        self._connections: dict[tuple[str, int], Connections] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The answer, its log in ``extensions["log"]``; every failure is an exception of httpx."""
        if request.url.scheme != "http":
            raise httpx.UnsupportedProtocol(f"{request.url.scheme}:// is not measured, only http://", request=request)
        log = request.extensions.get("log") or ReadLog()
        content = _serialised(request, await request.aread())
        try:
            connection = await self._to(request.url).take()
            await connection.exchange(content, log, stall_s=self._stall_s, on_read=request.extensions.get("on_read"))
            head = read_head(b"".join(data for _, data in log.reads[:64]))
        except WireError as error:
            raise _as_httpx(error, log, request) from error
        if head is None:
            raise httpx.RemoteProtocolError("the connection was closed before an answer", request=request)
        return httpx.Response(head.status, headers=list(head.headers), stream=_LoggedBody(log), extensions={"log": log}, request=request)

    async def aclose(self) -> None:
        """Close the spare connections."""
        for connections in self._connections.values():
            await connections.aclose()

    def _to(self, url: httpx.URL) -> Connections:
        key = (url.host, url.port or 80)
        if key not in self._connections:
            self._connections[key] = Connections(*key, spare=self._spare)
        return self._connections[key]


class _LoggedBody(httpx.AsyncByteStream):
    """The body of a logged answer, decoded when it is read."""

    def __init__(self, log: ReadLog) -> None:
        self._log = log

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            answer: Answer = read_answer(self._log)
        except WireError as error:
            raise httpx.RemoteProtocolError(error.detail) from error
        yield answer.body
        if not answer.complete:
            raise httpx.RemoteProtocolError("the connection was closed before the answer was complete")


def _serialised(request: httpx.Request, body: bytes) -> bytes:
    lines = [f"{request.method} ".encode() + request.url.raw_path + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in request.headers.raw if name.lower() != b"connection"]
    return b"\r\n".join([*lines, b"Connection: close", b"", body])


def _as_httpx(error: WireError, log: ReadLog, request: httpx.Request) -> httpx.TransportError:
    if error.kind == "stalled":
        return httpx.ReadTimeout(error.detail, request=request)
    if error.kind == "malformed":
        return httpx.RemoteProtocolError(error.detail, request=request)
    return (httpx.ConnectError if log.sent_ns is None else httpx.ReadError)(error.detail, request=request)
