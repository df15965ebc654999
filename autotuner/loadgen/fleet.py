"""Load workers: started once, lent to one cell at a time, kept for the next."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import IO, Any, cast

from pydantic import TypeAdapter

from autotuner.errors import RetryTrial
from autotuner.loadgen.crew import Crew, Found, LoadWorker, Message, Ready
from autotuner.loadgen.lanes import Progress
from autotuner.loadgen.plan import LANES_PER_WORKER, Share
from autotuner.loadgen.selfcheck import LoadCheck
from autotuner.model.measurement import RequestRecord

READ_SIZE = 1 << 20

_SHARE = TypeAdapter(Share)
_PROGRESS = TypeAdapter(Progress)
_RECORDS = TypeAdapter(list[RequestRecord])


class Worker:
    """A worker process of this machine and the pipe to it."""

    lead_s = 0.0

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
        self._share: Share | None = None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"load worker {self.pid}"

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

    def prepare(self, share: Share) -> None:
        """Keep its share until it begins: here an order takes no time."""
        self._share = share

    def begin(self, begin_ns: int) -> None:
        """Have its lanes start."""
        share = replace(cast("Share", self._share), begin_ns=begin_ns)
        self._say(b'{"run":%b}' % _SHARE.dump_json(share))

    def tend(self) -> None:
        """Nothing: its input closes when this process ends."""

    def stop(self, from_ns: int, until_ns: int) -> None:
        """Stop its lanes."""
        self._say(b'{"stop":[%d,%d]}' % (from_ns, until_ns))

    def messages(self) -> Iterator[Message]:
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
                yield self._message(json.loads(line))

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

    def _say(self, message: bytes) -> None:
        stdin = cast("IO[bytes]", self._process.stdin)
        try:
            stdin.write(message + b"\n")
            stdin.flush()
        except OSError as error:
            raise self._gone(str(error)) from error

    def _message(self, message: Mapping[str, Any]) -> Message:
        if "progress" in message:
            return _PROGRESS.validate_python(message["progress"])
        if "records" in message:
            records = zip(_RECORDS.validate_python(message["records"]), message["counted"], strict=True)
            return Found(records=list(records), clock=message["clock"], check=LoadCheck(**message["check"]))
        if "ready" in message:
            return Ready()
        raise self._gone(str(message.get("defect")).strip())

    def _gone(self, why: str) -> RetryTrial:
        return RetryTrial(f"{self.name} failed: {why}", hint="the cell can be measured again; is this machine out of memory?")


class Fleet:
    """Workers of one machine at rest. Safe to use from several threads.

    ``make`` starts one; ``cpus`` says how many processors there are, since more workers would only be in each other's way.
    """

    def __init__(self, make: Callable[[], LoadWorker], cpus: Callable[[], int]) -> None:
        self._make = make
        self._cpus = cpus
        self._idle: list[LoadWorker] = []
        self._lock = threading.Lock()

    def size(self, concurrency: int) -> int:
        """How many workers a cell of so many lanes gets."""
        return min(-(-concurrency // LANES_PER_WORKER), self._cpus())

    @contextlib.contextmanager
    def crew(self, count: int) -> Iterator[Crew]:
        """Lend ``count`` workers that take orders; those that did not come to a regular end are ended."""
        workers = self._take(count)
        newcomers: list[LoadWorker] = []
        crew: Crew | None = None
        try:
            while len(workers) < count:
                newcomers.append(self._make())
                workers.append(newcomers[-1])
            crew = Crew(workers)
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
            if crew is not None:
                crew.close()

    def close(self) -> None:
        """End all workers at rest."""
        for worker in self._take(len(self._idle)):
            worker.close()

    def _take(self, count: int) -> list[LoadWorker]:
        with self._lock:
            taken, self._idle = self._idle[:count], self._idle[count:]
        living = [worker for worker in taken if worker.alive]
        for worker in taken:
            if worker not in living:
                worker.close()
        return living


@cache
def fleet() -> Fleet:
    """The fleet of this process on this machine; its workers end with it."""
    made = Fleet(Worker, lambda: os.cpu_count() or 1)
    atexit.register(made.close)
    return made
