"""The closed loop on this machine: lanes behind httpx, and the records of what they exchanged, wherever they ran."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import httpx

from autotuner.loadgen.answers import ReadLog
from autotuner.loadgen.chat import Reply, misfits, read_reply
from autotuner.loadgen.control import HTTPX_ERRORS, error_class
from autotuner.loadgen.lanes import Exchange, Lanes, Progress
from autotuner.loadgen.plan import Share, cell_seconds
from autotuner.loadgen.secure import UserStampedTransport
from autotuner.loadgen.transport import MeasuredTransport
from autotuner.model.measurement import RequestRecord


class ClosedLoop:
    """Drives the lanes of one share until it is stopped; keeps every exchange."""

    def __init__(self, share: Share, on_answer: Callable[[], None]) -> None:
        self._share = share
        transport: httpx.AsyncBaseTransport = MeasuredTransport(stall_s=share.request_timeout_s, spare=len(share.lanes))
        if share.base_url.startswith("https:"):
            transport = UserStampedTransport(stall_s=share.request_timeout_s)
        self._client = httpx.AsyncClient(transport=transport, base_url=share.base_url, timeout=None)  # noqa: S113 - the transport watches for silence
        self._lanes = Lanes(share.pace, take=self._take, send=self._send, on_answer=on_answer)

    async def run(self, stop: asyncio.Event) -> None:
        """Drive until ``stop``; then abandon what runs, without waiting for it."""
        async with self._client:
            await self._lanes.run(stop)

    def progress(self) -> Progress:
        """How far it has come."""
        return self._lanes.progress()

    @property
    def clock(self) -> str:
        """``kernel`` when every read was stamped by the kernel, else ``user``."""
        return self._lanes.clock

    def kept(self, from_ns: int) -> list[Exchange]:
        """Every exchange that did not end before ``from_ns``."""
        return self._lanes.kept(from_ns)

    def records(self, from_ns: int) -> list[tuple[RequestRecord, bool]]:
        """Every request that did not end before ``from_ns``, and whether the server counted its tokens chunk by chunk."""
        return records_of(self._lanes.kept(from_ns), self._share)

    async def _take(self, lane: int, turn: int) -> bytes:
        return self._share.body(lane, turn)

    async def _send(self, exchange: Exchange, body: bytes, on_read: Callable[[], None]) -> None:
        try:
            request = self._client.build_request(
                "POST",
                self._share.chat_path,
                content=body,
                headers={"content-type": "application/json", "accept-encoding": "identity", **dict(self._share.headers)},
                extensions={"log": exchange.log, "on_read": on_read},
            )
            # All of the answer is in the log by then; it is read when nothing is measured any more.
            await (await self._client.send(request, stream=True)).aclose()
        except HTTPX_ERRORS as error:
            exchange.failed(error_class(error), str(error))


def records_of(exchanges: Sequence[Exchange], share: Share) -> list[tuple[RequestRecord, bool]]:
    """The records of exchanges of a share, and whether the server counted their tokens chunk by chunk."""
    return [_record(exchange, share) for exchange in exchanges]


def _record(exchange: Exchange, share: Share) -> tuple[RequestRecord, bool]:
    log, begin_ns = exchange.log, share.begin_ns
    reply = read_reply(log) if exchange.error is None else _partial(log)
    error = exchange.error or reply.error
    abandoned = error is None and log.end_ns is None
    end_ns, first_ns = exchange.end_ns, reply.first_output_ns
    detail = exchange.detail or reply.detail
    if error is None and not abandoned:
        context = share.cell.context if share.prompts.sized else None
        error, detail = next(misfits(reply, context=context, ignore_eos=share.sampling.ignore_eos), (None, None))
    record = RequestRecord(
        index=exchange.index,
        lane=exchange.lane,
        domain=share.prompts.domain(exchange.index),
        start_s=cell_seconds(log.sent_ns or exchange.failed_ns or begin_ns, begin_ns),
        chunks=tuple((cell_seconds(stamp, begin_ns), tokens) for stamp, tokens in reply.chunks),
        first_output_s=None if first_ns is None else cell_seconds(first_ns, begin_ns),
        end_s=None if end_ns is None else cell_seconds(end_ns, begin_ns),
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=None if abandoned else reply.completion_tokens,
        cached_tokens=reply.cached_tokens,
        finish_reason=reply.finish_reason,
        verify_steps=reply.verify_steps,
        step_tokens=reply.step_tokens,
        drafted_tokens=reply.drafted_tokens,
        accepted_tokens=reply.accepted_tokens,
        error=error,
        detail=detail,
    )
    return record, reply.counted


def _partial(log: ReadLog) -> Reply:
    """What a failed exchange had received; its own error says more than the gap in its answer."""
    reply = read_reply(log)
    reply.detail = None
    return reply
