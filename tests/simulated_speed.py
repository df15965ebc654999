"""What a client of a simulated host must see, from the step times of its profile: throughput = acceptance length ÷ step time."""

from __future__ import annotations

import math

from autotuner.engines.simulated.acceptance import acceptance_length
from autotuner.engines.simulated.performance import prefill_ms, step_ms
from autotuner.engines.simulated.profile import Profile
from autotuner.engines.simulated.serving import Serving


def ttft_ms(profile: Profile, serving: Serving, *, prompt: int) -> float:
    """Time to first token of a request that meets an idle server."""
    return profile.prefill.admission_ms + prefill_ms(profile, serving, tokens=prompt)


def decode_tok_s(profile: Profile, serving: Serving, *, batch: int, context: float, domain: str = "code") -> float:
    """Output tokens per second of all requests together while nothing is prefilled, at ``min(batch, max_running)`` running requests."""
    running = min(batch, serving.max_running)
    accepted = acceptance_length(profile, serving, context=context, domain=domain)
    return 1000.0 * accepted * running / step_ms(profile, serving, batch=running, context=context)


def request_tok_s(profile: Profile, serving: Serving, *, prompt: int, answer: int, domain: str = "code") -> float:
    """Tokens of one answer over its whole time, first token included, on an otherwise idle server."""
    decode = decode_tok_s(profile, serving, batch=1, context=prompt + answer / 2, domain=domain)
    return answer / (ttft_ms(profile, serving, prompt=prompt) / 1000.0 + answer / decode)


def served_tok_s(profile: Profile, serving: Serving, *, concurrency: int, prompt: int, answer: int, domain: str = "code") -> float:
    """Steady output tokens per second of a closed loop of ``concurrency`` requests, whose prefills interrupt each other's decoding.

    Requests that end in the same step are followed by others that are prefilled together; ends are taken as independent.
    """
    running = min(concurrency, serving.max_running)
    context = prompt + answer / 2
    accepted = acceptance_length(profile, serving, context=context, domain=domain)
    steps = answer / accepted
    decode_s = steps * step_ms(profile, serving, batch=running, context=context) / 1000.0
    batches = max(1.0, steps * (1.0 - math.exp(-running / steps)))
    prefill_s = batches * prefill_ms(profile, serving, tokens=round(prompt * running / batches)) / 1000.0
    waiting = concurrency > serving.max_running
    idle_s = 0.0 if waiting else profile.prefill.admission_ms / 1000.0
    return running * answer / (idle_s + prefill_s + decode_s)
