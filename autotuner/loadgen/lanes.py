"""The closed loop itself: lanes that each send their next request as soon as one is answered.

Standard library only, Python 3.10 on, and free of other modules of the project but ``answers`` and ``wire``: it runs in the tuner's own
workers and, sent there as source, on hosts.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autotuner.loadgen.answers import BodyReader, EventReader, ReadLog, WireError
from autotuner.loadgen.wire import Connection

OUTPUT_KEYS = ("content", "tool_calls")
TEXT_KEYS = (*OUTPUT_KEYS, "reasoning_content", "reasoning")
SHORTEST_WARM_UP = 32
"""Tokens of the shortest warm-up answer."""
FAILURES_OF_A_DEAD_LANE = 3
BACKOFF_S = 0.05
LONGEST_BACKOFF_S = 2.0
CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """When the lanes of one worker ask, and for how long an answer."""

    lanes: tuple[int, ...]
    concurrency: int
    """Lanes of the cell, over all its workers."""
    output_tokens: int
    warmup_s: float
    begin_ns: int
    """CLOCK_MONOTONIC of this machine at which the cell began, the same for all workers."""

    def limit(self, lane: int, at_ns: int) -> int:
        """Tokens that an answer begun at ``at_ns`` may have.

        While warming up, lanes get answers of different length, so that they do not go on in step: in step, prefill and decode would
        take turns and a short window would see only one of them.
        """
        full = self.output_tokens
        if at_ns - self.begin_ns >= self.warmup_s * 1e9:
            return full
        return min(full, max(SHORTEST_WARM_UP, full * lane // self.concurrency))

    def start_delay_s(self, lane: int) -> float:
        """Lanes start one after another over half of the warm-up."""
        return self.warmup_s / 2 * lane / self.concurrency


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the lanes of a worker, or of all workers, have come. Sums over workers, but for ``last_end_ns``."""

    first: int = 0
    """Lanes that have seen a token."""
    answered: int = 0
    failed: int = 0
    dead: int = 0
    """Lanes whose last requests all failed."""
    reads: int = 0
    last_end_ns: int = 0
    """When the last answer ended."""

    def __add__(self, other: Progress) -> Progress:
        return Progress(
            first=self.first + other.first,
            answered=self.answered + other.answered,
            failed=self.failed + other.failed,
            dead=self.dead + other.dead,
            reads=self.reads + other.reads,
            last_end_ns=max(self.last_end_ns, other.last_end_ns),
        )


@dataclass(slots=True)
class Exchange:
    """One request of a lane, as it goes. ``index`` is its number in the cell."""

    index: int
    lane: int
    log: ReadLog = field(default_factory=ReadLog)
    error: str | None = None
    detail: str | None = None
    failed_ns: int | None = None

    @property
    def end_ns(self) -> int | None:
        """When it ended, well or not; ``None`` while it runs or when it was abandoned."""
        return self.log.end_ns if self.failed_ns is None else self.failed_ns

    def failed(self, error: str, detail: str) -> None:
        """Take note of a failure of the wire, unless the answer had come to its end before."""
        if self.log.end_ns is None:
            self.error, self.detail, self.failed_ns = error, detail, time.monotonic_ns()


Take = Callable[[int, int], Awaitable[bytes]]
"""Lane and turn → the body of its request without its length limit. Ahead of time, so it may take its time."""
Send = Callable[[Exchange, bytes, Callable[[], None]], Awaitable[None]]
"""Sends a body and logs the answer into the exchange, calling back after every read; failures go to ``Exchange.failed``."""


@dataclass(slots=True)
class _Lane:
    number: int
    has_token: bool = False
    failures: int = 0


