"""What the drivers share: a closed loop without delays between lanes, and the report. Standard library only."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from benchmarks.loadgen.jobs import Job


@dataclass(slots=True)
class Seen:
    """What a client reports of one request, by its own definitions. ``chunk_errors_us``: its stamp less the server's, chunk by chunk."""

    number: int
    ok: bool = False
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    tokens: int | None = None
    chunks: int = 0
    chunk_errors_us: list[float] = field(default_factory=list)

    def row(self) -> dict[str, object]:
        """As a row of the report."""
        return {name: getattr(self, name) for name in ("number", "ok", "ttft_s", "tpot_s", "e2e_s", "tokens")}


Send = Callable[[Job, int], Awaitable[Seen]]


async def closed_loop(job: Job, send: Send) -> list[Seen]:
    """As many lanes as the job has, each with its next request as soon as one is answered, until all have been sent."""
    numbers = iter(range(job.requests))
    seen: list[Seen] = []

    async def lane() -> None:
        for number in numbers:
            seen.append(await send(job, number))  # noqa: PERF401 - an asynchronous comprehension would lose those before a failure

    await asyncio.gather(*(lane() for _ in range(job.concurrency)))
    return seen


def report(seen: list[Seen]) -> None:
    """Print what the benchmark reads."""
    errors = [error for each in seen for error in each.chunk_errors_us]
    print(json.dumps({"requests": [each.row() for each in seen], "chunks": sum(each.chunks for each in seen), "chunk_errors_us": errors}))


def main(drive: Callable[[Job], Awaitable[list[Seen]]]) -> None:
    """Run the job on the command line, with uvloop where the job wants it."""
    job = Job.of(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if job.uvloop:
        import uvloop  # noqa: PLC0415 - only the environments of some peers have it

        report(uvloop.run(drive(job)))  # type: ignore[arg-type]
    else:
        report(asyncio.run(drive(job)))  # type: ignore[arg-type]
