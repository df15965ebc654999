"""The load workers of this process: started once, lent to one cell at a time, ended with this process."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, reduce
from typing import IO, cast

from pydantic import TypeAdapter

from autotuner.errors import RetryTrial
from autotuner.loadgen.plan import Progress, Share
from autotuner.model.measurement import RequestRecord

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
READ_SIZE = 1 << 20

_SHARE = TypeAdapter(Share)
_PROGRESS = TypeAdapter(Progress)
_RECORDS = TypeAdapter(list[RequestRecord])


class Worker:
    """One worker process and the pipe to it."""

    def __init__(self) -> None:
        # A session of its own: Ctrl-C is for the tuner, which then stops its workers in good order.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "autotuner.loadgen.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.set_blocking(self._stdout.fileno(), False)
        self._partial: list[bytes] = []

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def _stdout(self) -> IO[bytes]:
        return cast("IO[bytes]", self._process.stdout)

    def fileno(self) -> int:
        """The descriptor to wait on for messages."""
        return self._stdout.fileno()

    def say(self, message: bytes) -> None:
        """Send one message. Raises ``RetryTrial`` when the worker is gone."""
        stdin = cast("IO[bytes]", self._process.stdin)
        try:
            stdin.write(message + b"\n")
            stdin.flush()
        except OSError as error:
            raise self._gone(str(error)) from error

    def messages(self) -> Iterator[Mapping[str, object]]:
        """The messages that have come. Raises ``RetryTrial`` when the worker is gone or reports a defect of its own."""
        while True:
            try:
                data = os.read(self.fileno(), READ_SIZE)
            except BlockingIOError:
                return
            if not data:
                raise self._gone("it ended")
            if b"\n" not in data:
                self._partial.append(data)
                continue
            *lines, rest = b"".join([*self._partial, data]).split(b"\n")
            self._partial = [rest]
            for line in lines:
                message = json.loads(line)
                if "defect" in message:
                    raise self._gone(str(message["defect"]).strip())
                yield message

    def close(self) -> None:
        """End the process: it stops when its input closes, at the latest by SIGKILL."""
        with contextlib.suppress(OSError):
            cast("IO[bytes]", self._process.stdin).close()
        try:
            self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self.close()

    def _gone(self, why: str) -> RetryTrial:
        return RetryTrial(f"load worker {self.pid} failed: {why}", hint="the cell can be measured again; is this machine out of memory?")


class Crew:
    """The workers of one cell, acting as one."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._progress: dict[int, Progress] = {}
        self.clock = "kernel"
        """Whose timestamps the records of the last cell carry: ``kernel``, or ``user`` where the kernel gave none."""
        self._selector = selectors.DefaultSelector()
        for worker in workers:
            self._selector.register(worker, selectors.EVENT_READ)

    def start(self, shares: Sequence[Share]) -> None:
        """Give every worker its share."""
        for worker, share in zip(self._workers, shares, strict=True):
            worker.say(b'{"run":%b}' % _SHARE.dump_json(share))

    def progress(self, timeout_s: float) -> Progress:
        """The sum over the workers, after the next message or ``timeout_s``."""
        for worker, message in self._messages(timeout_s):
            if "progress" in message:
                self._progress[worker.pid] = _PROGRESS.validate_python(message["progress"])
        return reduce(Progress.__add__, self._progress.values(), Progress())

    def stop(self, from_ns: int) -> list[tuple[RequestRecord, bool]]:
        """Stop all; every request that did not end before ``from_ns``, with whether its tokens were counted chunk by chunk."""
        for worker in self._workers:
            worker.say(b'{"stop":%d}' % from_ns)
        found: list[tuple[RequestRecord, bool]] = []
        waiting = {worker.pid for worker in self._workers}
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while waiting:
            if time.monotonic() > deadline:
                raise RetryTrial(f"{len(waiting)} load workers gave no records within {STOP_TIMEOUT_S:g} s")
            for worker, message in self._messages(1.0):
                if "records" in message:
                    records = _RECORDS.validate_python(message["records"])
                    found.extend(zip(records, cast("list[bool]", message["counted"]), strict=True))
                    self.clock = "user" if message["clock"] == "user" else self.clock
                    waiting.discard(worker.pid)
        return sorted(found, key=lambda pair: (pair[0].start_s, pair[0].index))

    def await_ready(self, newcomers: Sequence[Worker]) -> None:
        """Wait until freshly started workers take orders."""
        waiting = {worker.pid for worker in newcomers}
        deadline = time.monotonic() + START_TIMEOUT_S
        while waiting:
            if time.monotonic() > deadline:
                raise RetryTrial(f"{len(waiting)} load workers did not start within {START_TIMEOUT_S:g} s")
            waiting -= {worker.pid for worker, message in self._messages(1.0) if "ready" in message}

    def close(self) -> None:
        """Give back what waiting needs."""
        self._selector.close()

    def _messages(self, timeout_s: float) -> Iterator[tuple[Worker, Mapping[str, object]]]:
        for key, _ in self._selector.select(timeout_s):
            worker = cast("Worker", key.fileobj)
            for message in worker.messages():
                yield worker, message


class Fleet:
    """Workers at rest. Safe to use from several threads."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def crew(self, count: int) -> Iterator[Crew]:
        """Lend ``count`` workers that take orders; those that did not come to a regular end are ended."""
        workers = self._take(count)
        newcomers = [Worker() for _ in range(count - len(workers))]
        workers += newcomers
        crew = Crew(workers)
        try:
            crew.await_ready(newcomers)
            yield crew
        except BaseException:
            for worker in workers:
                worker.kill()
            raise
        else:
            with self._lock:
                self._idle.extend(workers)
        finally:
            crew.close()

    def close(self) -> None:
        """End all workers at rest."""
        for worker in self._take(len(self._idle)):
            worker.close()

    def _take(self, count: int) -> list[Worker]:
        with self._lock:
            taken, self._idle = self._idle[:count], self._idle[count:]
        living = [worker for worker in taken if worker.alive]
        for worker in taken:
            if worker not in living:
                worker.close()
        return living


@cache
def fleet() -> Fleet:
    """The fleet of this process; its workers end with it."""
    made = Fleet()
    atexit.register(made.close)
    return made
