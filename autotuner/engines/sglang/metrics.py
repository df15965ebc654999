"""What SGLang's Prometheus page says."""

from __future__ import annotations

from autotuner.engines.base import Counters, Gauges
from autotuner.engines.prometheus import highest, total


def counters(text: str) -> Counters:
    """The counters that measuring needs.

    Tokens and verification steps are both counted when a request ends, so that their ratio is that of whole requests. Tokens as they are
    made are another counter, brought up to date with every interval of the decode log.
    """
    return Counters(
        generation_tokens=total(text, "sglang:generation_tokens_total"),
        decoded_tokens=total(text, "sglang:realtime_tokens_total", mode="decode"),
        verify_steps=total(text, "sglang:spec_verify_calls_total"),
        retractions=total(text, "sglang:num_retracted_requests_total"),
        cached_tokens=total(text, "sglang:cached_tokens_total"),
    )


def gauges(text: str) -> Gauges:
    """The state of its batch. Acceptance is never read from a gauge: they hold the last log interval only."""
    return Gauges(
        running=total(text, "sglang:num_running_reqs"),
        queued=total(text, "sglang:num_queue_reqs"),
        kv_usage=highest(text, "sglang:token_usage"),
    )
