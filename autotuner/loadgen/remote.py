"""Load workers on a host, started and fed through its transport; what they measured is read here, by the same code as everywhere."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from itertools import count
from typing import Any, cast
from urllib.parse import urlsplit

from autotuner.errors import RetryTrial, StopStudy, TransportError
from autotuner.loadgen.closed_loop import records_of
from autotuner.loadgen.crew import Found, Message, Ready
from autotuner.loadgen.fleet import Fleet
from autotuner.loadgen.frames import FrameReader, Order, frame, packed_body, unpacked_exchanges
from autotuner.loadgen.hosttime import ClockSample, HostClock, moved, quickest
from autotuner.loadgen.lanes import Exchange, Progress
from autotuner.loadgen.plan import Share
from autotuner.loadgen.selfcheck import LoadCheck
from autotuner.loadgen.supply import Supply
from autotuner.transports.base import Stream, Transport

OLDEST_PYTHON = (3, 10)
MODULES = ("answers", "wire", "lanes", "selfcheck", "frames", "hostworker")
"""What travels, in the order of their imports."""
TITLE = "autotuner-load"
"""Stands in the host's list of processes."""
PINGS = 8
PING_EVERY_S = 1.0
PATIENCE_S = 30.0
"""How long a worker may say nothing: while lanes run it reports twenty times a second."""
SILENCE_S = 30.0
"""How long lanes may go on without a word from here: the host must not be kept busy by nobody."""
FIRST_BATCH_BYTES = 1 << 15
SMALLEST_BATCH_BYTES, LARGEST_BATCH_BYTES = 1 << 13, 1 << 20
"""Requests are sent in batches, so that they never fill a slow connection for longer than others on it can wait."""
BATCH_S = 0.25
LATE_NS = 5_000_000
"""A lane that stood still for less is not worth a word."""

_BOOTSTRAP = "f = open(0, 'rb', closefd=False); exec(f.read(int(f.readline())))"
_LOADER = """
import sys, types
for name, source in SOURCES.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
sys.exit(module.main())
"""
_WHAT = "import os, sys; print(sys.executable, len(os.sched_getaffinity(0)), *sys.version_info[:2], sep='\\n')"


@cache
def program() -> bytes:
    """What a worker reads first: its own source, after a line with the length of it."""
    folder = files("autotuner.loadgen")
    sources = {f"autotuner.loadgen.{name}": folder.joinpath(f"{name}.py").read_text(encoding="utf-8") for name in MODULES}
    code = f"SOURCES = {sources!r}\n{_LOADER}".encode()
    return b"%d\n%b" % (len(code), code)


def host_fleet(transport: Transport, pythons: Sequence[str] = ("python3",), *, env: Mapping[str, str] | None = None) -> Fleet:
    """Workers on the host behind ``transport``, run by the first of ``pythons`` that is new enough there; the caller closes the fleet.

    ``env`` is added to their environment, so that the host can tell whose they are.

    Raises ``StopStudy`` when none is, and ``TransportError``.
    """
    said = []
    for python in pythons:
        done = transport.run([python, "-E", "-s", "-S", "-c", _WHAT], timeout_s=30, again=True)
        lines = done.stdout.split("\n")
        if done.ok and len(lines) >= 4 and (int(lines[2]), int(lines[3])) >= OLDEST_PYTHON:
            marks = ["env", *(f"{name}={value}" for name, value in env.items())] if env else []
            return _fleet(transport, [*marks, lines[0]], cpus=int(lines[1]))
        said.append(f"{python}: {'.'.join(lines[2:4]) if done.ok else done.stderr.strip() or 'not found'}")
    oldest = ".".join(map(str, OLDEST_PYTHON))
    raise StopStudy(
        f"{transport.address}: load cannot be driven on the host without Python {oldest} or newer ({'; '.join(said)})",
        hint="install one there, or set load.from to controller where the port can be reached from here",
    )


def _fleet(transport: Transport, python: Sequence[str], *, cpus: int) -> Fleet:
    clock = HostClock()
    return Fleet(lambda: RemoteWorker(transport, python, clock), lambda: cpus)


