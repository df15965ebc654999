"""What vLLM's Prometheus page says."""

from __future__ import annotations

from autotuner.engines.base import Counters, Gauges
from autotuner.engines.prometheus import highest, total


def counters(text: str) -> Counters:
    """The counters that measuring needs; all of them grow with every step of the engine. Older names are read where newer are missing."""
    tokens = total(text, "vllm:generation_tokens_total")
    return Counters(
        generation_tokens=tokens,
        decoded_tokens=tokens,
        verify_steps=total(text, "vllm:spec_decode_num_drafts_total"),
        drafted_tokens=total(text, "vllm:spec_decode_num_draft_tokens_total"),
        accepted_tokens=total(text, "vllm:spec_decode_num_accepted_tokens_total"),
        retractions=total(text, "vllm:num_preemptions_total"),
        cached_tokens=_either(text, "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    )


def gauges(text: str) -> Gauges:
    """The state of its batch."""
    usage = highest(text, "vllm:kv_cache_usage_perc")
    return Gauges(
        running=total(text, "vllm:num_requests_running"),
        queued=total(text, "vllm:num_requests_waiting"),
        kv_usage=highest(text, "vllm:gpu_cache_usage_perc") if usage is None else usage,
    )


def _either(text: str, name: str, older: str) -> float | None:
    found = total(text, name)
    return total(text, older) if found is None else found
