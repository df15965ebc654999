"""Workload: a named purpose, measured in cells of context × concurrency."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from autotuner.model.document import API_VERSION, Document, Metadata, Strict

ObjectiveMetric = Literal[
    "user_tok_s", "output_tok_s", "ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms", "tpot_p95_ms", "e2e_p50_ms", "e2e_p95_ms"
]
Domain = Literal["code", "explanation", "arithmetic", "poem", "json", "prose", "rag"]
OWN_PROMPTS = "own"
"""The domain of prompts that a user brings along; no context is aimed at with them."""

BUILTIN_WORKLOADS = ("latency", "long-context", "throughput")
DEFAULT_CONTEXTS = (60, 1024, 4096)
DEFAULT_CONCURRENCY = (1, 8, 32, 64, 128)
DEFAULT_OUTPUT_TOKENS = 512


class Cell(Strict):
    """One operating point: prompt length and answer length in tokens, and requests in flight."""

    context: int = Field(ge=1)
    concurrency: int = Field(ge=1, le=4096)
    output_tokens: int = Field(default=DEFAULT_OUTPUT_TOKENS, ge=1)
    weight: float = Field(default=1.0, gt=0)

    @property
    def key(self) -> str:
        """Identity in records and tables, without the weight: ``ctx60-c8-out512``."""
        return f"ctx{self.context}-c{self.concurrency}-out{self.output_tokens}"

    def __str__(self) -> str:
        return f"context {self.context}, C={self.concurrency}"


class Slo(Strict):
    """A limit that every answer must keep: ``metric`` at most (latencies) or at least (rates) ``limit``."""

    metric: ObjectiveMetric
    limit: float = Field(gt=0)


class Sampling(Strict):
    """How answers are sampled while measuring. Greedy by default, so that acceptance is repeatable."""

    temperature: float = Field(default=0.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    ignore_eos: bool = Field(
        default=False,
        description="Generate past the natural end. Acceptance of drafts falls there, so leave it off unless lengths must be exact.",
    )


class Workload(Document):
    """What the configuration is for: an objective over weighted cells under SLOs."""

    kind: Literal["Workload"]
    objective: ObjectiveMetric
    cells: tuple[Cell, ...] = Field(min_length=1)
    prompts: tuple[Domain, ...] = ("code", "explanation", "arithmetic", "poem", "json")
    slos: tuple[Slo, ...] = ()
    sampling: Sampling = Sampling()

    @property
    def maximize(self) -> bool:
        """Whether more is better: rates are, latencies are not."""
        return not self.objective.endswith("_ms")


def builtin_workloads(
    *,
    context_served: int,
    contexts: tuple[int, ...] = DEFAULT_CONTEXTS,
    concurrency: tuple[int, ...] = DEFAULT_CONCURRENCY,
    output_tokens: int = DEFAULT_OUTPUT_TOKENS,
) -> tuple[Workload, Workload, Workload]:
    """``latency``, ``long-context`` and ``throughput`` over a matrix of contexts × concurrency.

    ``latency`` is per-user tok/s at the shortest context and lowest concurrency, ``long-context`` output tok/s at the longest context that
    still leaves room for the answer within ``context_served`` tokens, ``throughput`` output tok/s at the highest concurrency and shortest
    context. Contexts that do not fit are left out.
    """
    fitting = [context for context in sorted(set(contexts)) if context + output_tokens <= context_served]
    if not fitting:
        fitting = [max(1, context_served - output_tokens)]
    low, high = min(concurrency), max(concurrency)

    def cell(context: int, at: int) -> Cell:
        return Cell(context=context, concurrency=at, output_tokens=output_tokens)

    def workload(name: str, objective: ObjectiveMetric, only: Cell, text: str) -> Workload:
        return Workload(
            apiVersion=API_VERSION, kind="Workload", metadata=Metadata(name=name, description=text), objective=objective, cells=(only,)
        )

    return (
        workload("latency", "user_tok_s", cell(fitting[0], low), "One user, short prompts: tokens per second that this user sees."),
        workload("long-context", "output_tok_s", cell(fitting[-1], low), "One user, the longest prompts that the model serves."),
        workload("throughput", "output_tok_s", cell(fitting[0], high), "Many users at once, short prompts: tokens per second together."),
    )


def matrix(
    workloads: tuple[Workload, ...],
    *,
    context_served: int,
    contexts: tuple[int, ...] = DEFAULT_CONTEXTS,
    concurrency: tuple[int, ...] = DEFAULT_CONCURRENCY,
    output_tokens: int = DEFAULT_OUTPUT_TOKENS,
) -> tuple[Cell, ...]:
    """Every cell that one launch measures: those of the workloads first, then the rest of contexts × concurrency, each once.

    The weight of a cell belongs to its workload, so cells here carry the default weight.
    """
    wanted = [cell for workload in workloads for cell in workload.cells]
    rest = [
        Cell(context=context, concurrency=at, output_tokens=output_tokens)
        for context in sorted(set(contexts))
        for at in sorted(set(concurrency))
        if context + output_tokens <= context_served
    ]
    return once([*wanted, *rest])


def once(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Each operating point once, in order of first mention, without the weight that it has in a workload."""
    unique: dict[str, Cell] = {}
    for cell in cells:
        unique.setdefault(cell.key, cell.model_copy(update={"weight": 1.0}))
    return tuple(unique.values())
