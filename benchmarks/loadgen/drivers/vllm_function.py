"""vLLM's own request function, from its wheel, with the session, the loop and the formulas of ``vllm bench serve``."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import aiohttp

from benchmarks.loadgen.drivers.common import Seen, closed_loop, main
from benchmarks.loadgen.jobs import Job


def _function() -> Any:
    spec = importlib.util.spec_from_file_location("endpoint_request_func", os.environ["PEER_SOURCE"])
    if spec is None or spec.loader is None:
        raise SystemExit("no source of vLLM's request function")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def drive(job: Job) -> list[Seen]:
    """The whole job."""
    module = _function()
    url = job.url + "/v1/chat/completions"
    connector = aiohttp.TCPConnector(
        limit=job.concurrency, limit_per_host=job.concurrency, keepalive_timeout=60, enable_cleanup_closed=True
    )
    async with aiohttp.ClientSession(connector=connector, trust_env=True, timeout=aiohttp.ClientTimeout(total=6 * 60 * 60)) as session:

        async def send(job: Job, number: int) -> Seen:
            request = module.RequestFuncInput(
                prompt=job.prompt(number),
                api_url=url,
                prompt_len=job.context,
                output_len=job.output_tokens,
                model=job.model,
                ignore_eos=True,
            )
            output = await module.async_request_openai_chat_completions(request, session=session)
            seen = Seen(number, ok=output.success)
            if output.success:
                tokens = output.output_tokens or len(output.itl) + 1  # it re-tokenises the text where there is no count
                seen.ttft_s, seen.e2e_s, seen.tokens, seen.chunks = output.ttft, output.latency, tokens, len(output.itl) + 1
                seen.tpot_s = (output.latency - output.ttft) / (tokens - 1) if tokens > 1 else None
            return seen

        return await closed_loop(job, send)


if __name__ == "__main__":
    main(drive)
