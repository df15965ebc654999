"""What the engine refuses before or while it starts, and what crashes this host's build, in the engine's own words. Pure.

Where real argument resolution accepts what fails later (a tensor parallel size that does not divide the heads), the failure comes later
here too; ``stage`` says when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from autotuner.engines.simulated.profile import Profile
from autotuner.engines.simulated.serving import Serving

Stage = Literal["resolve", "dist-init", "load", "serve"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line asks for, before defaults; ``None`` where it says nothing."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    nnodes: int = 1
    algorithm: str | None = None
    draft_path: str | None = None
    block: int | None = None
    draft_tokens: int | None = None
    budget: int | None = None
    topk: int | None = None
    window: int | None = None
    page_size: int = 1
    chunked_prefill: int | None = None
    context_length: int | None = None
    mem_fraction: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What the command line is judged against."""

    gpus: int
    heads: int
    experts: int
    context_max: int
    drafter_block: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A refusal: the exception's line, and the frame above it where the engine's is bare."""

    stage: Stage
    message: str
    source: tuple[str, int, str, str] | None = None
    """File, line, function and code of the frame that raises."""


ALGORITHMS = ("DFLASH", "DDTREE")
_LATER = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM")
"""Known to the engine, but no model that could draft for them is simulated."""


def drafted_block(asked: Asked, world: World) -> int:
    """Block that runs: as asked for, else the drafter's own, else 16."""
    return asked.block or asked.draft_tokens or world.drafter_block or 16


def rejection(asked: Asked, world: World) -> Rejection | None:
    """The first reason for which the engine would not start with these arguments; the one it meets first, as it reads them."""
    return next((refused for check in _CHECKS if (refused := check(asked, world)) is not None), None)


def _value_error(text: str) -> Rejection:
    return Rejection(stage="resolve", message=f"ValueError: {text}")


def _algorithm(asked: Asked, _: World) -> Rejection | None:
    name = (asked.algorithm or "").upper()
    if not name or name in ALGORITHMS:
        return None
    if name in _LATER:
        return _value_error(f"{name} speculative decoding requires a draft model or layers that this model does not have.")
    return _value_error(f"Unknown speculative algorithm name: {asked.algorithm}")


def _pipeline(asked: Asked, _: World) -> Rejection | None:
    if asked.algorithm and asked.pp != 1:
        return _value_error(f"Currently {asked.algorithm.upper()} speculative decoding only supports pp_size == 1.")
    return None


def _draft_path(asked: Asked, _: World) -> Rejection | None:
    if asked.algorithm and not asked.draft_path:
        return _value_error(f"{asked.algorithm.upper()} speculative decoding requires setting --speculative-draft-model-path.")
    return None


def _block(asked: Asked, _: World) -> Rejection | None:
    if not asked.algorithm:
        return None
    name = asked.algorithm.upper()
    if asked.block is not None and asked.block < 1:
        return _value_error(f"{name} requires --speculative-dflash-block-size to be positive, got {asked.block}.")
    if asked.block is not None and asked.draft_tokens is not None and asked.block != asked.draft_tokens:
        return _value_error(
            "Both --speculative-num-draft-tokens and --speculative-dflash-block-size are set but they differ. "
            f"For {name} they must match. speculative_num_draft_tokens={asked.draft_tokens}, "
            f"speculative_dflash_block_size={asked.block}."
        )
    return None


def _window(asked: Asked, world: World) -> Rejection | None:
    if not asked.algorithm or asked.window is None:
        return None
    if asked.window < 1:
        return _value_error(f"--speculative-draft-window-size must be positive, got {asked.window}.")
    block = drafted_block(asked, world)
    if asked.window < block:
        return _value_error(
            "--speculative-draft-window-size must be >= --speculative-num-draft-tokens (block_size). "
            f"window_size={asked.window}, block_size={block}."
        )
    return None


def _tree(asked: Asked, _: World) -> Rejection | None:
    if (asked.algorithm or "").upper() != "DDTREE":
        return None
    for flag, value in (("--speculative-ddtree-budget", asked.budget), ("--speculative-ddtree-topk", asked.topk)):
        if value is not None and value < 1:
            return _value_error(f"{flag} must be positive, got {value}.")
    if asked.page_size != 1:
        return _value_error(f"DDTREE currently supports only page_size == 1. Got page_size={asked.page_size}.")
    return None


