"""The log of a launch: what the engine prints from its arguments to a captured graph, spread over the launch, and where it fails. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autotuner.engines.simulated.flags import UNSHOWN
from autotuner.engines.simulated.performance import noise
from autotuner.engines.simulated.resolve import Resolved
from autotuner.engines.simulated.serving import Serving
from autotuner.engines.simulated.setting import Setting

_CAPTURE_SECONDS_PER_BATCH = 0.45
"""Seen on a real H200: 23 batches in 10 s for a drafter, 36 in 4 s for a small target."""
RANK = "TP0"


@dataclass(frozen=True, slots=True)
class Beat:
    """Lines that are printed after ``share`` of the launch has passed since the beat before; a line may say its rank."""

    share: float
    lines: tuple[str, ...]
    rank: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """Where a launch fails: stage, exception, and the frame that raises."""

    stage: str
    message: str
    source: tuple[str, int, str, str] | None = None


def startup(resolved: Resolved, setting: Setting) -> Iterator[Beat | Ending]:
    """Beats up to the point where the HTTP server starts, or the ending before it. Shares add up to at most 0.9: warm-up has the rest."""
    yield Beat(0.0, (*resolved.notices, f"server_args=ServerArgs({_arguments(resolved)})"))
    yield Beat(0.0, ("Init torch distributed begin.",), RANK)
    refused = resolved.rejection
    if refused and refused.stage == "dist-init":
        yield Ending("dist-init", refused.message, refused.source)
        return
    memory = resolved.memory
    yield Beat(0.1, (f"Init torch distributed ends. elapsed={2.1:.2f} s, mem usage=0.09 GB",), RANK)
    yield Beat(0.0, (f"Load weight begin. avail mem={memory.free_before_gib:.2f} GB",), RANK)
    if refused and refused.stage == "load":
        yield Ending("load", refused.message, refused.source)
        return
    yield from _load_and_capture(resolved, setting)


def _load_and_capture(resolved: Resolved, setting: Setting) -> Iterator[Beat | Ending]:
    memory, shortage = resolved.memory, resolved.memory.shortage
    if shortage and shortage.stage == "load":
        yield Beat(0.2, ())
        yield Ending("load", shortage.message)
        return
    yield from _loading(resolved, setting)
    if shortage and shortage.stage == "kv-sizing":
        yield Ending("kv-sizing", shortage.message)
        return
    serving = resolved.serving
    left = memory.free_gib + memory.graph_gib
    notice = (resolved.capacity_notice,) if resolved.capacity_notice else ()
    dtype = "torch.float8_e4m3fn" if "fp8" in resolved.args.kv_cache_dtype else "torch.bfloat16"
    pool = f"KV Cache is allocated. dtype: {dtype}, #tokens: {memory.kv_tokens}, KV size: {memory.kv_gib:.2f} GB"
    yield Beat(0.05, (pool, f"Memory pool end. avail mem={left:.2f} GB", *notice), RANK)
    if serving.graphs:
        yield from _capture(resolved, left)
        if shortage:
            yield Ending("graph-capture", shortage.message)
            return
        end = f"Capture cuda graph end. Time elapsed: {_capture_seconds(serving):.2f} s. mem usage={memory.graph_gib:.2f} GB. "
        yield Beat(0.1, (end + f"avail mem={memory.free_gib:.2f} GB.",), RANK)
    capacity = (
        f"max_total_num_tokens={memory.kv_tokens}, chunked_prefill_size={serving.chunked_prefill}, "
        f"max_prefill_tokens={resolved.args.max_prefill_tokens}, max_running_requests={serving.max_running}, "
        f"context_len={resolved.context_length}, available_gpu_mem={memory.free_gib:.2f} GB"
    )
    yield Beat(0.0, (capacity,), RANK)


def _loading(resolved: Resolved, setting: Setting) -> Iterator[Beat]:
    memory, seconds = resolved.memory, _load_seconds(setting)
    after = memory.free_before_gib - memory.weights_gib
    for percent in (25, 50, 75):
        yield Beat(0.1, (f"Loading safetensors checkpoint shards: {percent:3d}% Completed | {percent * 64 // 100}/64",))
    yield Beat(0.1, (_loaded(seconds, setting.model_architecture, after, memory.weights_gib),), RANK)
    if not resolved.serving.speculative:
        return
    yield Beat(0.0, (f"Load weight begin. avail mem={after:.2f} GB",), RANK)
    yield Beat(0.05, (_loaded(seconds / 60, "DFlashDraftModel", after - memory.drafter_gib, memory.drafter_gib),), RANK)
    serving = resolved.serving
    runner = (
        f"Initialized {serving.spec.upper()} draft runner. attention_backend={resolved.args.attention_backend or 'triton'}, "
        f"model=DFlashDraftModel, block_size={serving.block}, draft_window_size={serving.window}, compact_cache=False"
    )
    yield Beat(0.0, (runner,), RANK)


def _loaded(seconds: float, architecture: str, after: float, used: float) -> str:
    return f"Load weight end. elapsed={seconds:.2f} s, type={architecture}, avail mem={after:.2f} GB, mem usage={used:.2f} GB."


def _load_seconds(setting: Setting) -> float:
    return setting.profile.memory.load_seconds * noise(setting.seed, setting.launch, "load", spread=0.1)


def _capture(resolved: Resolved, left: float) -> Iterator[Beat]:
    serving = resolved.serving
    batches = captured_batches(serving)
    yield Beat(0.0, (f"Capture cuda graph begin. This can take up to several minutes. avail mem={left:.2f} GB",), RANK)
    yield Beat(0.0, (f"Capture cuda graph bs {list(batches)}",), RANK)
    shown = tuple(reversed(batches))[:: max(1, len(batches) // 4)]
    used = resolved.memory.graph_gib
    for done, batch in enumerate(shown, start=1):
        available = max(0.0, left - used * done / len(shown))
        yield Beat(0.2 / len(shown), (f"Capturing batches (bs={batch} avail_mem={available:.2f} GB): {100 * done // len(shown)}%",))


def captured_batches(serving: Serving) -> tuple[int, ...]:
    """Batches for which graphs are captured, as the engine chooses them up to its largest."""
    small = range(1, 9) if serving.speculative else (1, 2, 4, 8, 12)
    steps = [*small, *range(16, 257, 8), *range(272, 513, 16)]
    largest = min(serving.graph_max_batch, serving.max_running)
    return (*(batch for batch in steps if batch < largest), largest)


def _capture_seconds(serving: Serving) -> float:
    return _CAPTURE_SECONDS_PER_BATCH * len(captured_batches(serving)) * (2 if serving.speculative else 1)


def _arguments(resolved: Resolved) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in sorted(vars(resolved.args).items()) if name not in UNSHOWN)
