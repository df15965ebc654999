"""A load worker on a host: drives lanes with requests that the tuner sends ahead of time, in the frames of ``frames``.

Standard library only, Python 3.10 on: ``answers``, ``wire``, ``lanes``, ``selfcheck``, ``frames`` and this file travel there as source and
leave nothing behind. It ends when its standard input does, and when the tuner is silent for too long while lanes run: a dead network closes
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from autotuner.loadgen.answers import WireError
from autotuner.loadgen.frames import FrameReader, Order, frame, packed_exchanges, unpacked_body
from autotuner.loadgen.lanes import Connections, Exchange, Lanes, Pace
from autotuner.loadgen.selfcheck import SelfCheck, hurry
from autotuner.loadgen.wire import stamps_on

PROGRESS_EVERY_S = 0.05
READ_SIZE = 1 << 18
BATCH_BYTES = 1 << 22
"""Bytes of answers in one frame, about."""
STDOUT = 1


class HostWorker:
    """Takes frames, drives one share after another. ``say`` sends a frame back."""

    def __init__(self, say: Callable[[bytes], None]) -> None:
        self._say = say
        self._order: Order | None = None
        self._bodies: dict[int, asyncio.Queue[bytes]] = {}
        self._taken: dict[int, int] = {}
        self._lanes: Lanes | None = None
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._check = SelfCheck()
        self._checking: asyncio.Task[None] | None = None

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Until the other side closes."""
        self._say(frame({"ready": os.getpid()}))
        frames = FrameReader()
        try:
            while data := await reader.read(READ_SIZE):
                self._live_on()
                for header, payload in frames.feed(data):
                    await self._take(header, payload)
                for task in self._tasks:
                    if task.done():
                        task.result()
        finally:
            await self._end()

    async def _take(self, header: dict[str, Any], payload: bytes) -> None:
        if "body" in header:
            queue = self._bodies.get(header["body"])
            if queue is not None:  # a request that was still on its way when the lanes had been stopped has nobody to ask it
                queue.put_nowait(unpacked_body(payload))
        elif "ping" in header:
            self._say(frame({"pong": header["ping"], "at_ns": time.monotonic_ns()}))
        elif "run" in header:
            self._order = header["run"]
            self._bodies = {lane: asyncio.Queue() for lane in header["run"]["lanes"]}
            self._taken = dict.fromkeys(self._bodies, 0)
        elif "begin" in header and self._order is not None:
            self._begin(self._order, header["begin"])
        elif "stop" in header and self._lanes is not None:
            await self._give_back(self._lanes, *header["stop"])

    def _begin(self, order: Order, begin_ns: int) -> None:
        pace = Pace(
            lanes=tuple(order["lanes"]),
            concurrency=order["concurrency"],
            output_tokens=order["output_tokens"],
            warmup_s=order["warmup_s"],
            begin_ns=begin_ns,
        )
        self._stop = asyncio.Event()
        connections = Connections(order["host"], order["port"], spare=len(pace.lanes))
        send = _Sender(connections, order)
        # One lane alone is measured from answer to answer, so that each end is told at once.
        on_answer = self._report if order["concurrency"] == 1 else lambda: None
        self._lanes = Lanes(pace, take=self._body, send=send, on_answer=on_answer)
        self._tasks = [asyncio.create_task(self._drive(self._lanes, connections)), asyncio.create_task(self._report_regularly())]
        self._check = SelfCheck()
        self._checking = asyncio.create_task(self._check.watch())
        self._live_on()

    def _live_on(self) -> None:
        """Put off the end: the signal ends the process even while it waits in a write that nobody reads."""
        if self._tasks and self._order is not None:
            signal.setitimer(signal.ITIMER_REAL, self._order["silence_s"])

    async def _drive(self, lanes: Lanes, connections: Connections) -> None:
        try:
            await lanes.run(self._stop)
        finally:
            await connections.aclose()

    async def _body(self, lane: int, turn: int) -> bytes:
        body = await self._bodies[lane].get()
        self._taken[lane] = turn + 1
        return body

    def _report(self) -> None:
        if self._lanes is not None:
            self._say(frame({"progress": asdict(self._lanes.progress()), "taken": list(self._taken.values())}))

    async def _report_regularly(self) -> None:
        while not self._stop.is_set():
            self._report()
            await asyncio.sleep(PROGRESS_EVERY_S)

    async def _give_back(self, lanes: Lanes, from_ns: int, until_ns: int) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)
        await self._end_check()
        kept = lanes.kept(from_ns)
        check = self._check.report(kept, from_ns, until_ns)
        batch: list[Exchange] = []
        size = 0
        for exchange in kept:
            batch.append(exchange)
            size += sum(len(data) for _, data in exchange.log.reads)
            if size >= BATCH_BYTES:
                self._say(packed_exchanges(batch))
                batch, size = [], 0
        self._say(packed_exchanges(batch))
        late = [late for late in lanes.late if late[0] >= from_ns]
        self._say(frame({"done": {"clock": lanes.clock, "late": late, "check": asdict(check)}}))
        await self._end()

    async def _end(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._end_check()
        self._tasks, self._lanes, self._order, self._bodies = [], None, None, {}

    async def _end_check(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
            self._checking = None


class _Sender:
    """Sends requests with nothing around the wire core."""

    def __init__(self, connections: Connections, order: Order) -> None:
        self._connections = connections
        self._stall_s = order["request_timeout_s"]
        host = f"[{order['host']}]" if ":" in order["host"] else order["host"]
        self._head = (
            f"POST {order['path']} HTTP/1.1\r\nHost: {host}:{order['port']}\r\nAccept: */*\r\nAccept-Encoding: identity\r\n"
            "Content-Type: application/json\r\nConnection: close\r\nContent-Length: "
        ).encode()

    async def __call__(self, exchange: Exchange, body: bytes, on_read: Callable[[], None]) -> None:
        request = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
        try:
            connection = await self._connections.take()
            await connection.exchange(request, exchange.log, stall_s=self._stall_s, on_read=on_read)
        except WireError as error:
            exchange.failed(error.kind, error.detail)


def say(data: bytes) -> None:
    """All of ``data`` to standard output, which may be one socket with a standard input that does not block."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(STDOUT, rest) :]
        except BlockingIOError:
            select.select([], [STDOUT], [])


async def _serve() -> None:
    reader = asyncio.StreamReader(limit=READ_SIZE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await HostWorker(say).serve(reader)


def main() -> int:
    """Serve the tuner until it closes the stream."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    hurry()
    try:
        with stamps_on():
            asyncio.run(_serve())
    except BrokenPipeError:
        return 0
    except Exception:  # noqa: BLE001 - the tuner tells the person; nothing else would
        with contextlib.suppress(OSError):
            say(frame({"defect": traceback.format_exc()}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
