"""The load workers of one cell, acting as one, wherever they run."""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Protocol, cast

from autotuner.errors import RetryTrial
from autotuner.loadgen.lanes import Progress
from autotuner.loadgen.plan import Share
from autotuner.loadgen.selfcheck import LoadCheck
from autotuner.model.measurement import RequestRecord

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker takes orders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a worker has found when it was stopped."""

    records: Sequence[tuple[RequestRecord, bool]]
    """With whether the server counted their tokens chunk by chunk."""
    clock: str
    """Whose timestamps the records carry: ``kernel``, or ``user`` where the kernel gave none."""
    check: LoadCheck | None = None
    """What it found out about itself over the window."""
    warnings: tuple[str, ...] = ()


Message = Ready | Progress | Found
"""What workers say. All times are ns of this machine's CLOCK_MONOTONIC, or seconds of the cell."""


class LoadWorker(Protocol):
    """One process that drives lanes. Everything raises ``RetryTrial`` when it is gone or has a defect of its own."""

    @property
    def name(self) -> str:
        """How messages call it."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it can be given a share, as far as can be seen without asking."""
        ...

    @property
    def lead_s(self) -> float:
        """How long an order is on its way."""
        ...

    def fileno(self) -> int:
        """The descriptor to wait on for messages."""
        ...

    def prepare(self, share: Share) -> None:
        """Give it everything that its lanes need to start."""
        ...

    def begin(self, begin_ns: int) -> None:
        """Have the lanes of the prepared share start at a moment."""
        ...

    def tend(self) -> None:
        """Called all the time while lanes run."""
        ...

    def stop(self, from_ns: int, until_ns: int) -> None:
        """Stop the lanes; every request that did not end before ``from_ns`` will come as ``Found``. The window was between the two."""
        ...

    def messages(self) -> Iterator[Message]:
        """The messages that have come, without waiting."""
        ...

    def close(self) -> None:
        """End it in good order. Idempotent."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


class Crew:
    """The workers of one cell."""

    def __init__(self, workers: Sequence[LoadWorker]) -> None:
        self._workers = workers
        self._progress: dict[str, Progress] = {}
        self.clock = "kernel"
        """Whose timestamps the records of the last cell carry: ``kernel``, or ``user`` where the kernel gave none."""
        self.checks: list[LoadCheck] = []
        """What the workers found out about themselves in the window of the last cell."""
        self.warnings: list[str] = []
        """What the workers of the last cell had to say."""
        self._selector = selectors.DefaultSelector()
        for worker in workers:
            self._selector.register(worker, selectors.EVENT_READ)

    def start(self, shares: Sequence[Share]) -> int:
        """Give every worker its share; the moment at which the cell begins for all of them."""
        self._progress, self.checks, self.warnings, self.clock = {}, [], [], "kernel"
        for worker, share in zip(self._workers, shares, strict=True):
            worker.prepare(share)
        begin_ns = time.monotonic_ns() + round(max(worker.lead_s for worker in self._workers) * 1e9)
        for worker in self._workers:
            worker.begin(begin_ns)
        return begin_ns

    def progress(self, timeout_s: float) -> Progress:
        """The sum over the workers, after the next message or ``timeout_s``."""
        for worker in self._workers:
            worker.tend()
        for worker, message in self._messages(timeout_s):
            if isinstance(message, Progress):
                self._progress[worker.name] = message
        return reduce(Progress.__add__, self._progress.values(), Progress())

    def stop(self, from_ns: int, until_ns: int) -> list[tuple[RequestRecord, bool]]:
        """Stop all; every request that did not end before ``from_ns``, with whether its tokens were counted chunk by chunk.

        The window was between ``from_ns`` and ``until_ns``: what the workers say about themselves is about that time.
        """
        for worker in self._workers:
            worker.stop(from_ns, until_ns)
        found: list[tuple[RequestRecord, bool]] = []
        waiting = {worker.name for worker in self._workers}
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while waiting:
            if time.monotonic() > deadline:
                raise RetryTrial(f"{len(waiting)} load workers gave no records within {STOP_TIMEOUT_S:g} s")
            for worker, message in self._messages(1.0):
                if isinstance(message, Found):
                    found.extend(message.records)
                    self.checks += [message.check] if message.check is not None else []
                    self.clock = "user" if message.clock == "user" else self.clock
                    self.warnings += [warning for warning in message.warnings if warning not in self.warnings]
                    waiting.discard(worker.name)
        return sorted(found, key=lambda pair: (pair[0].start_s, pair[0].index))

    def await_ready(self, newcomers: Sequence[LoadWorker]) -> None:
        """Wait until freshly started workers take orders."""
        waiting = {id(worker) for worker in newcomers}
        deadline = time.monotonic() + START_TIMEOUT_S
        while waiting:
            if time.monotonic() > deadline:
                raise RetryTrial(f"{len(waiting)} load workers did not start within {START_TIMEOUT_S:g} s")
            waiting -= {id(worker) for worker, message in self._messages(1.0) if isinstance(message, Ready)}

    def close(self) -> None:
        """Give back what waiting needs."""
        self._selector.close()

    def _messages(self, timeout_s: float) -> Iterator[tuple[LoadWorker, Message]]:
        for key, _ in self._selector.select(timeout_s):
            worker = cast("LoadWorker", key.fileobj)
            for message in worker.messages():
                yield worker, message


def shares_of(template: Share, count: int) -> list[Share]:
    """A cell's lanes spread over so many workers."""
    return [replace(template, lanes=tuple(range(first, template.cell.concurrency, count)), part=(first, count)) for first in range(count)]
