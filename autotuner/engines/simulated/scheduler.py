"""Scheduler: continuous batching in simulated time. One task steps all running requests together.

The time of every prefill and step comes from the performance model and is waited for on an absolute schedule, so that late wake-ups do not
add up. Short steps are run several at a time, in ticks of ``TICK_S`` and longer the more requests run, so that a Python client and this
server can share two cores: chunks then hold several tokens, and their usage says how many. A tick ends with the first request that ends
in it.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from autotuner.engines.simulated.acceptance import acceptance_length
from autotuner.engines.simulated.memory import out_of_memory
from autotuner.engines.simulated.performance import noise, prefill_ms, step_ms
from autotuner.engines.simulated.resolve import Resolved
from autotuner.engines.simulated.setting import Setting
from autotuner.engines.simulated.startup import Ending

TICK_S = 0.012
TICK_PER_REQUEST_S = 0.0005
LATE_S = 0.25
"""Beyond this the schedule starts afresh: the machine was held up, and catching up would burst."""
_CONTEXT_GRAIN = 64
"""Acceptance is looked up for contexts rounded to this many tokens."""


@dataclass(slots=True, eq=False)
class Request:
    """One generation. ``emit`` is called with the tokens made so far and whether that is all."""

    prompt_tokens: int
    cached_tokens: int
    answer_tokens: int
    domain: str
    emit: Callable[[int, bool], None]
    made: float = 0.0
    sent: int = 0
    gone: bool = False
    """Nobody waits for it any more."""

    @property
    def reserved(self) -> int:
        """KV tokens that it may come to hold."""
        return self.prompt_tokens + self.answer_tokens


@dataclass(slots=True)
class Totals:
    """Monotonic counters, and the gauges of the last log interval.

    Unlike the real server, which adds most counters when a request ends, this one adds them with every step.
    """

    prompt_tokens: int = 0
    generation_tokens: int = 0
    cached_tokens: int = 0
    requests: int = 0
    verify_steps: int = 0
    graph_steps: int = 0
    eager_steps: int = 0
    last_throughput: float = 0.0
    last_acceptance: float = 0.0


@dataclass(slots=True)
class _Interval:
    """Since the last line about decoding."""

    begin: float
    steps: int = 0
    tokens: int = 0
    verify_steps: int = 0


class Scheduler:
    """Steps the running requests. ``log`` takes a line; ``crash`` ends the server with an exception of the scheduler."""

    def __init__(self, resolved: Resolved, setting: Setting, *, log: Callable[[str], None], crash: Callable[[Ending], None]) -> None:
        self.totals = Totals()
        self._resolved, self._setting = resolved, setting
        self._profile, self._serving = setting.profile, resolved.serving
        self._log, self._crash = log, crash
        self._queue: deque[Request] = deque()
        self._running: list[Request] = []
        self._wake = asyncio.Event()
        self._steps = itertools.count()
        self._pace = noise(setting.seed, setting.launch, resolved.serving, spread=setting.noise)
        self._clock = 0.0
        self._interval = _Interval(0.0)
        self._acceptance = lru_cache(maxsize=4096)(self._acceptance_at)

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._running)

    @property
    def queued(self) -> int:
        """Requests that wait for a place in the batch."""
        return len(self._queue)

    @property
    def used_tokens(self) -> int:
        """KV tokens in use."""
        return sum(request.prompt_tokens + int(request.made) for request in self._running)

    def submit(self, request: Request, *, at_once: bool = False) -> None:
        """Take a request; it reaches the queue after the time that admission takes."""
        delay = 0.0 if at_once else self._profile.prefill.admission_ms / 1000.0
        asyncio.get_running_loop().call_later(delay, self._enqueue, request)

    def _enqueue(self, request: Request) -> None:
        self._queue.append(request)
        self._wake.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        self._clock = self._interval.begin = loop.time()
        while True:
            self._drop_gone()
            if not self._running and not self._queue:
                self._wake.clear()
                await self._wake.wait()
                self._clock = loop.time()
            else:
                batch = self._admit()
                alive = await (self._prefill(batch) if batch else self._decode())
                if not alive:
                    return

    def _drop_gone(self) -> None:
        self._running = [request for request in self._running if not request.gone]
        while self._queue and self._queue[0].gone:
            self._queue.popleft()

    def _admit(self) -> list[Request]:
        """Requests from the queue that fit into the batch, the cache and one prefill."""
        free = self._resolved.memory.kv_tokens - sum(request.reserved for request in self._running)
        room, tokens, batch = self._serving.max_running - len(self._running), self._resolved.args.max_prefill_tokens, list[Request]()
        while self._queue and len(batch) < room:
            request = self._queue[0]
            new = request.prompt_tokens - request.cached_tokens
            if (request.reserved > free and (batch or self._running)) or (batch and new > tokens):
                break
            batch.append(self._queue.popleft())
            free, tokens = free - request.reserved, tokens - new
        return batch

    async def _prefill(self, batch: list[Request]) -> bool:
        new = sum(request.prompt_tokens - request.cached_tokens for request in batch)
        cached = sum(request.cached_tokens for request in batch)
        chunk = min(new, self._serving.chunked_prefill) if self._serving.chunked_prefill > 0 else new
        if chunk > self._resolved.memory.prefill_tokens:
            self._crash(self._prefill_out_of_memory(chunk))
            return False
        cost = prefill_ms(self._profile, self._serving, tokens=new) / 1000.0 * self._pace
        self._log(
            f"Prefill batch, #new-seq: {len(batch)}, #new-token: {new}, #cached-token: {cached}, token usage: {self._usage():.2f}, "
            f"#running-req: {len(self._running)}, #queue-req: {len(self._queue)}, #pending-token: 0, cuda graph: False, "
            f"input throughput (token/s): {new / cost:.2f}"
        )
        await self._wait(cost)
        self.totals.prompt_tokens += new + cached
        self.totals.cached_tokens += cached
        self.totals.requests += len(batch)
        self._running += batch
        self._advance(batch, dict.fromkeys(batch, 1.0))
        return True

    def _prefill_out_of_memory(self, chunk: int) -> Ending:
        memory = self._resolved.memory
        need = chunk / 1024 * self._profile.memory.activation_gib_per_ktoken
        return Ending("serve", out_of_memory(need_gib=need, total_gib=memory.total_gib, free_gib=max(0.0, memory.free_gib)))

    async def _decode(self) -> bool:
        crash = self._resolved.crash
        if crash is not None and len(self._running) <= self._serving.graph_max_batch:
            self._crash(Ending("serve", crash.message, crash.source))
            return False
        batch = self._running
        context = sum(request.prompt_tokens + request.made for request in batch) / len(batch)
        step = step_ms(self._profile, self._serving, batch=len(batch), context=context) / 1000.0 * self._pace
        accepted = {request: self._acceptance(request.domain, self._context_of(request)) for request in batch}
        ends = min(math.ceil((request.answer_tokens - request.made) / accepted[request]) for request in batch)
        steps = max(1, min(ends, int((TICK_S + TICK_PER_REQUEST_S * len(batch)) / step)))
        await self._wait(steps * step * noise(self._setting.seed, self._setting.launch, next(self._steps), spread=self._setting.noise))
        self._count(steps, len(batch))
        self._interval.tokens += self._advance(batch, {request: steps * tokens for request, tokens in accepted.items()})
        if self._interval.steps >= self._resolved.args.decode_log_interval:
            self._report()
        return True

    def _advance(self, batch: list[Request], gains: dict[Request, float]) -> int:
        """Give every request of ``batch`` its tokens and tell who waits; how many tokens that made."""
        total, ended = 0, False
        for request in batch:
            request.made = min(float(request.answer_tokens), request.made + gains[request])
            whole = int(request.made + 1e-9)
            fresh, done = whole - request.sent, whole >= request.answer_tokens
            ended = ended or done
            request.sent = whole
            total += fresh
            if (fresh or done) and not request.gone:
                request.emit(whole, done)
        if ended:
            self._running = [request for request in self._running if request.sent < request.answer_tokens]
        self.totals.generation_tokens += total
        return total

    def _count(self, steps: int, batch: int) -> None:
        graph = self._serving.graphs and batch <= self._serving.graph_max_batch
        self.totals.graph_steps += steps if graph else 0
        self.totals.eager_steps += 0 if graph else steps
        self._interval.steps += steps
        if self._serving.speculative:
            self.totals.verify_steps += steps * batch
            self._interval.verify_steps += steps * batch

    def _report(self) -> None:
        """The line about decoding, every ``--decode-log-interval`` steps; its time includes what was idle, as the engine's does."""
        since = self._interval
        self._interval = _Interval(self._clock)
        throughput = since.tokens / max(1e-6, self._clock - since.begin)
        self.totals.last_throughput = throughput
        speculation = ""
        if since.verify_steps:
            length = since.tokens / since.verify_steps
            self.totals.last_acceptance = length
            rate = (length - 1) / max(1, self._serving.verify_tokens - 1)
            speculation = f"accept len: {length:.2f}, accept rate: {rate:.2f}, "
        graph = self._serving.graphs and len(self._running) <= self._serving.graph_max_batch
        self._log(
            f"Decode batch, #running-req: {len(self._running)}, #token: {self.used_tokens}, token usage: {self._usage():.2f}, {speculation}"
            f"cuda graph: {graph}, gen throughput (token/s): {throughput:.2f}, #queue-req: {len(self._queue)}"
        )

    def reset_gauges(self) -> None:
        """Forget the last interval, as flushing the cache does."""
        self.totals.last_acceptance = 0.0
        self._interval = _Interval(self._clock)

    def _usage(self) -> float:
        return self.used_tokens / max(1, self._resolved.memory.kv_tokens)

    def _context_of(self, request: Request) -> int:
        return int(request.prompt_tokens + request.made) // _CONTEXT_GRAIN * _CONTEXT_GRAIN

    def _acceptance_at(self, domain: str, context: int) -> float:
        return acceptance_length(self._profile, self._serving, context=context + _CONTEXT_GRAIN / 2, domain=domain)

    async def _wait(self, seconds: float) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._clock > LATE_S:
            self._clock = now
        self._clock += seconds
        await asyncio.sleep(max(0.0, self._clock - now))
