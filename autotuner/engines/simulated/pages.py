"""What the server says about itself: ``/server_info``, ``/model_info``, ``/v1/models`` and the Prometheus page."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from autotuner.engines.simulated.flags import UNSHOWN, VERSION
from autotuner.engines.simulated.resolve import Resolved
from autotuner.engines.simulated.scheduler import Scheduler
from autotuner.engines.simulated.startup import captured_batches

_INPUT_MARGIN = 6
"""Tokens of the context that the engine keeps for itself."""


def server_info(resolved: Resolved, scheduler: Scheduler, *, status: str) -> dict[str, Any]:
    """Resolved arguments, and the state of the scheduler beside them."""
    arguments = _arguments(resolved)
    memory, serving, totals = resolved.memory, resolved.serving, scheduler.totals
    phase = "target_verify" if serving.speculative else "decode"
    state: dict[str, Any] = {
        **arguments,
        "last_gen_throughput": totals.last_throughput,
        "memory_usage": {
            "weight": round(memory.weights_gib + memory.drafter_gib, 3),
            "kvcache": round(memory.kv_gib, 3),
            "startup_available": round(memory.free_gib, 3),
            "token_capacity": memory.kv_tokens,
            "graph": {"prefill": 0.0, "decode": 0.0, "target_verify": 0.0} | {phase: round(memory.graph_gib, 3)},
        },
        "effective_max_running_requests_per_dp": serving.max_running,
    }
    if serving.speculative:
        state["avg_spec_accept_length"] = totals.last_acceptance
    return {
        **arguments,
        "status": status,
        "max_total_num_tokens": memory.kv_tokens,
        "max_req_input_len": resolved.context_length - _INPUT_MARGIN,
        "version": VERSION,
        "simulated": True,
        "internal_states": [state],
    }


def _arguments(resolved: Resolved) -> dict[str, Any]:
    serving = resolved.serving
    found = {name: value for name, value in vars(resolved.args).items() if name not in UNSHOWN}
    found |= {
        "served_model_name": resolved.served_name,
        "context_length": resolved.context_length,
        "mem_fraction_static": resolved.memory.mem_fraction,
        "max_running_requests": serving.max_running if serving.speculative else resolved.args.max_running_requests,
        "chunked_prefill_size": serving.chunked_prefill,
        "attention_backend": resolved.args.attention_backend or "triton",
        "cuda_graph_max_bs": max(captured_batches(serving)) if serving.graphs else None,
    }
    if serving.speculative:
        found |= {"speculative_dflash_block_size": serving.block, "speculative_num_draft_tokens": serving.verify_tokens}
    if serving.spec == "ddtree":
        found |= {"speculative_ddtree_budget": serving.budget, "speculative_ddtree_topk": serving.topk}
    return found


def model_info(resolved: Resolved) -> dict[str, Any]:
    """What is served."""
    path = resolved.args.model_path
    return {"model_path": path, "tokenizer_path": resolved.args.tokenizer_path or path, "is_generation": True, "simulated": True}


def models(resolved: Resolved) -> dict[str, Any]:
    """The OpenAI list of models, of one."""
    entry = {"id": resolved.served_name, "object": "model", "created": int(time.time()), "owned_by": "sglang"}
    return {"object": "list", "data": [entry | {"root": resolved.served_name, "max_model_len": resolved.context_length}]}


def prometheus(resolved: Resolved, scheduler: Scheduler) -> str:
    """The page of ``--enable-metrics``. Gauges hold the last log interval, counters do not."""
    name = resolved.served_name.replace("\\", "\\\\").replace('"', '\\"')
    model = f'engine_type="unified",model_name="{name}"'
    rank = f'{model},moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    lines: list[str] = []
    for metric, kind, text, series in _metrics(resolved, scheduler):
        lines += [f"# HELP sglang:{metric} {text}", f"# TYPE sglang:{metric} {kind}"]
        for extra, value in series:
            where = rank if kind == "gauge" or metric.startswith(("cuda_graph", "num_retracted")) else model
            lines.append(f"sglang:{metric}{{{where}{extra}}} {float(value)}")
    return "\n".join(lines) + "\n"


_Series = tuple[tuple[str, float], ...]


def _metrics(resolved: Resolved, scheduler: Scheduler) -> Iterator[tuple[str, str, str, _Series]]:
    totals, memory, serving = scheduler.totals, resolved.memory, resolved.serving
    yield "prompt_tokens_total", "counter", "Number of prefill tokens processed.", (("", totals.prompt_tokens),)
    yield "generation_tokens_total", "counter", "Number of generation tokens processed.", (("", totals.generation_tokens),)
    yield "num_requests_total", "counter", "Number of requests processed.", (("", totals.requests),)
    yield "cached_tokens_total", "counter", "Number of cached prompt tokens.", ((',cache_source="device"', totals.cached_tokens),)
    yield "num_retracted_requests_total", "counter", "Number of retracted requests.", (("", 0),)
    passes = ((',mode="decode_cuda_graph"', totals.graph_steps), (',mode="decode_none"', totals.eager_steps))
    yield "cuda_graph_passes_total", "counter", "Total number of forward passes categorized by CUDA graph.", passes
    if serving.speculative:
        yield "spec_verify_calls_total", "counter", "Number of verification steps.", (("", totals.verify_steps),)
    for metric, value in {
        "num_running_reqs": scheduler.running,
        "num_queue_reqs": scheduler.queued,
        "num_used_tokens": scheduler.used_tokens,
        "token_usage": scheduler.used_tokens / max(1, memory.kv_tokens),
        "gen_throughput": totals.last_throughput,
        "spec_accept_length": totals.last_acceptance,
        "spec_num_draft_tokens": serving.verify_tokens if serving.speculative else 0,
        "max_total_num_tokens": memory.kv_tokens,
        "weight_memory_usage_gb": memory.weights_gib,
        "kv_cache_memory_usage_gb": memory.kv_gib,
        "graph_memory_usage_gb": memory.graph_gib,
        "context_len": resolved.context_length,
    }.items():
        yield metric, "gauge", metric.replace("_", " ").capitalize() + ".", (("", value),)
