"""A load worker that comes to a halt while a cell is measured."""

from __future__ import annotations

import os
import signal
import threading
import time

from autotuner.model.measurement import ServerReport


class Halt:
    """Stops a process for a while in the first window that it sees begin."""

    def __init__(self, pid: int, seconds: float) -> None:
        self._pid, self._seconds = pid, seconds
        self._begun_ns: int | None = None
        self._done = False
        self.attempts = 0

    def begin(self, window_begin_ns: int) -> None:
        self._begun_ns = window_begin_ns

    def tick(self) -> None:
        if not self._done and self._begun_ns is not None and time.monotonic_ns() - self._begun_ns > 0.2e9:
            self._done = True
            os.kill(self._pid, signal.SIGSTOP)
            threading.Timer(self._seconds, os.kill, (self._pid, signal.SIGCONT)).start()

    def end(self) -> ServerReport:
        self.attempts += 1
        return ServerReport(samples=self.attempts)
