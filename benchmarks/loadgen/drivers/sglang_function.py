"""SGLang's own request function, from its wheel, with the formulas of ``sglang.bench_serving``.

The file is loaded by itself: what it imports from the rest of SGLang and from transformers belongs to data sets, and is stood in for.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

from benchmarks.loadgen.drivers.common import Seen, closed_loop, main
from benchmarks.loadgen.jobs import Job

ABSENT = (
    "transformers",
    "sglang",
    "sglang.benchmark",
    "sglang.benchmark.datasets",
    "sglang.benchmark.datasets.mooncake",
    "sglang.benchmark.goodput",
    "sglang.benchmark.utils",
    "sglang.srt",
    "sglang.srt.disaggregation",
    "sglang.srt.disaggregation.utils",
    "sglang.srt.utils",
    "sglang.srt.utils.network",
)


class _Anything(ModuleType):
    """A module that has every name. Nothing of it is called; ``remove_prefix`` alone is, and is what SGLang's does."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return (lambda text, prefix: text.removeprefix(prefix)) if name == "remove_prefix" else type(name, (), {})


def _function() -> Any:
    for name in ABSENT:
        sys.modules[name] = _Anything(name)
    spec = importlib.util.spec_from_file_location("bench_serving", os.environ["PEER_SOURCE"])
    if spec is None or spec.loader is None:
        raise SystemExit("no source of SGLang's request function")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.args = argparse.Namespace(disable_stream=False, disable_ignore_eos=False, print_requests=False, cache_report=False, header=None)  # type: ignore[attr-defined]
    return module


async def drive(job: Job) -> list[Seen]:
    """The whole job."""
    module = _function()
    url = job.url + "/v1/chat/completions"

    async def send(job: Job, number: int) -> Seen:
        request = module.RequestFuncInput(
            prompt=job.prompt(number),
            api_url=url,
            prompt_len=job.context,
            output_len=job.output_tokens,
            model=job.model,
            lora_name="",
            image_data=None,
            extra_request_body={},
        )
        output = await module.async_request_openai_chat_completions(request)
        seen = Seen(number, ok=output.success)
        if output.success:
            seen.ttft_s, seen.e2e_s, seen.tokens, seen.chunks = output.ttft, output.latency, output.output_len, len(output.itl) + 1
            seen.tpot_s = (output.latency - output.ttft) / (output.output_len - 1) if output.output_len > 1 else None
        return seen

    return await closed_loop(job, send)


if __name__ == "__main__":
    main(drive)
