"""Serving: what of a configuration decides about speed and memory, after the engine's own defaults are filled in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Spec = Literal["off", "dflash", "ddtree"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A resolved configuration. ``tp`` GPUs per pipeline stage, of which groups of ``tp / ep`` share each expert."""

    tp: int = 8
    pp: int = 1
    ep: int = 1
    graphs: bool = True
    graph_max_batch: int = 512
    """Batches above this run without a graph."""
    spec: Spec = "off"
    block: int = 8
    """Block of the drafter, anchor included; means nothing without speculation."""
    budget: int = 8
    """Nodes of the draft tree without its root; means nothing for a chain."""
    topk: int = 4
    window: int | None = None
    """How many tokens of context the drafter sees; ``None`` is all of them."""
    max_running: int = 256
    chunked_prefill: int = 8192

    @property
    def speculative(self) -> bool:
        """Whether a drafter is loaded."""
        return self.spec != "off"

    @property
    def verify_tokens(self) -> int:
        """Tokens of one request that the target works on in one step."""
        return {"off": 1, "dflash": self.block, "ddtree": self.budget + 1}[self.spec]

    @property
    def group(self) -> int:
        """GPUs that share one expert."""
        return self.tp // self.ep

    @property
    def gpus(self) -> int:
        """GPUs in use."""
        return self.tp * self.pp
