from __future__ import annotations

import socket

import httpx
import pytest

from autotuner.errors import TransportError
from autotuner.loadgen.control import HTTPX_ERRORS, ControlClient, as_transport_error, error_class

EXCEPTIONS = sorted(
    {
        value
        for name in dir(httpx)
        if isinstance(value := getattr(httpx, name), type) and issubclass(value, Exception) and value.__module__.startswith("httpx")
    },
    key=lambda kind: kind.__name__,
)


def an_instance(kind: type[Exception]) -> Exception:
    if kind is httpx.HTTPStatusError:
        request = httpx.Request("GET", "http://x")
        return httpx.HTTPStatusError("no", request=request, response=httpx.Response(500, request=request))
    if kind in (httpx.StreamConsumed, httpx.StreamClosed, httpx.ResponseNotRead, httpx.RequestNotRead):
        return kind()
    return kind("no")


@pytest.mark.parametrize("kind", EXCEPTIONS)
def test_every_exception_of_httpx_is_mapped(kind: type[Exception]) -> None:
    error = an_instance(kind)
    assert isinstance(error, HTTPX_ERRORS)
    assert error_class(error) in {"stalled", "connection", "malformed", "http", "url"}
    assert "reading metrics" in as_transport_error(error, "reading metrics").message


def test_the_walk_meets_them_all() -> None:
    assert len(EXCEPTIONS) > 25


def test_nobody_there_is_no_status_and_an_error_elsewhere() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with ControlClient(f"http://127.0.0.1:{unused.getsockname()[1]}", timeout_s=1) as client:
            assert client.status("/health") is None
            for call in (client.get_json, client.get_text, client.post):
                with pytest.raises(TransportError, match=r"127\.0\.0\.1"):
                    call("/metrics")


def test_an_address_that_is_none_is_an_error_of_the_project() -> None:
    with pytest.raises(TransportError, match="address"):
        ControlClient("http://[::1")
