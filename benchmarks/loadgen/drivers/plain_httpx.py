"""httpx as most clients use it: ``json=``, ``aiter_lines``, a stamp and a ``json.loads`` per line."""

from __future__ import annotations

import time

import httpx

from benchmarks.loadgen.drivers.common import Seen, closed_loop, main
from benchmarks.loadgen.drivers.events import body, finish, take
from benchmarks.loadgen.jobs import Job


async def drive(job: Job) -> list[Seen]:
    """The whole job."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=job.url, timeout=None, limits=limits) as client:  # noqa: S113 - the mock always answers

        async def send(job: Job, number: int) -> Seen:
            seen = Seen(number)
            request = body(job.model, job.prompt(number), job.output_tokens)
            begin_ns = time.monotonic_ns()
            try:
                async with client.stream("POST", "/v1/chat/completions", json=request) as answer:
                    async for line in answer.aiter_lines():
                        take(seen, begin_ns, time.monotonic_ns(), line)
            except (httpx.HTTPError, ValueError):
                return seen
            return finish(seen)

        return await closed_loop(job, send)


if __name__ == "__main__":
    main(drive)
