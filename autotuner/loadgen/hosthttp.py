"""The control side of a server that only its own host reaches: httpx's requests, asked by a program there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import httpx

from autotuner.errors import TransportError

_OF_THE_WIRE = {"content-encoding", "content-length", "transfer-encoding", "connection"}
"""Headers that spoke of the body as it was sent there; what comes here is decoded."""

Ask = Callable[[dict[str, Any]], Mapping[str, Any]]
"""``{"method", "url", "body"?, "timeout_s"}`` → ``{"status", "headers", "body"}`` or ``{"error", "kind"}``; raises ``TransportError``."""


class HostHttp(httpx.BaseTransport):
    """Carries requests to the host by ``ask`` and their answers back. Bodies are text."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The host's answer; every failure is an exception of httpx."""
        question: dict[str, Any] = {"method": request.method, "url": str(request.url), "timeout_s": _timeout_s(request)}
        if body := request.read():
            question["body"] = body.decode()
        try:
            answer = self._ask(question)
        except TransportError as error:
            raise httpx.ConnectError(error.message, request=request) from error
        if "error" in answer:
            kind = httpx.ReadTimeout if answer.get("kind") == "timeout" else httpx.ConnectError
            raise kind(str(answer["error"]), request=request)
        try:
            headers = [(name, value) for name, value in dict(answer["headers"]).items() if name.lower() not in _OF_THE_WIRE]
            return httpx.Response(int(answer["status"]), headers=headers, content=str(answer["body"]).encode(), request=request)
        except (KeyError, TypeError, ValueError) as error:
            raise httpx.RemoteProtocolError(f"the host's program gave no HTTP answer: {error!r}", request=request) from error


def _timeout_s(request: httpx.Request) -> float:
    """The longest wait that httpx was told; 30 s when it was told none."""
    told = [value for value in request.extensions.get("timeout", {}).values() if value is not None]
    return max(told, default=30.0)