class Lanes:
    """Drives the lanes of one worker until it is stopped; keeps every exchange."""

    def __init__(self, pace: Pace, *, take: Take, send: Send, on_answer: Callable[[], None]) -> None:
        self._pace = pace
        self._take = take
        self._send_body = send
        self._on_answer = on_answer
        self._lanes = [_Lane(number) for number in pace.lanes]
        self._exchanges: list[Exchange] = []
        self._answered = 0
        self._failed = 0
        self._last_end_ns = 0
        self._reads = 0
        self.late: list[tuple[int, int]] = []
        """(when, how long in ns) a lane stood still because its next request was not there yet."""

    async def run(self, stop: asyncio.Event) -> None:
        """Drive until ``stop``; then abandon what runs, without waiting for it."""
        # A collection of the oldest generation takes longer than a decode step.
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            tasks = [asyncio.create_task(self._drive(lane)) for lane in self._lanes]
            stopping = asyncio.create_task(stop.wait())
            # A lane never returns: if a task ends before the stop, it has a defect, which must be heard.
            done, _ = await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in (stopping, *tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for task in done:
                task.result()
        finally:
            gc.enable()
            gc.unfreeze()

    def progress(self) -> Progress:
        """How far it has come."""
        return Progress(
            first=sum(lane.has_token for lane in self._lanes),
            answered=self._answered,
            failed=self._failed,
            dead=sum(lane.failures >= FAILURES_OF_A_DEAD_LANE for lane in self._lanes),
            reads=self._reads,
            last_end_ns=self._last_end_ns,
        )

    @property
    def clock(self) -> str:
        """``kernel`` when every read was stamped by the kernel, else ``user``."""
        return "user" if any(exchange.log.user_stamps for exchange in self._exchanges) else "kernel"

    def kept(self, from_ns: int) -> list[Exchange]:
        """Every exchange that did not end before ``from_ns``, but for those that were never sent."""
        return [
            exchange
            for exchange in self._exchanges
            if (exchange.end_ns is None or exchange.end_ns >= from_ns) and (exchange.log.sent_ns is not None or exchange.error)
        ]

    async def _drive(self, lane: _Lane) -> None:
        begun_s = (time.monotonic_ns() - self._pace.begin_ns) / 1e9
        await asyncio.sleep(max(0.0, self._pace.start_delay_s(lane.number) - begun_s))
        turn = 0
        body = await self._take(lane.number, turn)
        while True:
            exchange = Exchange(turn * self._pace.concurrency + lane.number, lane.number)
            self._exchanges.append(exchange)
            sending = asyncio.create_task(self._send(lane, exchange, body))
            try:
                await asyncio.sleep(0)  # the request goes out, then there is time to prepare the next one
                turn += 1
                body = await self._take(lane.number, turn)
                if sending.done() and exchange.end_ns is not None:
                    now_ns = time.monotonic_ns()
                    self.late.append((now_ns, now_ns - exchange.end_ns))
                await sending
            finally:
                sending.cancel()
            if lane.failures:
                await asyncio.sleep(min(LONGEST_BACKOFF_S, BACKOFF_S * 2**lane.failures))

    async def _send(self, lane: _Lane, exchange: Exchange, body: bytes) -> None:
        limited = with_limit(body, self._pace.limit(lane.number, time.monotonic_ns()))
        await self._send_body(exchange, limited, self._reader(lane, exchange.log))
        self._count(lane, exchange)

    def _reader(self, lane: _Lane, log: ReadLog) -> Callable[[], None]:
        first = FirstToken()

        def on_read() -> None:
            self._reads += 1
            # Only until the lane's first token is there are answers looked into while they run.
            if not lane.has_token and first.came(log.reads[-1][1]):
                lane.has_token = True

        return on_read

    def _count(self, lane: _Lane, exchange: Exchange) -> None:
        if exchange.error is None and looks_whole(exchange.log):
            lane.failures, lane.has_token = 0, True
            self._answered += 1
            self._last_end_ns = exchange.end_ns or 0
            self._on_answer()
        else:
            lane.failures += 1
            self._failed += 1


class Connections:
    """Fresh connections to one server, opened before the clock of a request starts; ``spare`` of them at most are kept ahead of time."""

    def __init__(self, host: str, port: int, *, spare: int, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        self._host, self._port, self._spare, self._timeout_s = host, port, spare, timeout_s
        self._idle: deque[Connection] = deque()
        self._opening: set[asyncio.Task[None]] = set()

    async def take(self) -> Connection:
        """One that the server has not closed yet. Raises ``WireError``."""
        connection = self._rested() or await Connection.open(self._host, self._port, timeout_s=self._timeout_s)
        if len(self._idle) + len(self._opening) < self._spare:
            task = asyncio.get_running_loop().create_task(self._open_spare())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        return connection

    async def aclose(self) -> None:
        """Close the spare ones."""
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        while self._idle:
            self._idle.popleft().close()

    def _rested(self) -> Connection | None:
        while self._idle:
            connection = self._idle.popleft()
            if connection.fresh():
                return connection
            connection.close()
        return None

    async def _open_spare(self) -> None:
        # A refused spare is no failure: the request that needs a connection will see it.
        with contextlib.suppress(WireError):
            self._idle.append(await Connection.open(self._host, self._port, timeout_s=self._timeout_s))


def with_limit(body: bytes, max_tokens: int) -> bytes:
    """The request, a JSON object, with a limit of tokens for its answer."""
    return body[:-1] + b',"max_tokens":%d}' % max_tokens


def bears_text(choice: Mapping[str, object], keys: Sequence[str] = TEXT_KEYS) -> bool:
    """Whether a choice of an event has any generated text; in a delta, under one of ``keys``."""
    delta = choice.get("delta") or {}
    return bool(choice.get("text")) or (isinstance(delta, dict) and any(delta.get(key) for key in keys))


class FirstToken:
    """Looks for the first generated text of an answer, in its reads as they come, each of them once."""

    def __init__(self) -> None:
        self._body = BodyReader()
        self._events = EventReader()

    def came(self, data: bytes) -> bool:
        """Whether it is among what this read completes."""
        with contextlib.suppress(WireError, ValueError, TypeError, AttributeError):
            events = list(self._events.feed(self._body.feed(data)))
            head = self._body.head
            return head is not None and head.status == 200 and any(_event_bears_text(event) for _, event in events)
        return False


def _event_bears_text(data: bytes) -> bool:
    if data in (b"", b"[DONE]"):
        return False
    event = json.loads(data)
    return not event.get("error") and any(bears_text(choice) for choice in event.get("choices") or [])


def looks_whole(log: ReadLog) -> bool:
    """Whether the answer seems to be a success, without reading it all: records judge properly, afterwards."""
    head = b"".join(data for _, data in log.reads[:3])
    tail = b"".join(data for _, data in log.reads[-3:])
    return head[9:12] == b"200" and b"[DONE]" in tail and b'{"error"' not in tail
