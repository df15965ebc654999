"""What really runs: SGLang resolves many values silently, so they are read back after every launch."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from autotuner.engines.sglang.dialect import same
from autotuner.engines.sglang.failures import notices
from autotuner.model.document import Scalar
from autotuner.model.outcome import LaunchFacts

_RANK = re.compile(r"^\[[\d: .,-]*(?P<rank>(?: ?(?:DP|PP|TP|EP|ATTN_\w+|MOE_\w+)\d+)*)\]")
_LOADED = re.compile(r"Load weight end\b.*?mem usage=(?P<gib>-?[\d.]+) GB")
_CAPTURED = re.compile(r"(?i:capture [a-z ]*cuda graph end)\b.*?mem usage=(?P<gib>-?[\d.]+) GB")
_CAPACITY = re.compile(
    r"max_total_num_tokens=(?P<kv>\d+),.*?max_running_requests=(?P<running>\d+), context_len=(?P<context>\d+)"
    r"(?:, available_gpu_mem=(?P<free>[\d.]+) GB)?"
)
_SIZES = {"tp": "tp_size", "pp": "pp_size", "ep": "ep_size", "nodes": "nnodes"}
_PLAIN = {
    "mem_fraction": "mem_fraction_static",
    "chunked_prefill": "chunked_prefill_size",
    "kv_dtype": "kv_cache_dtype",
    "attention_backend": "attention_backend",
}
_TREE = {"budget": "speculative_ddtree_budget", "topk": "speculative_ddtree_topk"}
_BLOCKWISE = ("dflash", "ddtree")


def effective(info: Mapping[str, object]) -> dict[str, Scalar]:
    """Concepts as ``/server_info`` says that they run. A scheduler's own state is later, so truer, than the parsed arguments."""
    state = {**info, **_first_state(info)}
    found = {concept: state.get(key) for concept, key in {**_SIZES, **_PLAIN}.items()}
    algorithm = state.get("speculative_algorithm")
    spec = str(algorithm).lower() if algorithm else "off"
    found |= {"spec": spec, "graphs": _graphs(state), "graph_max_bs": _graph_max_bs(state), "max_running": _max_running(state)}
    found |= {"attn_dp": state.get("dp_size") if state.get("enable_dp_attention") else state.get("attn_dp_size")}
    found |= {"prefix_caching": not state["disable_radix_cache"]} if isinstance(state.get("disable_radix_cache"), bool) else {}
    if spec in _BLOCKWISE:
        window = state.get("speculative_draft_window_size", state.get("speculative_dflash_draft_window_size"))
        found |= {"block": state.get("speculative_dflash_block_size") or state.get("speculative_num_draft_tokens")}
        found |= {"window": "none" if window is None else window}
        found |= {concept: state.get(key) for concept, key in _TREE.items()} if spec == "ddtree" else {}
    elif spec != "off":
        found["draft_tokens"] = state.get("speculative_num_draft_tokens")
    return {concept: value for concept, value in sorted(found.items()) if isinstance(value, bool | int | float | str)}


def _first_state(info: Mapping[str, object]) -> Mapping[str, object]:
    states = info.get("internal_states")
    return states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}


def _graphs(state: Mapping[str, object]) -> bool | None:
    """Whether decoding runs from graphs: the resolved phase decides where the build says it, the old switch elsewhere."""
    backend = _phase(state).get("backend")
    if isinstance(backend, str):
        return backend != "disabled"
    switches = [state.get("disable_cuda_graph"), state.get("disable_decode_cuda_graph")]
    return not any(switches) if any(isinstance(switch, bool) for switch in switches) else None


def _graph_max_bs(state: Mapping[str, object]) -> object:
    if _graphs(state) is False:
        return None
    return _phase(state).get("max_bs") or state.get("cuda_graph_max_bs")


def _phase(state: Mapping[str, object]) -> Mapping[str, object]:
    config = state.get("cuda_graph_config")
    phase = config.get("decode") if isinstance(config, dict) else None
    return phase if isinstance(phase, dict) else {}


def _max_running(state: Mapping[str, object]) -> object:
    """Over all attention replicas; each holds an equal share of what was asked for."""
    share = state.get("effective_max_running_requests_per_dp")
    if not isinstance(share, int):
        return state.get("max_running_requests")
    replicas = state.get("dp_size") if state.get("enable_dp_attention") else state.get("attn_dp_size")
    return share * (replicas if isinstance(replicas, int) else 1)


def rewrites(requested: Mapping[str, Scalar], running: Mapping[str, Scalar]) -> tuple[str, ...]:
    """One sentence for every concept that runs otherwise than it was asked for; ``auto`` asks for nothing."""
    return tuple(
        f"{concept}: {_text(wanted)} was asked for, {_text(running[concept])} runs"
        for concept, wanted in requested.items()
        if concept in running and wanted != "auto" and not _alike(wanted, running[concept])
    )


def _alike(one: Scalar, other: Scalar) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return isinstance(one, int | float) and isinstance(other, int | float) and math.isclose(one, other, rel_tol=1e-6)
    return same(one, other)


def _text(value: Scalar) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else f"{value}"


def launch_facts(log: str, info: Mapping[str, object]) -> LaunchFacts:
    """Memory and capacity as the engine said them: its answer about itself first, its log where that is silent."""
    lines = _one_rank(log)
    capacity = next((match for line in reversed(lines) if (match := _CAPACITY.search(line))), None)
    usage = _first_state(info).get("memory_usage")
    memory: Mapping[str, object] = usage if isinstance(usage, dict) else {}
    graph = memory.get("graph")
    running = effective(info).get("max_running")
    context = info.get("context_length")
    return LaunchFacts(
        weights_gib=_sum(_LOADED, lines) or _number(memory.get("weight")),
        kv_tokens=_whole(info.get("max_total_num_tokens")) or (int(capacity["kv"]) if capacity else None),
        graph_gib=_values(graph) if isinstance(graph, dict) else _sum(_CAPTURED, lines),
        free_gib=float(capacity["free"]) if capacity and capacity["free"] else _number(memory.get("startup_available")),
        max_running=_whole(running) or (int(capacity["running"]) if capacity else None),
        context_len=int(capacity["context"]) if capacity else _whole(context),
        warnings=notices(log),
    )


def _one_rank(log: str) -> list[str]:
    """The lines of the first rank that reported loading weights, and those without a rank: every rank logs the same start-up."""
    lines = log.splitlines()
    first = next((_rank(line) for line in lines if "Load weight begin" in line), "")
    return [line for line in lines if _rank(line) in ("", first)]


def _rank(line: str) -> str:
    match = _RANK.match(line)
    return match["rank"].strip() if match else ""


def _sum(pattern: re.Pattern[str], lines: list[str]) -> float | None:
    found = [max(0.0, float(match["gib"])) for line in lines if (match := pattern.search(line))]
    return round(sum(found), 3) if found else None


def _values(table: Mapping[str, object]) -> float:
    return round(sum(value for value in table.values() if isinstance(value, int | float)), 3)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
