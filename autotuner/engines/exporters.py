"""Whose Prometheus page this is: for endpoints that nobody here launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotuner.engines.base import Counters, Gauges
from autotuner.engines.sglang import metrics as sglang
from autotuner.engines.vllm import metrics as vllm


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """How the page of one engine is read."""

    engine: str
    counters: Callable[[str], Counters]
    gauges: Callable[[str], Gauges]


EXPORTERS: Mapping[str, Exporter] = {
    "sglang:": Exporter(engine="sglang", counters=sglang.counters, gauges=sglang.gauges),
    "vllm:": Exporter(engine="vllm", counters=vllm.counters, gauges=vllm.gauges),
}
"""By the prefix of its series."""


def exporter_of(page: str) -> Exporter | None:
    """Who wrote a page, by the first series that an engine of ours could have written; ``None`` for any other page."""
    for line in page.splitlines():
        found = next((exporter for prefix, exporter in EXPORTERS.items() if line.startswith(prefix)), None)
        if found is not None:
            return found
    return None
