"""The mock's Prometheus page: counters as SGLang and vLLM export them, both bumped when an answer ends, and gauges that mislead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.loadgen.scenarios import DRAFTED

LAST_INTERVAL_ACCEPTANCE = 1.25
"""What the gauges of the last logging interval say, whatever was accepted."""


@dataclass(slots=True)
class Totals:
    """Over all answers that were sent whole."""

    answers: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    cached_tokens: int = 0
    sglang_steps: int = 0
    sglang_tokens: int = 0
    drafts: int = 0
    accepted: int = 0

    def answered(self, truth: Mapping[str, Any]) -> None:
        """Count an answer."""
        tokens = truth["chunks"][-1][-1] if truth["chunks"] else 0
        steps = truth.get("verify_steps") or 0
        self.answers += 1
        self.prompt_tokens += truth["prompt_tokens"]
        self.generation_tokens += tokens
        self.cached_tokens += truth.get("cached_tokens") or 0
        if truth["model"].startswith("vllm"):
            self.drafts += steps
            self.accepted += tokens - 1 - steps if steps else 0
        else:
            self.sglang_steps += steps
            self.sglang_tokens += tokens

    def page(self) -> str:
        """The page. SGLang's ranks all count the same work, so each counter stands there twice."""
        ranks = ('model_name="mock",tp_rank="0",pp_rank="0"', 'model_name="mock",tp_rank="1",pp_rank="0"')
        lines = [
            "# HELP sglang:generation_tokens_total Number of generation tokens processed.",
            "# TYPE sglang:generation_tokens_total counter",
        ]
        for rank in ranks:
            lines += [
                f"sglang:generation_tokens_total{{{rank}}} {float(self.generation_tokens)}",
                f"sglang:prompt_tokens_total{{{rank}}} {float(self.prompt_tokens)}",
                f'sglang:cached_tokens_total{{{rank},cache_source="device"}} {float(self.cached_tokens)}',
                f"sglang:spec_verify_calls_total{{{rank}}} {float(self.sglang_steps)}",
                f"sglang:num_retracted_requests_total{{{rank}}} 0.0",
                f"sglang:spec_accept_length{{{rank}}} {LAST_INTERVAL_ACCEPTANCE}",
                f"sglang:gen_throughput{{{rank}}} NaN",
            ]
        label = 'engine="0",model_name="mock"'
        lines += [
            f"vllm:generation_tokens_total{{{label}}} {float(self.generation_tokens)}",
            f"vllm:prompt_tokens_total{{{label}}} {float(self.prompt_tokens)}",
            f"vllm:spec_decode_num_drafts_total{{{label}}} {float(self.drafts)}",
            f"vllm:spec_decode_num_draft_tokens_total{{{label}}} {float(DRAFTED * self.drafts)}",
            f"vllm:spec_decode_num_accepted_tokens_total{{{label}}} {float(self.accepted)}",
            f"vllm:num_preemptions_total{{{label}}} 0.0",
        ]
        return "\n".join(lines) + "\n"
