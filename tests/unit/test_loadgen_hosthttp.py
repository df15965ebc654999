from __future__ import annotations

from typing import Any

import pytest

from autotuner.errors import TransportError
from autotuner.loadgen.control import ControlClient
from autotuner.loadgen.hosthttp import Ask, HostHttp

ANSWER: dict[str, Any] = {
    "status": 200,
    "headers": {"Content-Type": "application/json", "Transfer-Encoding": "chunked"},
    "body": '{"a": "é"}',
}


def client(ask: Ask) -> ControlClient:
    return ControlClient("http://127.0.0.1:30000", timeout_s=7, transport=HostHttp(ask))


def test_requests_are_asked_on_the_host_and_answers_come_back() -> None:
    asked: list[dict[str, Any]] = []

    def ask(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request)
        return ANSWER

    with client(ask) as control:
        assert control.get_json("/info") == {"a": "é"}
        assert control.post("/flush_cache") == 200
        control.post_json("/v1/chat", {"text": "ü"})
    assert asked[0] == {"method": "GET", "url": "http://127.0.0.1:30000/info", "timeout_s": 7}
    assert asked[1] == {"method": "POST", "url": "http://127.0.0.1:30000/flush_cache", "timeout_s": 7}
    assert asked[2]["body"] == '{"text":"ü"}'


def test_a_status_that_is_no_success_says_what_the_server_said() -> None:
    with client(lambda request: {"status": 503, "headers": {}, "body": "loading"}) as control:
        assert control.status("/health") == 503
        with pytest.raises(TransportError, match="HTTP 503: loading"):
            control.get_text("/health")


@pytest.mark.parametrize(
    ("answer", "counted"),
    [
        ({"error": "connection refused", "kind": "connection"}, "connection"),
        ({"error": "no answer within 7 s", "kind": "timeout"}, "stalled"),
        ({"status": 200}, "malformed"),
        ({"status": "so so", "headers": {}, "body": ""}, "malformed"),
    ],
)
def test_failures_there_are_failures_as_always(answer: dict[str, Any], counted: str) -> None:
    with client(lambda request: answer) as control:
        assert control.status("/health") is None
        with pytest.raises(TransportError, match=rf"GET http://127\.0\.0\.1:30000/metrics: .*\({counted}\)"):
            control.get_text("/metrics")


def test_a_lost_connection_to_the_host_is_no_answer() -> None:
    def lost(request: dict[str, Any]) -> dict[str, Any]:
        raise TransportError("root@h:22: the connection was lost")

    with client(lost) as control:
        assert control.status("/health") is None
        with pytest.raises(TransportError, match="the connection was lost"):
            control.get_text("/metrics")
