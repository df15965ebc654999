"""StopRequest: how a person asks a run to end, and what that means at each moment."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from autotuner.errors import Interrupted


class StopRequest:
    """Asked once: a server that still starts is given up, one that is measured is measured to the end. Asked twice: stop now.

    The host is restored in every case; nothing that is asked here skips that.
    """

    def __init__(self) -> None:
        self._asked = 0

    def ask(self) -> None:
        """Ask once (more)."""
        self._asked += 1

    def ask_now(self) -> None:
        """Do not wait for the measurement."""
        self._asked += 2

    @property
    def asked(self) -> bool:
        """Whether no further launch may begin, and a server that still starts is given up."""
        return self._asked > 0

    @property
    def now(self) -> bool:
        """Whether a measurement in progress is given up as well."""
        return self._asked > 1

    def check(self) -> None:
        """Raise ``Interrupted`` when a person asked to stop."""
        if self.asked:
            raise Interrupted("stopped on request; everything measured is kept", hint="the same command continues where it stopped")


@contextlib.contextmanager
def on_signals(stop: StopRequest, say: Callable[[str], None]) -> Iterator[None]:
    """Ctrl-C once finishes the measurement, twice stops it; SIGTERM and SIGHUP stop at once. The old handlers are put back."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        stop.ask()
        say("stopping now; restoring the host" if stop.now else "finishing this measurement, then restoring the host (again: stop now)")

    def terminate(_number: int, _frame: FrameType | None) -> None:
        stop.ask_now()
        say("stopping now; restoring the host")

    wanted = {signal.SIGINT: interrupt, signal.SIGTERM: terminate, signal.SIGHUP: terminate}
    before = {number: signal.signal(number, act) for number, act in wanted.items()}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
