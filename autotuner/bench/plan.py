"""What a bench measures: points of load, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from autotuner.errors import UsageError
from autotuner.loadgen.arrivals import Arrivals
from autotuner.loadgen.plan import CellPlan
from autotuner.loadgen.prompts import PromptSource
from autotuner.loadgen.userprompts import UserPrompts
from autotuner.model.workload import Cell, Sampling

Load = Literal["closed", "poisson", "fixed", "replay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of load. Of an open loop, the cell's concurrency is the most that may be in flight."""

    key: str
    """Unique; names its file of requests."""
    cell: Cell
    plan: CellPlan

    @property
    def load(self) -> Load:
        """How requests arrive."""
        return "closed" if self.plan.arrivals is None else self.plan.arrivals.kind

    @property
    def rate(self) -> float | None:
        """Requests per second that are due in an open loop."""
        return None if self.plan.arrivals is None else self.plan.arrivals.mean_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """Everything that is asked of an endpoint."""

    points: tuple[Point, ...]
    prompts: PromptSource | UserPrompts
    sampling: Sampling
    label: str
    flush: bool = False
    """Empty the server's prefix cache before every point. It is not ours, so only on request; nonces keep prompts apart anyway."""

    load_floor: str | None = None
    """What the latest self-test of the load generator on this machine found."""

    @property
    def contexts(self) -> tuple[int, ...]:
        """Every context, in order; empty where prompts bring their own length."""
        return tuple(sorted({point.cell.context for point in self.points})) if self.prompts.sized else ()


def points_of(
    plan: CellPlan,
    *,
    prompts: PromptSource | UserPrompts,
    contexts: Sequence[int],
    concurrency: Sequence[int],
    rates: Sequence[float],
    kind: Literal["poisson", "fixed", "replay"] | None,
    output_tokens: int,
    max_in_flight: int,
) -> tuple[Point, ...]:
    """The points of a bench: contexts × concurrency, contexts × rates in an open loop, or one replay of a log.

    Raises ``UsageError`` where the load and the prompts do not go together.
    """
    if isinstance(prompts, UserPrompts):
        contexts = (1,)  # their lengths are their own
    if kind is None:
        return tuple(_closed(plan, prompts, context, at, output_tokens) for context in contexts for at in concurrency)
    if kind == "replay":
        if not isinstance(prompts, UserPrompts):
            raise UsageError("a replay needs a log of requests")
        arrivals = Arrivals(kind=kind, offsets_s=prompts.arrivals_s(), max_in_flight=max_in_flight)
        return (_open(plan, prompts, 1, arrivals, output_tokens, name="replay"),)
    return tuple(
        _open(plan, prompts, context, Arrivals(kind=kind, rate=rate, max_in_flight=max_in_flight), output_tokens, name=f"{kind}{rate:g}")
        for context in contexts
        for rate in rates
    )


def _closed(plan: CellPlan, prompts: PromptSource | UserPrompts, context: int, concurrency: int, output_tokens: int) -> Point:
    cell = Cell(context=context, concurrency=concurrency, output_tokens=output_tokens)
    return Point(key=cell.key if prompts.sized else f"own-c{concurrency}-out{output_tokens}", cell=cell, plan=plan)


def _open(plan: CellPlan, prompts: PromptSource | UserPrompts, context: int, arrivals: Arrivals, output_tokens: int, *, name: str) -> Point:
    cell = Cell(context=context, concurrency=arrivals.max_in_flight, output_tokens=output_tokens)
    size = f"ctx{context}" if prompts.sized else "own"
    # A log may last for hours: it is replayed once, and what the client spoiled is told.
    repeats = 0 if arrivals.kind == "replay" else plan.repeats
    return Point(key=f"{size}-{name}-out{output_tokens}", cell=cell, plan=replace(plan, arrivals=arrivals, repeats=repeats))
