"""Profile: the constants of one simulated host, read from ``profiles/NAME.toml``; each is explained there."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The model that is served."""

    experts: int
    experts_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Time of one forward pass of the target, in milliseconds on eight GPUs."""

    fixed_ms: float
    experts_ms: float
    expert_sharing: float
    request_ms: float
    request_growth: float
    token_ms: float
    context_ms: float
    context_request_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParallel:
    """What all-reduces cost in a group of eight; ``groups`` is the share of it in smaller groups."""

    latency_ms: float
    ring_ms: float
    ring_tokens: float
    token_ms: float
    groups: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertParallel:
    """What dispatching tokens to experts costs, scaled by ``1 - 1/ep``."""

    dispatch_ms: float
    token_ms: float
    eager_sync_ms: float
    eager_sync_batch: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What a pipeline adds."""

    bubble: float
    hop_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Eager:
    """Launching every kernel from the host when no graph is replayed."""

    launch_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Time of one draft, in milliseconds."""

    fixed_ms: float
    position_ms: float
    request_position_ms: float
    node_ms: float
    topk_ms: float
    context_ms: float
    mixed_group_factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Time to the first token."""

    admission_ms: float
    fixed_ms: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """How many drafted tokens the target takes."""

    chain: float
    trained_depth: int
    beyond: float
    smaller_block: float
    larger_block: float
    tree_gain: float
    tree_scale: float
    tree_growth: float
    context_tokens: float
    context_budget: float
    window_loss: float
    window_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """GiB per GPU on eight GPUs, and what else the memory model needs."""

    reserved_gib: float
    weights_gib: float
    replicated_gib: float
    drafter_gib: float
    graph_fixed_gib: float
    graph_gib_per_ktoken: float
    activation_gib_per_ktoken: float
    kv_bytes_per_token: int
    draft_kv_bytes_per_token: int
    load_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """Bugs of this host's build."""

    dflash_graphs_crash: bool
    tree_budget_with_graphs: int
    """Larger draft trees crash when a graph is replayed; 0 is no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Everything that makes one simulated host behave as it does."""

    name: str
    sm: int
    link: str
    target: Target
    step: Step
    tensor_parallel: TensorParallel
    expert_parallel: ExpertParallel
    pipeline: Pipeline
    eager: Eager
    draft: Draft
    prefill: Prefill
    acceptance: Acceptance
    memory: Memory
    quirks: Quirks
    domains: Mapping[str, float]
    """Share of the drafted tokens accepted, relative to code."""
    answers: Mapping[str, int]
    """Mean length of an answer in tokens."""


_PARTS: Mapping[str, type] = {
    "target": Target,
    "step": Step,
    "tensor_parallel": TensorParallel,
    "expert_parallel": ExpertParallel,
    "pipeline": Pipeline,
    "eager": Eager,
    "draft": Draft,
    "prefill": Prefill,
    "acceptance": Acceptance,
    "memory": Memory,
    "quirks": Quirks,
}


def profile_names() -> tuple[str, ...]:
    """Profiles that the package ships."""
    folder = resources.files(__package__).joinpath("profiles")
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")))


@cache
def load_profile(name: str) -> Profile:
    """The profile of this name. Raises ``KeyError`` when the package ships none."""
    if name not in profile_names():
        raise KeyError(name)
    text = resources.files(__package__).joinpath("profiles", f"{name}.toml").read_text(encoding="utf-8")
    return parse_profile(tomllib.loads(text))


def parse_profile(table: Mapping[str, Any]) -> Profile:
    """A profile from its TOML. Raises ``ValueError`` when a constant is missing or not known."""
    values: dict[str, Any] = {}
    for field in fields(Profile):
        if field.name not in table:
            msg = f"profile lacks {field.name}"
            raise ValueError(msg)
        part = _PARTS.get(field.name)
        values[field.name] = _part(part, field.name, table[field.name]) if part else table[field.name]
    return Profile(**values)


def _part(kind: type, name: str, table: Mapping[str, Any]) -> object:
    known = {field.name for field in fields(kind)}
    if odd := sorted(known.symmetric_difference(table)):
        msg = f"profile: [{name}] lacks or does not know {', '.join(odd)}"
        raise ValueError(msg)
    if kind is TensorParallel:
        table = {**table, "groups": {int(size): share for size, share in table["groups"].items()}}
    return kind(**table)