class RemoteWorker:
    """One worker process on the host and the stream to it. ``clock`` is shared by the workers of the host."""

    def __init__(self, transport: Transport, python: Sequence[str], clock: HostClock) -> None:
        self._address = transport.address
        self._clock = clock
        self._pid = 0
        self._frames = FrameReader()
        self._heard_s = self._pinged_s = time.monotonic()
        self._pings = count()
        self._asked: dict[int, int] = {}
        self._share: Share | None = None
        self._supply: Supply | None = None
        self._begun: ClockSample | None = None
        self._exchanges: list[Exchange] = []
        self._taken: list[int] | None = None
        self._batch_bytes = FIRST_BATCH_BYTES
        with self._loss():
            self._stream: Stream = transport.stream([*python, "-E", "-s", "-S", "-c", _BOOTSTRAP, TITLE])
        self._send(program())

    @property
    def pid(self) -> int:
        """Process id on the host; 0 until it is ready."""
        return self._pid

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"load worker {self._pid or 'that starts'} on {self._address}"

    @property
    def alive(self) -> bool:
        """Whether the stream is open, as far as is known here."""
        try:
            return all(True for _ in self.messages())
        except RetryTrial:
            return False

    @property
    def lead_s(self) -> float:
        """How long an order is on its way."""
        return self._clock.best(time.monotonic_ns()).rtt_ns / 1e9

    def fileno(self) -> int:
        """The descriptor to wait on for messages."""
        return self._stream.fileno()

    def prepare(self, share: Share) -> None:
        """Send its order and the first requests of all its lanes; they are there when this returns."""
        url = urlsplit(share.base_url + share.chat_path)
        pace = share.pace
        order = Order(
            lanes=list(pace.lanes),
            concurrency=pace.concurrency,
            output_tokens=pace.output_tokens,
            warmup_s=pace.warmup_s,
            host=url.hostname or "",
            port=url.port or 80,
            path=url.path,
            request_timeout_s=share.request_timeout_s,
            silence_s=SILENCE_S,
        )
        self._share, self._begun, self._exchanges = share, None, []
        self._send(frame({"run": order}))
        if not self._clock.known(time.monotonic_ns()):
            self._measure_clock(PINGS)
        self._supply = Supply(share.lanes, rtt_s=self.lead_s, body_bytes=len(share.body(share.lanes[0], 0)))
        self._fill()

    def begin(self, begin_ns: int) -> None:
        """Have its lanes start."""
        self._begun = self._clock.best(time.monotonic_ns())
        begin_ns += self._begun.offset_ns
        self._share = replace(cast("Share", self._share), begin_ns=begin_ns)
        self._send(frame({"begin": begin_ns}))

    def tend(self) -> None:
        """Let the host hear that the tuner lives, and notice when the host does not."""
        now_s = time.monotonic()
        if now_s - self._heard_s > PATIENCE_S:
            raise self._lost(f"it said nothing for {PATIENCE_S:g} s")
        if now_s - self._pinged_s >= PING_EVERY_S:
            self._ping()

    def stop(self, from_ns: int, until_ns: int) -> None:
        """Stop its lanes."""
        self._supply = None  # lanes that have stopped take nothing more
        offset_ns = cast("ClockSample", self._begun).offset_ns
        self._send(frame({"stop": [from_ns + offset_ns, until_ns + offset_ns]}))

    def messages(self) -> Iterator[Message]:
        """The messages that have come. Raises ``RetryTrial`` when the worker is gone or reports a defect of its own."""
        for header, payload in self._received():
            message = self._message(header, payload)
            if message is not None:
                yield message
        if self._taken is not None:
            # Once for all the reports that have come: each says more than the one before.
            taken, self._taken = self._taken, None
            self._refill(taken)

    def close(self) -> None:
        """End it: it stops when its input closes."""
        with contextlib.suppress(TransportError):
            self._stream.close()

    def kill(self) -> None:
        """The same: what it still had to send is not waited for."""
        self.close()

    def _message(self, header: Mapping[str, Any], payload: bytes) -> Message | None:
        if "progress" in header:
            self._taken = header["taken"]
            return self._progress(Progress(**header["progress"]))
        if "pong" in header:
            now_ns = time.monotonic_ns()
            self._clock.add(ClockSample.of(self._asked.pop(header["pong"], now_ns), header["at_ns"], now_ns))
        elif "exchanges" in header:
            self._exchanges += unpacked_exchanges(header["exchanges"], payload)
        elif "done" in header:
            return self._found(header["done"])
        elif "ready" in header:
            self._pid = header["ready"]
            return Ready()
        else:
            raise self._lost(str(header.get("defect")).strip())
        return None

    def _progress(self, progress: Progress) -> Progress:
        if not progress.last_end_ns or self._begun is None:
            return progress
        return replace(progress, last_end_ns=progress.last_end_ns - self._begun.offset_ns)

    def _found(self, done: Mapping[str, Any]) -> Found:
        share, begun = cast("Share", self._share), cast("ClockSample", self._begun)
        warnings = []
        late = [waited_ns for _, waited_ns in done["late"] if waited_ns >= LATE_NS]
        if late:
            warnings.append(
                f"{len(late)} requests waited up to {max(late) / 1e6:.0f} ms for their prompts: the connection to the host is too slow"
            )
        ended_ns = time.monotonic_ns()
        self._measure_clock(PINGS)
        by_ns = moved(begun, quickest(self._clock.since(ended_ns)))
        if by_ns is not None:
            warnings.append(f"the clocks of the host and of this machine moved by {by_ns / 1e6:+.0f} ms against each other")
        records = records_of(self._exchanges, share)
        self._exchanges = []
        return Found(records=records, clock=done["clock"], check=LoadCheck(**done["check"]), warnings=tuple(warnings))

    def _fill(self) -> None:
        """Send the first requests of all lanes; how quickly they arrive says how much may be sent at once later on."""
        while True:
            begun_s = time.monotonic()
            more = self._refill([0] * len(cast("Share", self._share).lanes))
            self._measure_clock(1)
            took_s = time.monotonic() - begun_s - self.lead_s
            size = self._batch_bytes * 2 if took_s < BATCH_S else self._batch_bytes // 2
            self._batch_bytes = min(max(size, SMALLEST_BATCH_BYTES), LARGEST_BATCH_BYTES)
            if not more:
                return

    def _refill(self, taken: Sequence[int]) -> bool:
        """Send a batch of what the queues on the host have room for; whether there may be more."""
        if self._supply is None or self._share is None:
            return False
        parts, size = [], 0
        for lane, turn in self._supply.due(taken, time.monotonic()):
            body = self._share.body(lane, turn)
            self._supply.body_bytes = len(body)
            parts.append(packed_body(lane, body))
            size += len(parts[-1])
            if size >= self._batch_bytes:
                break
        if parts:
            self._send(b"".join(parts))
        return size >= self._batch_bytes

    def _ping(self) -> int:
        number = next(self._pings)
        self._pinged_s = time.monotonic()
        self._asked[number] = time.monotonic_ns()
        self._send(frame({"ping": number}))
        return number

    def _measure_clock(self, times: int) -> None:
        """Ping and wait for the answer, so many times; the last answer says that everything sent before it was received."""
        for _ in range(times):
            number = self._ping()
            self._wait(lambda number=number: number not in self._asked)  # type: ignore[misc]

    def _wait(self, holds: Callable[[], bool]) -> None:
        """Take in frames until it holds; only while no lane of this worker runs."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > deadline_s:
                raise self._lost(f"it did not answer for {PATIENCE_S:g} s")
            select.select([self], [], [], 1.0)
            for _ in self.messages():
                pass

    def _received(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        while True:
            with self._loss():
                data = self._stream.read()
            if data is None:
                return
            if not data:
                raise self._lost("it ended")
            self._heard_s = time.monotonic()
            yield from self._frames.feed(data)

    def _send(self, data: bytes) -> None:
        with self._loss():
            self._stream.write(data)

    @contextlib.contextmanager
    def _loss(self) -> Iterator[None]:
        try:
            yield
        except TransportError as error:
            raise self._lost(error.message) from error

    def _lost(self, why: str) -> RetryTrial:
        return RetryTrial(f"{self.name} was lost: {why}", hint="the cell can be measured again once the host answers")
