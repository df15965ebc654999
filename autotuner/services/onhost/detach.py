"""Programs that outlive whoever started them."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36


def detached(work: Callable[[Callable[[dict[str, Any]], None]], None]) -> dict[str, Any]:
    """Run ``work(report)`` in a process of its own: own session, no terminal, no open files of the caller.

    Returns what it reports first; the work goes on after that. ``{"error": …}`` when it ended without a report.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.setsid()
        if os.fork():
            os._exit(0)
        _run(work, writer)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as file:
        answer = file.read()
    return dict(json.loads(answer)) if answer else {"error": "the detached program ended at once"}


def become_subreaper() -> None:
    """Orphans below this process become its own children, so that none is lost from sight."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def plain_signals() -> None:
    """Give the signals that Python or a detached parent ignores their default meaning back, before another program is executed."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _close_all_but(kept: int) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are wanted, not paths
        if int(name) not in {0, 1, 2, kept}:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _run(work: Callable[[Callable[[dict[str, Any]], None]], None], writer: int) -> None:
    waiting = [writer]

    def report(content: dict[str, Any]) -> None:
        descriptor = waiting.pop()
        os.write(descriptor, json.dumps(content).encode())
        os.close(descriptor)

    status = 1
    try:
        _close_all_but(writer)  # a lock that the caller holds must not live on in here
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        work(report)
        status = 0
    except OSError as error:
        if waiting:
            report({"error": f"{error.strerror}: {error.filename}" if error.filename else str(error), "errno": error.errno})
    except Exception:  # noqa: BLE001 - the boundary of a program: the caller gets the text
        if waiting:
            report({"error": traceback.format_exc()})
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
