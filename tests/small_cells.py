"""Small cells, measured from here or from a host."""

from __future__ import annotations

from collections.abc import Callable

from autotuner.loadgen.cells import CellMeasurement, measure_cell
from autotuner.loadgen.fleet import Fleet
from autotuner.loadgen.observation import Observer
from autotuner.loadgen.plan import CellPlan
from autotuner.loadgen.prompts import PromptSource
from autotuner.loadgen.validity import relaxed
from autotuner.model.workload import Cell, Sampling

PATH = "/v1/chat/completions"
PLAN = relaxed(CellPlan(window_s=1.5, warmup_s=0.5, max_window_s=4, max_warmup_s=4, settle_s=0.5, request_timeout_s=10, min_answers=2))
ENDLESS = relaxed(CellPlan(window_s=120, max_window_s=120, warmup_s=0.3, settle_s=0.3))


def measure(
    url: str,
    workers: Fleet | None,
    *,
    concurrency: int = 4,
    output_tokens: int = 64,
    plan: CellPlan = PLAN,
    should_stop: Callable[[], bool] = lambda: False,
    observe: Observer | None = None,
) -> CellMeasurement:
    return measure_cell(
        url,
        model="kimi",
        chat_path=PATH,
        cell=Cell(context=60, concurrency=concurrency, output_tokens=output_tokens),
        prompts=PromptSource(("code", "poem"), seed=1),
        sampling=Sampling(),
        plan=plan,
        read_counters=None,
        should_stop=should_stop,
        workers=workers,
        observe=observe,
    )
