"""Outcome of one trial: what the runner tells the tuner."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from autotuner.model.document import Scalar
from autotuner.model.measurement import CellResult
from autotuner.model.quality import UNCHECKED, QualityReport


class Stage(enum.StrEnum):
    """Where a launch was when it was last heard of. Values are only ever added."""

    RENDER = "render"
    START = "start"
    PARSE = "parse"
    RESOLVE = "resolve"
    DIST_INIT = "dist-init"
    LOAD = "load"
    KV_SIZING = "kv-sizing"
    GRAPH_CAPTURE = "graph-capture"
    WARMUP = "warmup"
    READY = "ready"
    SERVE = "serve"
    STOP = "stop"


class Consequence(enum.StrEnum):
    """What a failure means for the search, apart from what it is called."""

    INFEASIBLE = "infeasible"
    """The configuration cannot run here: learned, never retried."""
    TRANSIENT = "transient"
    """The wire or the moment failed: the same trial is tried again."""
    HOST_BROKEN = "host-broken"
    """Nothing can be trusted on this host now: the study stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a trial has no value. ``cls`` is a class of the failure catalogue (``memory``, ``engine-bug``, ``env`` …)."""

    kind: str
    """Identity in the catalogue, e.g. ``sgl-graph-fail``; ``unknown`` when nothing matched."""
    cls: str
    stage: Stage
    consequence: Consequence
    cause: str
    """One sentence for a person."""
    remedy: str | None = None
    evidence: tuple[str, ...] = ()
    """The lines of the log that say so, and its tail."""
    confidence: float = 1.0
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    """Numbers that the engine printed with the failure, e.g. ``min_mem_fraction``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFacts:
    """What one launch taught: times in seconds, memory in GiB; ``None`` where the engine did not say."""

    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    launch_s: float | None = None
    stage_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds from start to each stage that was seen."""
    weights_gib: float | None = None
    kv_tokens: int | None = None
    graph_gib: float | None = None
    free_gib: float | None = None
    """GPU memory still free when ready."""
    max_running: int | None = None
    context_len: int | None = None
    warnings: tuple[str, ...] = ()
    """Silent rewrites: what was asked for and what runs instead."""
    load_from: str | None = None
    """Where load was driven from: ``controller`` or ``host``; ``None`` where the launch was not measured, or by a first version."""
    rtt_ms: float | None = None
    """Round trip between load and server, where there is a network between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The trial ran; ``censored`` says that cells are missing because it could not win."""

    cells: tuple[CellResult, ...]
    effective: Mapping[str, Scalar]
    launch: LaunchFacts
    censored: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Cell → why it is not among ``cells``: the load generator was not good enough for it, time and again."""
    quality: QualityReport = UNCHECKED


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """The configuration cannot run here."""

    failure: Failure
    launch: LaunchFacts = LaunchFacts()
    cells: tuple[CellResult, ...] = ()
    """Cells that were measured before it failed; kept, never scored."""
    quality: QualityReport = UNCHECKED


@dataclass(frozen=True, slots=True, kw_only=True)
class Transient:
    """The wire or the moment failed."""

    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBroken:
    """The host cannot be trusted now."""

    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """A person asked to stop before the trial was complete; it is asked again."""


Outcome = Measured | Infeasible | Transient | HostBroken | Interrupted
