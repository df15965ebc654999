"""The open loop: requests are sent when they are due, whether those before them were answered or not.

When they are due was drawn ahead, and their times count from then: a server that is slow, or a client that is late, delays no later
request and hides no wait (no coordinated omission). How late they were sent stands in every record.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from autotuner.loadgen.closed_loop import ClosedLoop
from autotuner.loadgen.lanes import Exchange, FirstToken, Lanes, Pace, Progress, Send, looks_whole, with_limit
from autotuner.loadgen.plan import Share, cell_seconds
from autotuner.model.measurement import RequestRecord

LEAD_S = 0.25
"""From the begin of the cell to the first possible arrival: the first requests are prepared meanwhile."""
SPIN_S = 0.0012
"""Timers of event loops are late by up to a millisecond, so the last one is waited out turn by turn."""
PREPARED = 64
PREPARED_BYTES = 1 << 25
"""Requests that are prepared ahead of time, by number and by size."""
FAILURES_OF_A_DEAD_SERVER = 30
"""So many failures in a row, without one answer between them, end the cell."""

Make = Callable[[int], tuple[bytes, int]]
"""Number of the request → its body without its length limit, and that limit."""


class OpenLanes(Lanes):
    """Drives the arrivals of one worker until it is stopped; keeps every exchange.

    ``due`` are (number, ns of CLOCK_MONOTONIC) in order. Of its lanes there is but one, on which any number of requests is under way.
    """

    def __init__(
        self,
        pace: Pace,
        *,
        due: Iterator[tuple[int, int]],
        make: Make,
        send: Send,
        on_answer: Callable[[], None],
        max_in_flight: int,
    ) -> None:
        super().__init__(replace(pace, lanes=(0,)), take=_nothing, send=send, on_answer=on_answer)
        self._due = due
        self._make = make
        self._places = asyncio.Semaphore(max_in_flight)
        self._prepared: deque[tuple[int, int, bytes, int]] = deque()
        self._prepared_bytes = 0
        self._seen_token = False
        self._failures = 0
        self.due_ns: dict[int, int] = {}
        """Number → when it was due, of every request whose time has come."""
        self._held_until_ns = 0
        self.held_ns: dict[int, int] = {}
        """Number → how long it waited for a place, of those that did."""

    def progress(self) -> Progress:
        """How far it has come; its lane is dead when nothing is answered any more."""
        dead = int(self._failures >= FAILURES_OF_A_DEAD_SERVER)
        return replace(super().progress(), first=int(self._seen_token), dead=dead)

    def kept(self, from_ns: int) -> list[Exchange]:
        """Every exchange that did not end before ``from_ns``, also those whose time has come and that were not sent yet."""
        now_ns = time.monotonic_ns()
        while (self._prepare() or self._prepared) and self._prepared[0][1] <= now_ns:
            self._arrived(*self._prepared.popleft()[:2])
        return [exchange for exchange in self._exchanges if exchange.end_ns is None or exchange.end_ns >= from_ns]

    async def _drive(self, lane: object) -> None:
        async with asyncio.TaskGroup() as group:
            while self._prepare() or self._prepared:
                index, due_ns, body, limit = self._prepared.popleft()
                self._prepared_bytes -= len(body)
                await self._until(due_ns)
                exchange = self._arrived(index, due_ns)
                await self._place(index, due_ns)
                group.create_task(self._ask(exchange, body, limit))
            await asyncio.Event().wait()  # a lane that returned would be taken for a defect

    def _arrived(self, index: int, due_ns: int) -> Exchange:
        exchange = Exchange(index, 0)
        self.due_ns[index] = due_ns
        self._exchanges.append(exchange)
        return exchange

    def _prepare(self) -> bool:
        """Prepare one request, if there is room; whether there is one more."""
        if len(self._prepared) >= PREPARED or (self._prepared and self._prepared_bytes >= PREPARED_BYTES):
            return True
        following = next(self._due, None)
        if following is None:
            return False
        index, due_ns = following
        body, limit = self._make(index)
        self._prepared.append((index, due_ns, body, limit))
        self._prepared_bytes += len(body)
        return True

    async def _until(self, due_ns: int) -> None:
        """Wait until a moment, and use the time to prepare what comes after."""
        full = False
        while (left_s := (due_ns - time.monotonic_ns()) / 1e9) > 0:
            if left_s <= SPIN_S or not full:
                before = len(self._prepared)
                if left_s > SPIN_S:
                    full = not self._prepare() or len(self._prepared) == before
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(left_s - SPIN_S)

    async def _place(self, index: int, due_ns: int) -> None:
        """Wait for a place; those behind one that waits have waited as well."""
        full = self._places.locked()
        await self._places.acquire()
        if full:
            self._held_until_ns = time.monotonic_ns()
        if self._held_until_ns > due_ns:
            self.held_ns[index] = self._held_until_ns - due_ns

    async def _ask(self, exchange: Exchange, body: bytes, limit: int) -> None:
        first = FirstToken()

        def on_read() -> None:
            self._reads += 1
            # Only until the first token of all is there are answers looked into while they run.
            if not self._seen_token and first.came(exchange.log.reads[-1][1]):
                self._seen_token = True

        try:
            await self._send_body(exchange, with_limit(body, limit), on_read)
        finally:
            self._places.release()
        if exchange.error is None and looks_whole(exchange.log):
            self._failures = 0
            self._answered += 1
            self._last_end_ns = exchange.end_ns or 0
            self._on_answer()
        else:
            self._failures += 1
            self._failed += 1


async def _nothing(_lane: int, _turn: int) -> bytes:
    return b""


class OpenLoop(ClosedLoop):
    """Drives the arrivals of one share until it is stopped; keeps every exchange."""

    def __init__(self, share: Share, on_answer: Callable[[], None]) -> None:
        super().__init__(share, on_answer)
        arrivals = share.arrivals
        if arrivals is None:
            raise ValueError("the share has no arrivals")
        worker, workers = share.part
        first_ns = share.begin_ns + round(LEAD_S * 1e9)
        due = ((index, first_ns + round(at_s * 1e9)) for index, at_s in arrivals.part(share.seed, worker, workers))
        self._open = OpenLanes(
            share.pace,
            due=due,
            make=self._numbered,
            send=self._send,
            on_answer=on_answer,
            max_in_flight=max(1, (arrivals.max_in_flight + workers - 1 - worker) // workers),
        )
        self._lanes = self._open

    def records(self, from_ns: int) -> list[tuple[RequestRecord, bool]]:
        """As in a closed loop; times count from when the request was due."""
        return [(self._scheduled(record), counted) for record, counted in super().records(from_ns)]

    def _scheduled(self, record: RequestRecord) -> RequestRecord:
        due_ns = self._open.due_ns[record.index]
        never_sent = record.end_s is None and not record.chunks and record.start_s <= 0
        return replace(
            record,
            start_s=cell_seconds(due_ns, self._share.begin_ns),
            sent_s=None if never_sent else record.start_s,
            held_s=self._open.held_ns.get(record.index, 0) / 1e9,
        )

    def _numbered(self, index: int) -> tuple[bytes, int]:
        body, limit = self._share.numbered(index)
        return body, limit or self._share.cell.output_tokens
