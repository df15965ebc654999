"""How a cell is measured: times, limits and seed; and what a worker is told about its share of it."""

from __future__ import annotations

from dataclasses import dataclass

from autotuner.loadgen.prompts import PromptSource
from autotuner.model.workload import Cell, Sampling

LANES_PER_WORKER = 32
"""Beyond this one process would begin to limit what it measures (one Python client read 9374 tok/s where the server gave 17220)."""
SHORTEST_WARM_UP = 32
"""Tokens of the shortest warm-up answer."""


def cell_seconds(at_ns: int, begin_ns: int) -> float:
    """A moment on the clock of its cell. Rounded here and nowhere else, so that equal moments stay equal."""
    return round((at_ns - begin_ns) / 1e9, 7)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlan:
    """Times in seconds. The window is at least ``window_s`` long and grows until enough answers ended in it, up to a cap."""

    window_s: float = 4.0
    warmup_s: float = 1.5
    request_timeout_s: float = 120
    """A request without a byte for so long is an error."""
    seed: int = 0
    max_window_s: float | None = None
    """The cap; four times ``window_s`` when not given."""
    max_warmup_s: float = 30.0
    """Where some lanes still wait for a first token after this, the window starts without them, with a warning."""
    settle_s: float | None = None
    """How much longer than ``warmup_s`` to wait for the rate of chunks to stop moving; twice ``warmup_s`` when not given."""
    min_answers: int = 3

    @property
    def longest_window_s(self) -> float:
        """How long the window may grow."""
        return max(self.window_s, 4 * self.window_s if self.max_window_s is None else self.max_window_s)

    @property
    def longest_warmup_s(self) -> float:
        """When the window begins although the rate of chunks still moves."""
        return self.warmup_s + (2 * self.warmup_s if self.settle_s is None else self.settle_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one worker drives: some lanes of a cell."""

    base_url: str
    model: str
    chat_path: str
    cell: Cell
    lanes: tuple[int, ...]
    prompts: PromptSource
    sampling: Sampling
    warmup_s: float
    request_timeout_s: float
    seed: int
    begin_ns: int
    """CLOCK_MONOTONIC at which the cell began, the same for all workers."""

    def limit(self, lane: int, at_ns: int) -> int:
        """Tokens that an answer begun at ``at_ns`` may have.

        While warming up, lanes get answers of different length, so that they do not go on in step: in step, prefill and decode would
        take turns and a short window would see only one of them.
        """
        full = self.cell.output_tokens
        if at_ns - self.begin_ns >= self.warmup_s * 1e9:
            return full
        return min(full, max(SHORTEST_WARM_UP, full * lane // self.cell.concurrency))

    def start_delay_s(self, lane: int) -> float:
        """Lanes start one after another over half of the warm-up."""
        return self.warmup_s / 2 * lane / self.cell.concurrency


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the lanes of a worker, or of all workers, have come. Sums over workers, but for ``last_end_ns``."""

    first: int = 0
    """Lanes that have seen a token."""
    answered: int = 0
    failed: int = 0
    dead: int = 0
    """Lanes whose last requests all failed."""
    reads: int = 0
    last_end_ns: int = 0
    """When the last answer ended."""

    def __add__(self, other: Progress) -> Progress:
        return Progress(
            first=self.first + other.first,
            answered=self.answered + other.answered,
            failed=self.failed + other.failed,
            dead=self.dead + other.dead,
            reads=self.reads + other.reads,
            last_end_ns=max(self.last_end_ns, other.last_end_ns),
        )
