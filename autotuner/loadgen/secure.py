"""Endpoints behind TLS, through ordinary httpx: the kernel's stamps are of encrypted bytes, so every time is this process's own.

The answer is logged in the form in which a plain one comes, so that everything above reads both alike. Every read counts as stamped by the
user, and so a cell says whose clock it has.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping

import httpx

from autotuner.loadgen.answers import ReadLog

CONNECT_S = 10.0


class UserStampedTransport(httpx.AsyncBaseTransport):
    """HTTP/1.1 over TLS, a fresh connection per request, whose clock starts after the handshake. ``stall_s``: how long it may be silent.

    Certificates are checked against the system's authorities, or those that ``SSL_CERT_FILE`` names.
    """

    def __init__(self, *, stall_s: float) -> None:
        # A connection that is kept may be closed by the server in the moment in which it is used again.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._inner = httpx.AsyncHTTPTransport(http1=True, http2=False, limits=limits, trust_env=True)
        self._timeout = {"connect": CONNECT_S, "read": stall_s, "write": stall_s, "pool": None}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The answer, its log in ``extensions["log"]``; every failure is an exception of httpx."""
        log: ReadLog = request.extensions.get("log") or ReadLog()
        on_read = request.extensions.get("on_read")

        async def trace(event: str, _info: Mapping[str, object]) -> None:
            # The connection stands by then, and nothing was sent.
            if event == "http11.send_request_headers.started":
                log.sent_ns = time.monotonic_ns()

        request.extensions = {**request.extensions, "timeout": self._timeout, "trace": trace}
        answer = await self._inner.handle_async_request(request)
        try:
            _note(log, _head(answer))
            async for data in answer.stream:  # type: ignore[union-attr]
                _note(log, data)
                if on_read is not None:
                    on_read()
            log.end_ns = log.reads[-1][0]
        finally:
            with contextlib.suppress(httpx.HTTPError):
                await answer.aclose()
        body = b"".join(data for _, data in log.reads[1:])
        return httpx.Response(answer.status_code, headers=answer.headers, content=body, extensions={"log": log}, request=request)

    async def aclose(self) -> None:
        """Close what is open."""
        await self._inner.aclose()


def _head(answer: httpx.Response) -> bytes:
    """A head without a length: the body, whose framing is gone, ends where the log does."""
    kind = answer.headers.get("content-type", "text/event-stream").encode("latin-1", "replace")
    return b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\n\r\n" % (answer.status_code, b"OK" if answer.status_code == 200 else b"-", kind)


def _note(log: ReadLog, data: bytes) -> None:
    if data:
        log.reads.append((time.monotonic_ns(), data))
        log.seen.append(0)
        log.user_stamps += 1