def _chunks(asked: Asked, _: World) -> Rejection | None:
    chunk = asked.chunked_prefill
    if chunk is not None and chunk > 0 and chunk % asked.page_size:
        return Rejection(stage="resolve", message="AssertionError: chunked_prefill_size must be divisible by page_size")
    return None


def _fraction(asked: Asked, _: World) -> Rejection | None:
    fraction = asked.mem_fraction
    if fraction is not None and not 0 < fraction < 1:
        return _value_error(f"mem_fraction_static must be between 0 and 1, got {fraction:g}.")
    return None


def _context(asked: Asked, world: World) -> Rejection | None:
    length = asked.context_length
    if length is not None and length > world.context_max:
        return _value_error(
            f"Warning: User-specified context_length ({length}) is greater than the derived context_length ({world.context_max}). "
            "This may lead to incorrect model outputs or CUDA errors. To allow overriding this maximum, set the env var "
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
        )
    return None


def _expert_parallel(asked: Asked, _: World) -> Rejection | None:
    if asked.ep < 1 or asked.tp % asked.ep:
        return _bare("resolve", "server_args.py", 2214, "check_server_args", "assert self.tp_size % self.ep_size == 0")
    return None


def _nodes(asked: Asked, _: World) -> Rejection | None:
    if asked.nnodes != 1:
        return _bare("resolve", "server_args.py", 2198, "check_server_args", "assert (self.tp_size * self.pp_size) % self.nnodes == 0")
    return None


def _gpus(asked: Asked, world: World) -> Rejection | None:
    if asked.tp * asked.pp > world.gpus or asked.tp < 1 or asked.pp < 1:
        return Rejection(
            stage="dist-init",
            message=(
                "torch.AcceleratorError: CUDA error: invalid device ordinal\n"
                "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."
            ),
            source=("model_runner.py", 742, "init_torch_distributed", "torch.get_device_module(self.device).set_device(self.gpu_id)"),
        )
    return None


def _heads(asked: Asked, world: World) -> Rejection | None:
    if world.heads % asked.tp:
        return _bare("load", "deepseek_v2.py", 1093, "__init__", "assert self.total_num_heads % tp_size == 0")
    return None


def _experts(asked: Asked, world: World) -> Rejection | None:
    if world.experts % asked.ep:
        return _bare("load", "layer.py", 201, "__init__", "assert num_experts % self.moe_ep_size == 0")
    return None


def _bare(stage: Stage, file: str, line: int, function: str, code: str) -> Rejection:
    return Rejection(stage=stage, message="AssertionError", source=(file, line, function, code))


_CHECKS: tuple[Callable[[Asked, World], Rejection | None], ...] = (
    _algorithm,
    _pipeline,
    _draft_path,
    _block,
    _window,
    _tree,
    _chunks,
    _fraction,
    _context,
    _expert_parallel,
    _nodes,
    _gpus,
    _heads,
    _experts,
)


def graph_crash(profile: Profile, serving: Serving) -> Rejection | None:
    """The bug of this host's build that a replayed CUDA graph runs into at the first decode, if any."""
    return next(_graph_crashes(profile, serving), None) if serving.graphs else None


def _graph_crashes(profile: Profile, serving: Serving) -> Iterator[Rejection]:
    quirks = profile.quirks
    if quirks.dflash_graphs_crash and serving.spec == "dflash":
        yield Rejection(
            stage="serve",
            message="TypeError: 'NoneType' object is not subscriptable",
            source=("dflash_worker.py", 715, "_replay_cuda_graph", "hidden_states = logits_output.hidden_states[: batch.batch_size()]"),
        )
    limit = quirks.tree_budget_with_graphs
    if limit and serving.spec == "ddtree" and serving.budget > limit:
        yield Rejection(
            stage="serve",
            message=(
                "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
                "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."
            ),
            source=("ddtree_worker.py", 388, "_verify_tree", "self.tree_graph_runner.replay(forward_batch)"),
        )
