"""Noticing that a peer is gone: a machine without power, a cut link, and an sshd that hangs while its kernel still answers.

Neither TCP nor paramiko's own keepalive notices the last one. So a question is asked every few seconds that only sshd itself can answer,
and the connection is closed when nothing at all was heard for three of them.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

INTERVAL_S = 3.0
MISSED = 3
_TICK_S = 0.5


class Session(Protocol):
    """What is asked."""

    def global_request(self, kind: str, data: Any = None, wait: bool = True) -> Any:  # noqa: FBT001, FBT002 - the library's own signature
        """Ask, and wait for the answer or the end of the session."""
        ...

    def is_active(self) -> bool:
        """Whether the session stands."""
        ...


class Ear:
    """A socket or channel that remembers when something came in: any byte is a sign of life, as behind a long upload."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self.heard = time.monotonic()

    def recv(self, count: int) -> bytes:
        """Read, and remember when."""
        data: bytes = self._sock.recv(count)
        self.heard = time.monotonic()
        return data

    def send(self, data: bytes) -> int:
        """Pass on."""
        return int(self._sock.send(data))

    def settimeout(self, seconds: float | None) -> None:
        """Pass on."""
        self._sock.settimeout(seconds)

    def close(self) -> None:
        """Pass on."""
        self._sock.close()

    @property
    def _closed(self) -> bool:
        return bool(self._sock._closed)  # noqa: SLF001 - the library asks its sockets for this


class Heartbeat:
    """Asks ``session`` every ``INTERVAL_S`` and calls ``give_up`` when nothing was heard for ``MISSED`` intervals."""

    def __init__(self, session: Session, ear: Ear, give_up: Callable[[], None]) -> None:
        self._session = session
        self._ear = ear
        self._give_up = give_up
        self._asked: float | None = None
        self._stopped = threading.Event()
        self._round_trips: deque[float] = deque(maxlen=20)
        self.gaps = 0
        """How often an answer was overdue by an interval or more, whether the connection survived it or not."""
        for loop, name in ((self._ask, "ssh-heartbeat"), (self._watch, "ssh-watch")):
            threading.Thread(target=loop, name=name, daemon=True).start()

    @property
    def rtt_s(self) -> float | None:
        """Median of the last round trips."""
        return statistics.median(self._round_trips) if self._round_trips else None

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()

    def _ask(self) -> None:
        while not self._stopped.is_set() and self._session.is_active():
            asked = self._asked = time.monotonic()
            try:
                self._session.global_request("keepalive@openssh.com", wait=True)
            except Exception:  # noqa: BLE001 - whatever it was, the session is of no use, and the watch sees it
                self._give_up()
                return
            self._asked = None
            if self._session.is_active():
                self._round_trips.append(time.monotonic() - asked)
            self._stopped.wait(INTERVAL_S)

    def _watch(self) -> None:
        """A thread of its own, because the question itself may never return.

        Silence is counted in ticks, so that a controller which was itself stopped for a while does not take its own pause for the host's.
        """
        silent, heard, before = 0.0, self._ear.heard, time.monotonic()
        while not self._stopped.wait(_TICK_S) and self._session.is_active():
            now = time.monotonic()
            tick, before = min(now - before, 2 * _TICK_S), now
            if self._asked is None or self._ear.heard != heard:
                silent, heard = 0.0, self._ear.heard
                continue
            if silent < INTERVAL_S <= silent + tick:
                self.gaps += 1
            silent += tick
            if silent >= MISSED * INTERVAL_S:
                self._give_up()
                return
