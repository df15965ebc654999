"""A closed loop: lanes that each send their next request as soon as one is answered."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from autotuner.loadgen.chat import Reply, read_reply, request_body, with_limit
from autotuner.loadgen.control import HTTPX_ERRORS, error_class
from autotuner.loadgen.plan import Progress, Share, cell_seconds
from autotuner.loadgen.transport import MeasuredTransport
from autotuner.loadgen.wire import ReadLog
from autotuner.model.measurement import RequestRecord

FAILURES_OF_A_DEAD_LANE = 3
BACKOFF_S = 0.05
LONGEST_BACKOFF_S = 2.0


@dataclass(slots=True)
class Exchange:
    """One request of a lane, as it goes."""

    index: int
    lane: int
    domain: str
    log: ReadLog = field(default_factory=ReadLog)
    error: str | None = None
    detail: str | None = None
    failed_ns: int | None = None

    @property
    def end_ns(self) -> int | None:
        """When it ended, well or not; ``None`` while it runs or when it was abandoned."""
        return self.log.end_ns if self.failed_ns is None else self.failed_ns


@dataclass(slots=True)
class _Lane:
    number: int
    has_token: bool = False
    failures: int = 0


class ClosedLoop:
    """Drives the lanes of one share until it is stopped; keeps every exchange."""

    def __init__(self, share: Share, on_answer: Callable[[], None]) -> None:
        self._share = share
        self._on_answer = on_answer
        self._lanes = [_Lane(number) for number in share.lanes]
        self._exchanges: list[Exchange] = []
        self._answered = 0
        self._failed = 0
        self._last_end_ns = 0
        self._reads = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Drive until ``stop``; then abandon what runs, without waiting for it."""
        transport = MeasuredTransport(stall_s=self._share.request_timeout_s, spare=len(self._lanes))
        # A collection of the oldest generation takes longer than a decode step.
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            async with httpx.AsyncClient(transport=transport, base_url=self._share.base_url, timeout=None) as client:  # noqa: S113 - the transport watches for silence
                tasks = [asyncio.create_task(self._drive(client, lane)) for lane in self._lanes]
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

    def records(self, from_ns: int) -> list[tuple[RequestRecord, bool]]:
        """Every request that did not end before ``from_ns``, and whether the server counted its tokens chunk by chunk."""
        return [
            _record(exchange, self._share.begin_ns)
            for exchange in self._exchanges
            if (exchange.end_ns is None or exchange.end_ns >= from_ns) and (exchange.log.sent_ns is not None or exchange.error)
        ]

    async def _drive(self, client: httpx.AsyncClient, lane: _Lane) -> None:
        begun_s = (time.monotonic_ns() - self._share.begin_ns) / 1e9
        await asyncio.sleep(max(0.0, self._share.start_delay_s(lane.number) - begun_s))
        turn = 0
        exchange, body = self._prepare(lane, turn)
        while True:
            self._exchanges.append(exchange)
            sending = asyncio.create_task(self._send(client, lane, exchange, body))
            try:
                await asyncio.sleep(0)  # the request goes out, then there is time to prepare the next one
                turn += 1
                following = self._prepare(lane, turn)
                await sending
            finally:
                sending.cancel()
            exchange, body = following
            if lane.failures:
                await asyncio.sleep(min(LONGEST_BACKOFF_S, BACKOFF_S * 2**lane.failures))

    def _prepare(self, lane: _Lane, turn: int) -> tuple[Exchange, bytes]:
        share = self._share
        index = turn * share.cell.concurrency + lane.number
        prompt = share.prompts.prompt(share.cell.context, index, run=f"{share.cell.key}/{share.seed}")
        body = request_body(model=share.model, prompt=prompt.text, sampling=share.sampling)
        return Exchange(index, lane.number, prompt.domain), body

    async def _send(self, client: httpx.AsyncClient, lane: _Lane, exchange: Exchange, body: bytes) -> None:
        limited = with_limit(body, self._share.limit(lane.number, time.monotonic_ns()))
        try:
            await client.post(
                self._share.chat_path,
                content=limited,
                headers={"content-type": "application/json", "accept-encoding": "identity"},
                extensions={"log": exchange.log, "on_read": self._reader(lane, exchange.log)},
            )
        except HTTPX_ERRORS as error:
            if exchange.log.end_ns is None:
                exchange.error, exchange.detail = error_class(error), str(error)
                exchange.failed_ns = time.monotonic_ns()
        self._count(lane, exchange)

    def _reader(self, lane: _Lane, log: ReadLog) -> Callable[[], None]:
        def on_read() -> None:
            self._reads += 1
            # Only until the lane's first token is there are answers looked into while they run.
            if not lane.has_token and read_reply(log).chunks:
                lane.has_token = True

        return on_read

    def _count(self, lane: _Lane, exchange: Exchange) -> None:
        if exchange.error is None and _looks_whole(exchange.log):
            lane.failures, lane.has_token = 0, True
            self._answered += 1
            self._last_end_ns = exchange.end_ns or 0
            self._on_answer()
        else:
            lane.failures += 1
            self._failed += 1


def _looks_whole(log: ReadLog) -> bool:
    """Whether the answer seems to be a success, without reading it all: records judge properly, afterwards."""
    head = b"".join(data for _, data in log.reads[:3])
    tail = b"".join(data for _, data in log.reads[-3:])
    return head[9:12] == b"200" and b"[DONE]" in tail and b'{"error"' not in tail


def _record(exchange: Exchange, begin_ns: int) -> tuple[RequestRecord, bool]:
    log = exchange.log
    reply = read_reply(log) if exchange.error is None else _partial(log)
    error = exchange.error or reply.error
    abandoned = error is None and log.end_ns is None
    end_ns = exchange.end_ns
    record = RequestRecord(
        index=exchange.index,
        lane=exchange.lane,
        domain=exchange.domain,
        start_s=cell_seconds(log.sent_ns or exchange.failed_ns or begin_ns, begin_ns),
        chunks=tuple((cell_seconds(stamp, begin_ns), tokens) for stamp, tokens in reply.chunks),
        end_s=None if end_ns is None else cell_seconds(end_ns, begin_ns),
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=None if abandoned else reply.completion_tokens,
        cached_tokens=reply.cached_tokens,
        finish_reason=reply.finish_reason,
        verify_steps=reply.verify_steps,
        error=error,
        detail=exchange.detail or reply.detail,
    )
    return record, reply.counted


def _partial(log: ReadLog) -> Reply:
    """What a failed exchange had received; its own error says more than the gap in its answer."""
    reply = read_reply(log)
    reply.detail = None
    return reply
