"""A load worker: drives a share of a cell's lanes. JSON lines in and out; ends when its standard input does, and so with its parent.

In: ``{"run": share}``, ``{"stop": [from_ns, until_ns]}``.
Out: ``{"ready": pid}``, ``{"progress": …}``, ``{"records": […], "counted": […], "clock": …, "check": …}``, ``{"defect": text}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Any, cast

from pydantic import TypeAdapter

from autotuner.loadgen.closed_loop import ClosedLoop
from autotuner.loadgen.lanes import Progress
from autotuner.loadgen.open_loop import OpenLoop
from autotuner.loadgen.plan import Share
from autotuner.loadgen.selfcheck import SelfCheck, hurry
from autotuner.loadgen.wire import stamps_on
from autotuner.model.measurement import RequestRecord

PROGRESS_EVERY_S = 0.05
LINE_LIMIT = 1 << 24

SHARE = TypeAdapter(Share)
PROGRESS = TypeAdapter(Progress)
RECORDS = TypeAdapter(list[RequestRecord])


def _say(message: bytes) -> None:
    sys.stdout.buffer.write(message + b"\n")
    sys.stdout.buffer.flush()


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=LINE_LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    _say(b'{"ready":%d}' % os.getpid())
    while line := await lines.readline():
        await _run(SHARE.validate_python(json.loads(line)["run"], strict=False), lines)


async def _run(share: Share, lines: asyncio.StreamReader) -> None:
    """Drive until told to stop; a parent that is gone stops it, too."""
    stop = asyncio.Event()
    kind = ClosedLoop if share.arrivals is None else OpenLoop
    closed_loop = kind(share, lambda: _report(closed_loop) if share.cell.concurrency == 1 else None)
    driving = asyncio.create_task(closed_loop.run(stop))
    check = SelfCheck()
    checking = asyncio.create_task(check.watch())
    order = asyncio.create_task(lines.readline())
    while not order.done() and not driving.done():
        await asyncio.wait({order, driving}, timeout=PROGRESS_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
        _report(closed_loop)
    stop.set()
    await driving
    checking.cancel()
    await asyncio.gather(checking, return_exceptions=True)
    text = await order
    if text:
        from_ns, until_ns = json.loads(text)["stop"]
        seen = json.dumps(asdict(check.report(closed_loop.kept(from_ns), from_ns, until_ns))).encode()
        found = closed_loop.records(from_ns)
        records = RECORDS.dump_json([record for record, _ in found])
        counted = json.dumps([counted for _, counted in found]).encode()
        _say(b'{"records":%b,"counted":%b,"clock":"%b","check":%b}' % (records, counted, closed_loop.clock.encode(), seen))


def _report(closed_loop: ClosedLoop) -> None:
    _say(b'{"progress":%b}' % PROGRESS.dump_json(closed_loop.progress()))


_Runner = Callable[[Coroutine[Any, Any, None]], None]


def _runner() -> _Runner:
    """A third less CPU with uvloop, which is there on Linux."""
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415 - only where it can be installed

        return cast("_Runner", uvloop.run)  # typed only where it is installed
    return asyncio.run


def main() -> int:
    """Serve the parent until it closes the pipe."""
    hurry()
    try:
        with stamps_on():
            _runner()(_serve())
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception:  # noqa: BLE001 - the parent tells the person; nothing else would
        _say(json.dumps({"defect": traceback.format_exc()}).encode())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
