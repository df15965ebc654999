"""The mock server: one thread, one epoll, standard library only, a process of its own.

``python -m benchmarks.loadgen.mock [--port 0]`` prints its port and serves until its standard input closes. Chat completions are answered
as ``scripts`` says. ``GET /truth`` gives what was sent and when, a line of JSON for each request, and forgets it. ``GET /metrics`` is a
Prometheus page with the counters of SGLang and of vLLM.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import json
import resource
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.loadgen.metrics_page import Totals
from benchmarks.loadgen.scenarios import script_of
from benchmarks.loadgen.scripts import STAMP_MONOTONIC, STAMP_REALTIME, Ask, Frame, Script, load_frames

SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("@ll")
READ = 1 << 18
PROMPT_HEAD = 64
CHARS_PER_TOKEN, TEMPLATE_TOKENS = 4, 20
JSON_HEAD = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


@dataclass(slots=True)
class Stream:
    """An answer on its way."""

    truth: dict[str, Any]
    frames: Iterator[Frame]
    due_ns: int
    chunked: bool = True
    dies: bool = False
    left: list[bytes] = field(default_factory=list)
    """Parts of the present frame that are not written yet."""
    frame: Frame | None = None
    script: Script | None = None
    sent_ns: int = 0
    """Just before the ``send`` that took the last bytes."""
    blocked: bool = False
    """The present frame waits for room in the socket."""


@dataclass(slots=True)
class Peer:
    """A connection."""

    sock: socket.socket
    received: bytearray = field(default_factory=bytearray)
    begin_ns: int | None = None
    """CLOCK_MONOTONIC at which the kernel had the first bytes of the present request."""
    out: bytearray = field(default_factory=bytearray)
    """What the socket did not take yet."""
    stream: Stream | None = None
    close: bool = False


class Mock:
    """Serves until ``stop``."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port), backlog=4096)
        self._listener.setblocking(False)  # noqa: FBT003 - the standard library's own signature
        self._listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)  # inherited by what is accepted
        self.port = self._listener.getsockname()[1]
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._epoll.register(sys.stdin, select.EPOLLIN)
        self._peers: dict[int, Peer] = {}
        self._due: list[tuple[int, int, Peer, Stream]] = []
        self._order = itertools.count()
        self._serials = itertools.count()
        self._truth: list[dict[str, Any]] = []
        self.totals = Totals()

    def serve(self) -> None:
        """Until standard input ends."""
        while True:
            wait_s = max(0.0, (self._due[0][0] - time.monotonic_ns()) / 1e9) if self._due else -1
            for descriptor, happened in self._epoll.poll(wait_s):
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor == sys.stdin.fileno():
                    if not sys.stdin.buffer.read1(1):  # type: ignore[union-attr]
                        return
                elif (peer := self._peers.get(descriptor)) is not None:
                    self._happened(peer, happened)
            now_ns = time.monotonic_ns()
            while self._due and self._due[0][0] <= now_ns:
                _, _, peer, stream = heapq.heappop(self._due)
                if peer.stream is stream:
                    self._write_due(peer, stream)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self._listener.accept()
                sock.setblocking(False)  # noqa: FBT003 - the standard library's own signature
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._peers[sock.fileno()] = Peer(sock)
                self._epoll.register(sock, select.EPOLLIN)

    def _happened(self, peer: Peer, happened: int) -> None:
        if happened & select.EPOLLOUT and peer.out:
            self._flush(peer)
        if happened & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and peer.sock.fileno() >= 0:
            self._read(peer)

    def _read(self, peer: Peer) -> None:
        try:
            data, ancillary, _, _ = peer.sock.recvmsg(READ, 64)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self._end(peer, "left")
            return
        if peer.begin_ns is None:
            peer.begin_ns = _received_ns(ancillary)
        peer.received += data
        self._requests(peer)

    def _requests(self, peer: Peer) -> None:
        while peer.stream is None and (end := peer.received.find(b"\r\n\r\n")) >= 0:
            head = bytes(peer.received[:end])
            lines = head.split(b"\r\n")
            fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
            size = end + 4 + int(fields.get(b"content-length", b"0"))
            if len(peer.received) < size:
                return
            body = bytes(peer.received[end + 4 : size])
            del peer.received[:size]
            method, path, _ = lines[0].split(b" ", 2)
            peer.close = fields.get(b"connection", b"").lower() == b"close"
            begin_ns, peer.begin_ns = peer.begin_ns or time.monotonic_ns(), None
            if method == b"POST" and path.endswith(b"/chat/completions"):
                self._chat(peer, json.loads(body), begin_ns)
            else:
                self._page(peer, path.partition(b"?")[0])

    def _page(self, peer: Peer, path: bytes) -> None:
        kind, status = b"application/json", 200
        if path == b"/truth":
            open_now = [other.stream.truth for other in self._peers.values() if other.stream is not None]
            text = "".join(json.dumps(truth) + "\n" for truth in [*self._truth, *open_now]).encode()
            self._truth.clear()
        elif path == b"/metrics":
            kind, text = b"text/plain", self.totals.page().encode()
        elif path == b"/v1/models":
            text = b'{"object":"list","data":[{"id":"mock","object":"model","owned_by":"mock"}]}'
        elif path in (b"/health", b"/"):
            text = b"{}"
        else:
            status, text = 404, b'{"error":"no such page"}'
        self._send(peer, (JSON_HEAD % (status, len(text))).replace(b"application/json", kind) + text)
        self._answered(peer)

    def _chat(self, peer: Peer, body: dict[str, Any], begin_ns: int) -> None:
        text = prompt_of(body)
        options = body.get("stream_options") or {}
        ask = Ask(
            serial=next(self._serials),
            model=str(body["model"]),
            max_tokens=int(body.get("max_tokens") or body.get("max_completion_tokens") or 16),
            prompt_tokens=TEMPLATE_TOKENS + -(-len(text) // CHARS_PER_TOKEN),
            usage=bool(options.get("include_usage")),
            continuous=bool(options.get("continuous_usage_stats")),
            spec_details=bool(body.get("return_spec_tokens_details")),
        )
        now_ns = time.monotonic_ns()
        truth: dict[str, Any] = {
            "serial": ask.serial,
            "model": ask.model,
            "prompt": text[:PROMPT_HEAD],
            "prompt_tokens": ask.prompt_tokens,
            "max_tokens": ask.max_tokens,
            "begin_ns": begin_ns,
            "asked_ns": now_ns,
            "chunks": [],
            "outcome": "open",
        }
        mode, _, rate = ask.model.partition(":")
        if not body.get("stream"):
            usage = {"prompt_tokens": ask.prompt_tokens, "completion_tokens": 1, "total_tokens": ask.prompt_tokens + 1}
            choice = {"index": 0, "message": {"role": "assistant", "content": "tok"}, "finish_reason": "length"}
            whole = json.dumps({"id": "1", "object": "chat.completion", "model": ask.model, "choices": [choice], "usage": usage}).encode()
            self._send(peer, JSON_HEAD % (200, len(whole)) + whole)
            self._answered(peer)
            return
        if rate:
            period_ns = int(1e9 / float(rate))
            begin = now_ns
            if mode == "lockstep":  # every stream's times lie on one grid, so all that live are written in one step
                begin = -(-now_ns // period_ns) * period_ns
            stream = Stream(truth, load_frames(ask, period_ns / 1e9), begin)
        else:
            script = script_of(ask)
            truth["verify_steps"], truth["cached_tokens"] = script.verify_steps, script.cached
            if script.status != 200:
                text_of_error = b'{"error":{"message":"refused","code":%d}}' % script.status
                self._send(peer, JSON_HEAD % (script.status, len(text_of_error)) + text_of_error)
                truth |= {"outcome": "refused", "end_ns": time.monotonic_ns()}
                self._truth.append(truth)
                self._answered(peer)
                return
            truth["finish_reason"] = script.finish_reason
            stream = Stream(truth, iter(script.frames), now_ns, script.framing == "chunked", script.dies, script=script)
        peer.stream = stream
        self._begin(peer, stream)

    def _begin(self, peer: Peer, stream: Stream) -> None:
        chunked = stream.chunked
        head = STREAM_HEAD + (b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"Connection: close\r\n\r\n")
        parts = stream.script.head_parts if stream.script else 1
        width = -(-len(head) // parts)
        pieces = [head[at : at + width] for at in range(0, len(head), width)]
        self._send(peer, pieces[0])
        for piece in pieces[1:]:
            time.sleep(0.0005)
            self._send(peer, piece)
        self._next(peer, stream)

    def _next(self, peer: Peer, stream: Stream) -> None:
        """Have the stream's next frame written when it is due; at once, what belongs to the same moment."""
        frame = next(stream.frames, None)
        if frame is None:
            self._end_of_answer(peer, stream)
            return
        stream.frame = frame
        width = -(-len(frame.data) // frame.parts)
        stream.left = [frame.data] if frame.parts == 1 else [frame.data[at : at + width] for at in range(0, len(frame.data), width)]
        stream.due_ns += int(frame.after_s * 1e9)
        heapq.heappush(self._due, (stream.due_ns, next(self._order), peer, stream))

    def _write_due(self, peer: Peer, stream: Stream) -> None:
        frame = stream.frame
        if frame is None:
            return
        data = stream.left.pop(0)
        # Stamped parts are cut before they are stamped, so a stamp may lie across two of them and then stays a placeholder.
        mono_ns = time.monotonic_ns()
        if STAMP_MONOTONIC in data:
            data = data.replace(STAMP_MONOTONIC, b"%019d" % mono_ns).replace(STAMP_REALTIME, b"%019d" % time.time_ns())
        if stream.chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        stream.sent_ns = mono_ns
        self._send(peer, data)
        if peer.stream is not stream:
            return
        if stream.left:
            later_ns = int(frame.part_gap_s * 1e9 * (frame.parts - len(stream.left)))
            heapq.heappush(self._due, (stream.due_ns + later_ns, next(self._order), peer, stream))
        elif peer.out:
            stream.blocked = True
        else:
            self._written(peer, stream)

    def _written(self, peer: Peer, stream: Stream) -> None:
        """The last byte of a frame has been handed to the kernel."""
        stream.blocked = False
        if stream.frame is not None:
            after_ns = time.monotonic_ns()
            stream.truth["chunks"].extend((stream.sent_ns, after_ns, n) for n in stream.frame.tokens)
        self._next(peer, stream)

    def _send(self, peer: Peer, data: bytes) -> None:
        """Write, or have it written as soon as there is room."""
        if peer.out:
            peer.out += data
            return
        try:
            sent = peer.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._end(peer, "left")
            return
        if sent < len(data):
            peer.out += data[sent:]
            self._epoll.modify(peer.sock, select.EPOLLIN | select.EPOLLOUT)

    def _flush(self, peer: Peer) -> None:
        stream = peer.stream
        while peer.out:
            before_ns = time.monotonic_ns()
            try:
                del peer.out[: peer.sock.send(peer.out)]
            except BlockingIOError:
                return
            except OSError:
                self._end(peer, "left")
                return
            if stream is not None:
                stream.sent_ns = before_ns
        self._epoll.modify(peer.sock, select.EPOLLIN)
        if stream is not None and stream.blocked:
            self._written(peer, stream)
        elif stream is None:
            self._answered(peer)

    def _end_of_answer(self, peer: Peer, stream: Stream) -> None:
        if stream.dies:
            self._end(peer, "died")
            return
        if stream.chunked:
            self._send(peer, b"0\r\n\r\n")
        if peer.stream is not stream:
            return
        self.totals.answered(stream.truth)
        peer.close = peer.close or not stream.chunked
        self._record(peer, "sent")
        self._answered(peer)

    def _answered(self, peer: Peer) -> None:
        if peer.close and not peer.out:
            self._end(peer, "sent")
        elif peer.received:
            self._requests(peer)

    def _record(self, peer: Peer, outcome: str) -> None:
        if peer.stream is not None:
            truth, peer.stream = peer.stream.truth, None
            self._truth.append(truth | {"outcome": outcome, "end_ns": time.monotonic_ns()})

    def _end(self, peer: Peer, outcome: str) -> None:
        self._record(peer, outcome)
        if peer.sock.fileno() >= 0:
            self._peers.pop(peer.sock.fileno(), None)
            self._epoll.unregister(peer.sock)
            peer.sock.close()


def _received_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The kernel's receive time on CLOCK_MONOTONIC; now, where it gave none."""
    now_ns = time.monotonic_ns()
    offset_ns = time.time_ns() - now_ns
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(payload) >= TIMESPEC.size:
            seconds, nanoseconds = TIMESPEC.unpack_from(payload)
            return int(seconds * 1_000_000_000 + nanoseconds - offset_ns)
    return now_ns


def prompt_of(body: dict[str, Any]) -> str:
    """The text of a request's last message."""
    content = body["messages"][-1]["content"]
    return content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)


def main() -> int:
    """Serve until standard input closes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    mock = Mock(parser.parse_args().port)
    print(mock.port, flush=True)
    mock.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
