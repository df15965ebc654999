"""Goes on trying while a host cannot be reached: a gap shorter than the session's time to live costs nothing but time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from autotuner.errors import TransportError

PAUSE_S = 1.0

_Found = TypeVar("_Found")


def patiently(action: Callable[[], _Found], *, within_s: float, meanwhile: Callable[[], None]) -> _Found:
    """Do what may be done twice, again after each lost connection, for ``within_s`` at most; then the ``TransportError`` is raised.

    ``meanwhile`` is called before each pause, and may raise to end the waiting.
    """
    deadline: float | None = None
    while True:
        try:
            return action()
        except TransportError:
            now = time.monotonic()
            deadline = now + within_s if deadline is None else deadline
            if now >= deadline:
                raise
        meanwhile()
        time.sleep(PAUSE_S)
