"""How a cell is measured: times, limits and seed; and what a worker is told about its share of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotuner.loadgen.arrivals import Arrivals
from autotuner.loadgen.chat import request_body
from autotuner.loadgen.lanes import Pace
from autotuner.loadgen.prompts import PromptSource
from autotuner.loadgen.userprompts import UserPrompts
from autotuner.loadgen.validity import ClientLimits
from autotuner.model.workload import Cell, Sampling

LANES_PER_WORKER = 32
"""Beyond this one process would begin to limit what it measures (one Python client read 9374 tok/s where the server gave 17220)."""


def cell_seconds(at_ns: int, begin_ns: int) -> float:
    """A moment on the clock of its cell. Rounded here and nowhere else, so that equal moments stay equal."""
    return round((at_ns - begin_ns) / 1e9, 7)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlan(ClientLimits):
    """Times in seconds, beside the limits of the load generator itself.

    The window is at least ``window_s`` long and grows until enough answers ended in it, up to a cap.
    """

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
    precision: float | None = None
    """Where given, the window goes on until the 95 % interval of its rate is no wider than this share to either side, or to the cap."""
    arrivals: Arrivals | None = None
    """An open loop; ``None`` is the closed loop, whose lanes ask again as soon as they are answered."""
    details: bool = False
    """Ask for what speculation did in each answer: for servers that are known to tell it (``loadgen.details``)."""

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
    prompts: PromptSource | UserPrompts
    sampling: Sampling
    warmup_s: float
    request_timeout_s: float
    seed: int
    begin_ns: int = 0
    """CLOCK_MONOTONIC at which the cell began, the same for all workers; of the host where they run there."""
    arrivals: Arrivals | None = None
    """Of the whole cell; ``None`` in a closed loop."""
    part: tuple[int, int] = (0, 1)
    """Which worker of how many this is: it serves every so-manieth arrival."""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Sent with every request beside its own; they may hold a key, so they are never shown."""
    details: bool = False
    """Ask for what speculation did in each answer."""

    @property
    def pace(self) -> Pace:
        """What its lanes need to know to keep time."""
        return Pace(
            lanes=self.lanes,
            concurrency=self.cell.concurrency,
            output_tokens=self.cell.output_tokens,
            warmup_s=self.warmup_s,
            begin_ns=self.begin_ns,
        )

    def body(self, lane: int, turn: int) -> bytes:
        """The request of a lane in its turn, without its length limit."""
        index = turn * self.cell.concurrency + lane
        return self.numbered(index)[0]

    def numbered(self, index: int) -> tuple[bytes, int | None]:
        """Request number ``index`` of the cell without its length limit, and the limit that its prompt brings along, if any."""
        prompt = self.prompts.prompt(self.cell.context, index, run=f"{self.cell.key}/{self.seed}")
        chat = self.chat_path.endswith("/chat/completions")
        body = request_body(
            model=self.model, prompt=prompt.text, messages=prompt.messages, chat=chat, sampling=self.sampling, details=self.details
        )
        return body, prompt.output_tokens
