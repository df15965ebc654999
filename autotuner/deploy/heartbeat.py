"""Tells the host's watchdog that the tuner lives and makes progress."""

from __future__ import annotations

import itertools
import threading
import time

from autotuner.errors import AutotunerError
from autotuner.transports.base import Transport


class Heartbeat:
    """Rewrites a file on the host from a thread of its own, as long as ``touch`` is called often enough.

    A beat that did not depend on progress would keep a hung tuner's host down for ever.
    """

    def __init__(self, transport: Transport, path: str, *, ttl_s: float, stall_s: float) -> None:
        self._transport = transport
        self._path = path
        self._every_s = ttl_s / 8
        self._stall_s = stall_s
        self._touched = time.monotonic()
        self._count = itertools.count()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="autotuner-heartbeat", daemon=True)

    def start(self) -> None:
        """Beat once, then go on in the background. Raises what the transport raises for the first beat."""
        self._write()
        self._thread.start()

    def touch(self) -> None:
        """The main thread made progress."""
        self._touched = time.monotonic()

    def stop(self) -> None:
        """Beat no more."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self._every_s + 10)

    def _beat(self) -> None:
        while not self._ended.wait(self._every_s):
            if time.monotonic() - self._touched < self._stall_s:
                try:
                    self._write()
                except AutotunerError:
                    continue  # a gap shorter than the time to live does no harm; a longer one is what the watchdog is for

    def _write(self) -> None:
        self._transport.write(self._path, str(next(self._count)).encode(), mode=0o600)
