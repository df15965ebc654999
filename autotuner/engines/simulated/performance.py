"""Speed of a simulated host: how long a step and a prefill take. Pure and deterministic.

One step reads the experts that its tokens touch, moves activations between GPUs (all-reduces in tensor parallel groups, dispatch to
experts), does work per request and per token, and reads the context. A drafter adds its own pass. Without a CUDA graph the host launches
every kernel, and whichever of host and GPU is slower sets the pace. The constants are in the profiles.
"""

from __future__ import annotations

import hashlib
import math

from autotuner.engines.simulated.profile import Profile
from autotuner.engines.simulated.serving import Serving

_REFERENCE_GPUS = 8


def step_ms(profile: Profile, serving: Serving, *, batch: int, context: float) -> float:
    """Milliseconds of one decode step of ``batch`` running requests with a mean ``context`` in tokens."""
    if serving.pp > 1:
        return _pipelined_ms(profile, serving, batch=batch, context=context)
    busy = _target_ms(profile, serving, batch=batch, context=context) + draft_ms(profile, serving, batch=batch, context=context)
    if serving.graphs and batch <= serving.graph_max_batch:
        return busy
    return _slower(busy, profile.eager.launch_ms) + _eager_dispatch_ms(profile, serving, batch)


def draft_ms(profile: Profile, serving: Serving, *, batch: int, context: float) -> float:
    """Milliseconds that one draft adds to a step; 0 without speculation."""
    if not serving.speculative:
        return 0.0
    draft = profile.draft
    seen = context if serving.window is None else min(context, serving.window)
    cost = draft.fixed_ms + serving.block * (draft.position_ms + draft.request_position_ms * batch) + draft.context_ms * seen / 1024
    if serving.spec == "ddtree":
        cost += draft.node_ms * serving.budget + draft.topk_ms * serving.topk
    mixed = 1 < serving.ep < serving.tp
    return cost * (draft.mixed_group_factor if mixed else 1.0)


def prefill_ms(profile: Profile, serving: Serving, *, tokens: int) -> float:
    """Milliseconds for which a prefill of ``tokens`` uncached prompt tokens keeps all other requests waiting."""
    chunks = max(1, math.ceil(tokens / serving.chunked_prefill)) if serving.chunked_prefill > 0 else 1
    speed = profile.prefill.tokens_per_s * serving.gpus / _REFERENCE_GPUS
    fixed = profile.prefill.fixed_ms if serving.graphs else max(profile.prefill.fixed_ms, profile.eager.launch_ms)
    return fixed * chunks + 1000.0 * tokens / speed


def noise(seed: int, *what: object, spread: float) -> float:
    """A factor around 1, log-normal with this relative ``spread``; the same for the same seed and the same words."""
    if spread <= 0:
        return 1.0
    digest = hashlib.blake2b(repr((seed, *what)).encode(), digest_size=16).digest()
    first = (int.from_bytes(digest[:8], "big") + 1) / (2**64 + 1)
    second = int.from_bytes(digest[8:], "big") / 2**64
    normal = math.sqrt(-2.0 * math.log(first)) * math.cos(2.0 * math.pi * second)
    return math.exp(spread * normal)


def _target_ms(profile: Profile, serving: Serving, *, batch: float, context: float) -> float:
    step, target = profile.step, profile.target
    tokens = batch * serving.verify_tokens
    share = _REFERENCE_GPUS / serving.tp
    different = batch * math.pow(serving.verify_tokens, step.expert_sharing)
    touched = 1.0 - math.pow(1.0 - target.experts_per_token / target.experts, different)
    work = step.experts_ms * touched * share + step.token_ms * tokens * share
    requests = step.request_ms * batch * (1.0 + batch / step.request_growth)
    reading = (step.context_ms + step.context_request_ms * batch) * context / 1024
    return step.fixed_ms + work + requests + reading + _links_ms(profile, serving, tokens)


def _links_ms(profile: Profile, serving: Serving, tokens: float) -> float:
    tensor, expert = profile.tensor_parallel, profile.expert_parallel
    group = tensor.groups.get(serving.group, 1.0)
    ring = tensor.ring_ms * (1.0 - math.exp(-(tokens - 1.0) / tensor.ring_tokens))
    reduce = (tensor.latency_ms + ring + tensor.token_ms * tokens) * group
    dispatch = (expert.dispatch_ms + expert.token_ms * tokens) * (1.0 - 1.0 / serving.ep)
    return reduce + dispatch


def _eager_dispatch_ms(profile: Profile, serving: Serving, batch: int) -> float:
    """Without a graph the host reads back at every layer how many tokens each expert gets, once several requests are batched."""
    expert = profile.expert_parallel
    return expert.eager_sync_ms * (1.0 - 1.0 / serving.ep) * (1.0 - math.exp(-(batch - 1) / expert.eager_sync_batch))


def _pipelined_ms(profile: Profile, serving: Serving, *, batch: int, context: float) -> float:
    """Every stage holds a share of the layers; up to ``pp`` micro-batches are under way, each passing all stages in turn."""
    flights = min(serving.pp, batch)
    busy = _target_ms(profile, serving, batch=batch / flights, context=context)
    launch = 0.0 if serving.graphs and batch <= serving.graph_max_batch else profile.eager.launch_ms
    return _slower(busy, launch) * profile.pipeline.bubble + profile.pipeline.hop_ms * (serving.pp - 1)


def _slower(left: float, right: float) -> float:
    """The larger of two overlapping times, rounded off where they are alike."""
    return math.pow(left**4 + right**4, 0.25)
