"""Acceptance: how many tokens a verification step of speculative decoding yielded, and what share of the drafted tokens was accepted.

Answers that tell it of themselves come first: they are exactly those of the window. Else the counters tell, by how they changed over it.
Gauges and averages of a server's lifetime never do: they speak of another time than the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from autotuner.model.measurement import RequestRecord

Source = Literal["requests", "counters"]


class SpeculationCounters(Protocol):
    """Monotonic counters of a server; ``None`` where it does not have one."""

    @property
    def generation_tokens(self) -> float | None:
        """Tokens generated, counted together with ``verify_steps``."""
        ...

    @property
    def verify_steps(self) -> float | None:
        """Verification steps of speculative decoding, summed over requests."""
        ...

    @property
    def drafted_tokens(self) -> float | None:
        """Tokens that were drafted for them."""
        ...

    @property
    def accepted_tokens(self) -> float | None:
        """Drafted tokens that were accepted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """What is known; ``None`` for what is not, all of it without speculation."""

    length: float | None = None
    """Tokens per verification step, the target's own token included."""
    rate: float | None = None
    """Accepted over drafted tokens, 0 to 1. It falls with the number drafted: the length is what compares configurations."""
    source: Source | None = None
    notes: tuple[str, ...] = ()


def acceptance(ended: Sequence[RequestRecord], before: SpeculationCounters | None, after: SpeculationCounters | None) -> Acceptance:
    """Over the answers that ended in the window, else over the counters at its two edges."""
    return _of_requests(ended) or _of_counters(before, after) or Acceptance()


def _of_requests(ended: Sequence[RequestRecord]) -> Acceptance | None:
    telling = [record for record in ended if record.verify_steps]
    steps = sum(record.verify_steps or 0 for record in telling)
    tokens = sum((record.completion_tokens if record.step_tokens is None else record.step_tokens) or 0 for record in telling)
    drafting = [record for record in telling if record.drafted_tokens and record.accepted_tokens is not None]
    drafted = sum(record.drafted_tokens or 0 for record in drafting)
    accepted = sum(record.accepted_tokens or 0 for record in drafting)
    return _checked(tokens, steps, accepted if drafted else None, drafted, "requests")


def _of_counters(before: SpeculationCounters | None, after: SpeculationCounters | None) -> Acceptance | None:
    if before is None or after is None:
        return None
    steps = _change(before.verify_steps, after.verify_steps)
    accepted = _change(before.accepted_tokens, after.accepted_tokens)
    drafted = _change(before.drafted_tokens, after.drafted_tokens)
    # Where accepted tokens are counted, the target's own token of every step comes on top; prompts' first tokens are of no step.
    tokens = _change(before.generation_tokens, after.generation_tokens) if accepted is None else accepted + (steps or 0)
    return _checked(tokens, steps, accepted, drafted, "counters")


def _checked(tokens: float | None, steps: float | None, accepted: float | None, drafted: float | None, source: Source) -> Acceptance | None:
    if not steps or not tokens:
        return None
    if tokens < steps:
        return Acceptance(notes=(f"acceptance length left out: {tokens:.0f} tokens in {steps:.0f} verification steps cannot be",))
    rate = accepted / drafted if drafted and accepted is not None else None
    notes: tuple[str, ...] = ()
    if rate is not None and rate > 1:
        rate, notes = None, (f"acceptance rate left out: {accepted:.0f} accepted of {drafted:.0f} drafted tokens cannot be",)
    return Acceptance(length=tokens / steps, rate=rate, source=source, notes=notes)


def _change(first: float | None, last: float | None) -> float | None:
    return None if first is None or last is None else last - first
