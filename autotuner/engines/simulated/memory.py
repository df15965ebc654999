"""Memory of one GPU of a simulated host: what a configuration needs, and where it runs out. Pure; GiB throughout.

As the engine does it: weights (target and drafter) are loaded, what ``mem_fraction_static`` leaves of the rest becomes the KV cache,
and CUDA graphs and activations must fit into what is left then. So too small a fraction leaves no KV cache, too large a one no room for
graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autotuner.engines.simulated.profile import Profile
from autotuner.engines.simulated.serving import Serving

_GIB = 2**30
_REFERENCE_GPUS = 8
_TOKENS_PER_REQUEST = 512
"""KV tokens without which a running request is not admitted: a short prompt and a short answer (simplified; real builds vary)."""
_PREFILL_GRAPHS_GIB = 1.5
"""What the engine sets aside for prefill graphs of a model with latent attention."""

Stage = Literal["load", "kv-sizing", "graph-capture"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why a configuration does not fit, in the engine's words: ``message`` is the exception's line."""

    stage: Stage
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Memory of a launch, up to where it failed if it did."""

    total_gib: float
    free_before_gib: float
    weights_gib: float
    drafter_gib: float
    mem_fraction: float
    kv_gib: float
    kv_tokens: int
    max_running: int
    graph_gib: float
    free_gib: float
    """When ready."""
    prefill_tokens: int
    """Largest prefill chunk that the free memory can hold; a larger one runs out of memory while serving."""
    shortage: Shortage | None = None


def default_mem_fraction(*, total_gib: float, serving: Serving) -> float:
    """What the engine chooses when it is not told: reserves for activations, graphs and communication, in its own formula."""
    chunk = max(serving.chunked_prefill, 2048)
    reserved_mib = 512 + 1.5 * chunk + serving.gpus / 8 * 1024
    reserved_mib += 2 * serving.graph_max_batch + _PREFILL_GRAPHS_GIB * 1024 if serving.graphs else 0
    reserved = max(reserved_mib / 1024, 10.0 if total_gib > 60 else 0.0)
    return round((total_gib - reserved) / total_gib, 3)


def weights_gib(profile: Profile, serving: Serving) -> float:
    """Weights of the target on one GPU. Some stand on every GPU, the rest is split."""
    memory = profile.memory
    return memory.replicated_gib + (memory.weights_gib - memory.replicated_gib) * _REFERENCE_GPUS / serving.gpus


def kv_bytes_per_token(profile: Profile, serving: Serving, *, kv_bytes: float = 2.0) -> float:
    """Bytes that one token of context takes on one GPU; latent attention is not split, the drafter's is. ``kv_bytes`` is 1 for FP8."""
    target = profile.memory.kv_bytes_per_token * kv_bytes / 2.0 / serving.pp
    draft = profile.memory.draft_kv_bytes_per_token / serving.tp if serving.speculative else 0.0
    return target + draft


def graph_gib(profile: Profile, serving: Serving) -> float:
    """Memory of captured graphs: buffers and logits of the largest batch times the tokens that it verifies."""
    if not serving.graphs:
        return 0.0
    tokens = min(serving.graph_max_batch, serving.max_running) * serving.verify_tokens
    return profile.memory.graph_fixed_gib + profile.memory.graph_gib_per_ktoken * tokens / 1024


def plan_memory(
    profile: Profile,
    serving: Serving,
    *,
    total_gib: float,
    mem_fraction: float | None = None,
    kv_bytes: float = 2.0,
    max_total_tokens: int | None = None,
) -> MemoryPlan:
    """How a launch of this configuration fills one GPU of ``total_gib``."""
    memory = profile.memory
    fraction = mem_fraction if mem_fraction is not None else default_mem_fraction(total_gib=total_gib, serving=serving)
    before = total_gib - memory.reserved_gib
    weights = weights_gib(profile, serving)
    drafter = memory.drafter_gib / serving.tp if serving.speculative else 0.0
    loaded = before - weights - drafter
    budget = loaded - before * (1.0 - fraction)
    tokens = max(0, int(budget * _GIB / kv_bytes_per_token(profile, serving, kv_bytes=kv_bytes)))
    tokens = min(tokens, max_total_tokens) if max_total_tokens else tokens
    running = min(serving.max_running, tokens // _TOKENS_PER_REQUEST)
    kv_gib = tokens * kv_bytes_per_token(profile, serving, kv_bytes=kv_bytes) / _GIB
    graphs = graph_gib(profile, serving)
    free = loaded - kv_gib - graphs
    return MemoryPlan(
        total_gib=total_gib,
        free_before_gib=before,
        weights_gib=weights,
        drafter_gib=drafter,
        mem_fraction=fraction,
        kv_gib=kv_gib,
        kv_tokens=tokens,
        max_running=running,
        graph_gib=graphs,
        free_gib=free,
        prefill_tokens=max(0, int(free / memory.activation_gib_per_ktoken * 1024)),
        shortage=_shortage(
            before=before, loaded=loaded, budget=budget, tokens=tokens, fraction=fraction, free=free, graphs=graphs, total=total_gib
        ),
    )


def _shortage(
    *, before: float, loaded: float, budget: float, tokens: int, fraction: float, free: float, graphs: float, total: float
) -> Shortage | None:
    if loaded <= 0:
        return Shortage(stage="load", message=out_of_memory(need_gib=1.75, total_gib=total, free_gib=max(0.0, before - 0.06)))
    if budget <= 0:
        minimum = 1.0 - loaded / before
        return Shortage(
            stage="kv-sizing",
            message=(
                f"ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static={fraction:g}. "
                f"Raise --mem-fraction-static above {minimum:.3f} (minimum viable for these weights), or use more GPUs or a smaller dtype."
            ),
        )
    if tokens < _TOKENS_PER_REQUEST:
        return Shortage(
            stage="kv-sizing",
            message=(
                "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
                f"Current value: mem_fraction_static={fraction:g}"
            ),
        )
    if graphs and free < 0:
        inner = out_of_memory(need_gib=max(0.25, graphs / 8), total_gib=total, free_gib=max(0.03, free + graphs / 8))
        return Shortage(stage="graph-capture", message=f"Exception: Capture cuda graph failed: {inner.partition(': ')[2]}")
    return None


def out_of_memory(*, need_gib: float, total_gib: float, free_gib: float) -> str:
    """The line that PyTorch prints when an allocation fails."""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {need_gib * 1024:.2f} MiB. GPU 0 has a total capacity of "
        f"{total_gib:.2f} GiB of which {free_gib * 1024:.2f} MiB is free."
    )
