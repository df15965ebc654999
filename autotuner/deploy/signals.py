"""Signals while a host is brought back."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def signals_wait(say: Callable[[], None]) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP are heard and answered, and change nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def answer(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a signal handler
        say()

    before = {number: signal.signal(number, answer) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
