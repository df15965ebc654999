"""GpuWatch: the GPUs of a host while a cell is measured, through the transport."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Self

from autotuner.discover.gpu_samples import APPS_QUERY, QUERIES, AppSample, GpuSample, gpu_reports, parse_line, spoilt
from autotuner.discover.ports import listener_on
from autotuner.errors import AutotunerError
from autotuner.model.measurement import GpuReport
from autotuner.services.hostside import HostSide
from autotuner.transports.base import Stream

EVERY_MS = 500
APPS_EVERY_MS = 1000
_WAIT_S = 0.25
_JOIN_S = 10.0
_LONGEST_LINE = 4096

_WATCH = """
every=$3 apps=$4 whose=$5
nvidia-smi "--query-gpu=$1" --format=csv,noheader,nounits >/dev/null 2>&1 || shift
nvidia-smi "--query-gpu=$1" --format=csv,noheader,nounits -lms "$every" &
first=$!
nvidia-smi "--query-compute-apps=$whose" --format=csv,noheader,nounits -lms "$apps" &
second=$!
trap 'kill "$first" "$second"' EXIT
trap exit HUP INT TERM
read -r _
"""
"""Ends, and takes both programs along, when its input does: when the watch is closed, and when the connection is lost. A program that
outlives the shell all the same ends with the next line that nobody reads."""


class GpuWatch:
    """Samples the GPUs with these indices about twice a second while it is entered. Its methods never raise.

    ``ours`` names the server's own processes; it is asked only when processes were seen on the GPUs.
    """

    def __init__(self, host_side: HostSide, indices: Collection[int], *, ours: Callable[[], Collection[int]]) -> None:
        self._host_side = host_side
        self._indices = frozenset(indices)
        self._ours = ours
        self._lock = threading.Lock()
        self._samples: list[GpuSample] = []
        self._apps: list[AppSample] = []
        self._why = "nvidia-smi said nothing"
        self._leave = threading.Event()
        self._stream: Stream | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Start to sample. Where that fails, the report says so."""
        argv = ("sh", "-c", _WATCH, "gpu-watch", *QUERIES, str(EVERY_MS), str(APPS_EVERY_MS), APPS_QUERY)
        try:
            self._stream = self._host_side.transport.stream(argv)
        except AutotunerError as error:
            self._why = error.message
            return self
        self._thread = threading.Thread(target=self._listen, args=(self._stream,), name="gpu-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop to sample; nothing of it is left on the host."""
        self._leave.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        if self._stream is not None:
            self._stream.close()

    def report(self, begin_ns: int, end_ns: int) -> tuple[tuple[GpuReport, ...], tuple[str, ...]]:
        """What was seen of each GPU between two moments of CLOCK_MONOTONIC, and a sentence for everything that spoils a measurement."""
        with self._lock:
            samples = [sample for sample in self._samples if begin_ns <= sample.at_ns <= end_ns]
            apps = [app for app in self._apps if begin_ns <= app.at_ns <= end_ns]
            why = self._why
        if not samples:
            return (), (f"the GPUs were not watched: {why}",)
        seen = {sample.uuid for sample in samples}
        unknown: tuple[str, ...] = ()
        foreign: list[AppSample] = []
        try:
            foreign = self._foreign([app for app in apps if app.gpu in seen])
        except AutotunerError as error:
            unknown = (f"whose processes use the GPUs could not be asked: {error.message}",)
        reports = gpu_reports(samples, foreign)
        return reports, (*spoilt(samples, reports), *unknown)

    def _foreign(self, apps: list[AppSample]) -> list[AppSample]:
        """Those that are not the server's. Raises ``AutotunerError`` when the host cannot be asked.

        A server that is not among them itself is known to the driver by other numbers, as inside of a container: nobody can be told apart.
        """
        ours = set(self._ours()) if apps else set()
        return [app for app in apps if app.pid not in ours] if any(app.pid in ours for app in apps) else []

    def _listen(self, stream: Stream) -> None:
        rest = b""
        while not self._leave.is_set():
            try:
                ready, _, _ = select.select([stream.fileno()], [], [], _WAIT_S)
                data = stream.read() if ready else None
            except (AutotunerError, OSError, ValueError) as error:
                self._ended(str(error))
                return
            if data is None:
                continue
            if not data:
                self._ended("nvidia-smi ended: is it installed, and does it run by hand?")
                return
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-_LONGEST_LINE:]
            self._note([line.decode(errors="replace") for line in lines])

    def _note(self, lines: list[str]) -> None:
        at_ns = time.monotonic_ns()
        found = [parse_line(line, at_ns) for line in lines]
        with self._lock:
            self._samples += [sample for sample in found if isinstance(sample, GpuSample) and sample.index in self._indices]
            self._apps += [sample for sample in found if isinstance(sample, AppSample)]

    def _ended(self, why: str) -> None:
        with self._lock:
            self._why = why


def server_processes(port: int, host_side: HostSide) -> tuple[int, ...]:
    """The processes of the server that listens on ``port``; none where they cannot be seen. Raises ``AutotunerError``."""
    owner = listener_on(port, host_side).owner
    return () if owner is None else owner.tree
