"""What a server tells of its speculation is asked for only where it is understood; the answers then say it themselves."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from autotuner.loadgen.control import ControlClient
from autotuner.loadgen.details import tells_speculation

CHAT = "/v1/chat/completions"
TOLD = {"spec_accept_length": 2.0, "spec_verify_ct": 4, "spec_num_correct_drafts": 4, "spec_num_proposed_drafts": 12}


@contextmanager
def endpoint(status: int, extension: object) -> Iterator[tuple[ControlClient, list[dict[str, object]]]]:
    """A chat endpoint that answers so, and what it was asked."""
    asked: list[dict[str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            answer = {"choices": [{"message": {"content": "1 2"}}], "usage": {"completion_tokens": 8}}
            body = json.dumps({**answer, **({} if extension is None else {"sglext": extension})}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with ControlClient(f"http://127.0.0.1:{server.server_port}") as control:
            yield control, asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_server_that_tells_is_known_by_one_short_request() -> None:
    with endpoint(200, {"spec_tokens_details": TOLD}) as (control, asked):
        assert tells_speculation(control, model="m", chat_path=CHAT)
    assert len(asked) == 1
    assert (asked[0]["return_spec_tokens_details"], asked[0]["max_tokens"]) == (True, 8)


@pytest.mark.parametrize(
    ("status", "extension"),
    [
        (200, None),
        (200, "x"),
        (200, {"spec_tokens_details": None}),
        (200, {"spec_tokens_details": {**TOLD, "spec_verify_ct": 0}}),
        (400, {"spec_tokens_details": TOLD}),
        (422, None),
        (500, None),
    ],
)
def test_a_server_that_passes_over_it_does_not_speculate_or_refuses_is_not_asked_again(status: int, extension: object) -> None:
    with endpoint(status, extension) as (control, _):
        assert not tells_speculation(control, model="m", chat_path=CHAT)


def test_a_server_that_is_gone_does_not_tell() -> None:
    with endpoint(200, None) as (control, _):
        url = control.base_url
    with ControlClient(url, timeout_s=2) as control:
        assert not tells_speculation(control, model="m", chat_path=CHAT)
