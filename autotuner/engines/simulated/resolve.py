"""Argument resolution: from a command line to what runs, as the engine fills in what was not said. Pure."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

from autotuner.engines.simulated.memory import MemoryPlan, plan_memory
from autotuner.engines.simulated.rules import Asked, Rejection, drafted_block, graph_crash, rejection
from autotuner.engines.simulated.serving import Serving, Spec
from autotuner.engines.simulated.setting import Setting

SPECULATIVE_MAX_RUNNING = 48
"""What the engine silently allows with speculation when nothing is said."""
_FULL_CONTEXT_SHARE = 512
_DEFAULT_TOPK = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What a command line comes to. ``serving`` and ``memory`` mean nothing when it is rejected at ``resolve``."""

    args: argparse.Namespace
    serving: Serving
    memory: MemoryPlan
    context_length: int
    rejection: Rejection | None
    crash: Rejection | None
    """The bug that the first decode runs into."""
    notices: tuple[str, ...]
    """Lines about silent rewrites, in the engine's words."""
    capacity_notice: str | None
    served_name: str


def resolve(args: argparse.Namespace, setting: Setting) -> Resolved:
    """What runs with these arguments in this setting, or why nothing does."""
    asked = _asked(args)
    refused = rejection(asked, setting.world)
    serving, notices = _serving(args, asked, setting)
    context = args.context_length or setting.world.context_max
    kv_bytes = 1.0 if "fp8" in args.kv_cache_dtype else 2.0
    memory = plan_memory(
        setting.profile,
        serving,
        total_gib=setting.memory_gib,
        mem_fraction=args.mem_fraction_static,
        kv_bytes=kv_bytes,
        max_total_tokens=args.max_total_tokens,
    )
    return Resolved(
        args=args,
        serving=_with_running(serving, args, memory, context),
        memory=memory,
        context_length=context,
        rejection=refused,
        crash=graph_crash(setting.profile, serving),
        notices=notices,
        capacity_notice=_capacity_notice(args, memory),
        served_name=args.served_model_name or args.model_path,
    )


def _asked(args: argparse.Namespace) -> Asked:
    return Asked(
        tp=args.tp_size,
        pp=args.pp_size,
        ep=args.ep_size,
        nnodes=args.nnodes,
        algorithm=args.speculative_algorithm,
        draft_path=args.speculative_draft_model_path,
        block=args.speculative_dflash_block_size,
        draft_tokens=args.speculative_num_draft_tokens,
        budget=args.speculative_ddtree_budget,
        topk=args.speculative_ddtree_topk,
        window=args.speculative_draft_window_size,
        page_size=args.page_size,
        chunked_prefill=args.chunked_prefill_size,
        context_length=args.context_length,
        mem_fraction=args.mem_fraction_static,
    )


def _serving(args: argparse.Namespace, asked: Asked, setting: Setting) -> tuple[Serving, tuple[str, ...]]:
    spec = _spec(asked)
    block = max(2, drafted_block(asked, setting.world))
    notices: list[str] = []
    running = args.max_running_requests
    if running is None and spec != "off":
        running = SPECULATIVE_MAX_RUNNING
        notices.append(
            f"Max running requests is reset to {running} for speculative decoding. "
            "You can override this by explicitly setting --max-running-requests."
        )
    if spec != "off" and block != setting.world.drafter_block:
        notices.append(
            f"{spec.upper()} block size mismatch: using speculative_num_draft_tokens={block} "
            f"but draft config block_size={setting.world.drafter_block}."
        )
    serving = Serving(
        tp=max(1, asked.tp),
        pp=max(1, asked.pp),
        ep=max(1, asked.ep),
        graphs=not args.disable_cuda_graph,
        graph_max_batch=_graph_max_batch(args, setting, running),
        spec=spec,
        block=block,
        budget=asked.budget if asked.budget is not None else block - 1,
        topk=asked.topk if asked.topk is not None else _DEFAULT_TOPK,
        window=asked.window,
        max_running=running if running is not None else 4096,
        chunked_prefill=args.chunked_prefill_size or _default_chunk(setting.memory_gib),
    )
    return serving, tuple(notices)


def _spec(asked: Asked) -> Spec:
    if not asked.algorithm:
        return "off"
    return "ddtree" if asked.algorithm.upper() == "DDTREE" else "dflash"


def _graph_max_batch(args: argparse.Namespace, setting: Setting, running: int | None) -> int:
    default = 512 if setting.memory_gib >= 160 or args.tp_size >= 4 else 256
    wanted = max(args.cuda_graph_bs) if args.cuda_graph_bs else (args.cuda_graph_max_bs or default)
    return min(wanted, running) if running else wanted


def _default_chunk(memory_gib: float) -> int:
    return 16384 if memory_gib >= 160 else 8192 if memory_gib >= 60 else 4096


def _with_running(serving: Serving, args: argparse.Namespace, memory: MemoryPlan, context: int) -> Serving:
    """Running requests as capped by the cache; the engine's own choice where nothing was said and nothing is drafted."""
    running = memory.max_running
    if args.max_running_requests is None and not serving.speculative:
        running = min(running, max(memory.kv_tokens // context * _FULL_CONTEXT_SHARE, 2048), 4096)
    return replace(serving, max_running=max(1, running))


def _capacity_notice(args: argparse.Namespace, memory: MemoryPlan) -> str | None:
    asked = args.max_running_requests
    if asked is None or memory.max_running >= asked:
        return None
    return (
        f"max_running_requests was reduced from the requested {asked} to {memory.max_running} (per dp worker) "
        "due to the available KV cache capacity."
    )
