"""aiohttp at its best: bytes as they come, one stamp a read, JSON after the answer; no limit of connections."""

from __future__ import annotations

import time

import aiohttp

from benchmarks.loadgen.drivers.common import Seen, closed_loop, main
from benchmarks.loadgen.drivers.events import body, finish, take
from benchmarks.loadgen.jobs import Job


async def drive(job: Job) -> list[Seen]:
    """The whole job."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(job.url, connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:

        async def send(job: Job, number: int) -> Seen:
            seen = Seen(number)
            request = body(job.model, job.prompt(number), job.output_tokens)
            reads: list[tuple[int, bytes]] = []
            begin_ns = time.monotonic_ns()
            try:
                async with session.post("/v1/chat/completions", json=request) as answer:
                    async for data in answer.content.iter_any():
                        reads.append((time.monotonic_ns(), data))  # noqa: PERF401 - what came before a failure counts
                rest = b""
                for at_ns, data in reads:
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        take(seen, begin_ns, at_ns, line.removesuffix(b"\r"))
            except (aiohttp.ClientError, ValueError):
                return seen
            return finish(seen)

        return await closed_loop(job, send)


if __name__ == "__main__":
    main(drive)
