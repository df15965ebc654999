"""Measures the points of a bench one after another."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus

from autotuner.bench.endpoint import CHAT, METRICS, Endpoint
from autotuner.bench.plan import BenchPlan, Point
from autotuner.decide.intervals import intervals
from autotuner.decide.lengths import LengthReport, length_report
from autotuner.decide.openloop import OpenLoopReport
from autotuner.decide.statistics import Interval
from autotuner.engines.base import Counters
from autotuner.errors import TransportError
from autotuner.loadgen.calibration import calibrate
from autotuner.loadgen.cells import CellMeasurement, measure_cell
from autotuner.loadgen.control import ControlClient
from autotuner.loadgen.details import tells_speculation
from autotuner.loadgen.observation import ASK_S, PageReader, ServerWatch
from autotuner.loadgen.prompts import PromptSource
from autotuner.loadgen.userprompts import UserPrompts
from autotuner.model.measurement import CellResult, RequestRecord

SIZING_S = 600.0
"""How long one answer may take while prompts are sized: at the longest contexts a server reads for minutes."""
AT_ONCE = 8
"""Short requests in flight while prompts are sized."""
_FLUSH_S = 10.0
_FLUSH_PAUSE_S = 0.2
CACHED_SHARE = 0.05
"""More prompt tokens than this from the prefix cache are told: a template and a nonce have fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCell:
    """What one point yielded."""

    point: Point
    result: CellResult
    records: tuple[RequestRecord, ...]
    intervals: Mapping[str, Interval]
    lengths: LengthReport | None
    """``None`` where prompts bring their own length."""
    open_loop: OpenLoopReport | None
    warnings: tuple[str, ...]
    """What is to be known before its numbers are used."""
    elapsed_s: float

    @property
    def answered(self) -> bool:
        """Whether there are numbers at all."""
        return self.result.requests > 0

    @property
    def valid(self) -> bool:
        """Whether the numbers are the server's and not the client's."""
        client = self.result.client
        return self.answered and (client is None or client.valid)


def size_prompts(plan: BenchPlan, endpoint: Endpoint) -> BenchPlan:
    """The plan with prompts sized to the server's tokenizer and template; asks it a few to some hundred short questions.

    Raises ``TransportError`` when the server does not answer or does not count tokens.
    """
    prompts = plan.prompts
    if isinstance(prompts, UserPrompts) and not prompts.only_lengths:
        return plan
    contexts = plan.contexts or (4096,)
    domains = ("rag",) if isinstance(prompts, UserPrompts) else prompts.domains
    with ControlClient(endpoint.base_url, SIZING_S, headers=dict(endpoint.headers)) as patient:
        fit = calibrate(patient, model=endpoint.model, chat_path=endpoint.path, contexts=contexts, domains=domains, at_once=AT_ONCE)
    return dataclasses.replace(plan, prompts=prompts.with_fit(fit))


def run_bench(plan: BenchPlan, endpoint: Endpoint, control: ControlClient, *, should_stop: Callable[[], bool]) -> Iterator[BenchCell]:
    """Measure every point, and yield each as soon as it is there.

    Raises ``Interrupted`` within a second of ``should_stop``, and ``RetryTrial`` when this machine could not drive the load.
    """
    with ExitStack() as stack:
        exporter = endpoint.exporter
        reader: PageReader | None = None
        if exporter is not None:
            quick = stack.enter_context(ControlClient(endpoint.base_url, ASK_S, headers=dict(endpoint.headers)))
            reader = PageReader(lambda: quick.get_text(METRICS), exporter.counters, exporter.gauges)
        watch = stack.enter_context(ServerWatch(reader))

        def counters() -> Counters:
            return Counters() if reader is None else reader.look().counters

        details = endpoint.path == CHAT and endpoint.engine != "vllm" and tells_speculation(control, model=endpoint.model, chat_path=CHAT)
        for point in plan.points:
            notes: list[str] = []
            begun = time.monotonic()
            found = measure_cell(
                endpoint.base_url,
                model=endpoint.model,
                chat_path=endpoint.path,
                cell=point.cell,
                prompts=plan.prompts,
                sampling=plan.sampling,
                plan=dataclasses.replace(point.plan, details=details),
                read_counters=None if reader is None else counters,
                should_stop=should_stop,
                observe=None if reader is None else watch,
                before_attempt=functools.partial(_flush, endpoint, control, notes) if plan.flush else None,
                headers=endpoint.headers,
            )
            yield _cell(plan, point, found, notes, time.monotonic() - begun)


def _cell(plan: BenchPlan, point: Point, found: CellMeasurement, notes: list[str], elapsed_s: float) -> BenchCell:
    result = dataclasses.replace(found.result, key=point.key)
    lengths = length_report(point.cell.context, found.records) if plan.prompts.sized else None
    warnings = [*result.warnings, *notes]
    if not result.steady and not any("not steady" in warning for warning in warnings):
        warnings.append("not steady: the rate of tokens moved during the window")
    if isinstance(plan.prompts, PromptSource):
        warnings += _cached(found.records)
        if point.cell.context > plan.prompts.longest_unrepeated:
            warnings.append(f"prompts repeat parts of themselves: there is text for {plan.prompts.longest_unrepeated} tokens only")
    if result.failed:
        warnings.append(_failures(found.records))
    return BenchCell(
        point=point,
        result=result,
        records=found.records,
        intervals=intervals(result, found.records, found.window),
        lengths=lengths,
        open_loop=found.open_loop,
        warnings=tuple(dict.fromkeys(warnings)),
        elapsed_s=elapsed_s,
    )


def _cached(records: tuple[RequestRecord, ...]) -> list[str]:
    cached = sum(record.cached_tokens or 0 for record in records)
    share = cached / max(1, sum(record.prompt_tokens or 0 for record in records if record.cached_tokens is not None))
    return [f"{share:.0%} of the prompt tokens came from the prefix cache"] if share > CACHED_SHARE else []


def _failures(records: tuple[RequestRecord, ...]) -> str:
    """The commonest failure, in the server's own words."""
    failed = [record for record in records if record.error is not None]
    kinds = [f"{record.error}: {' '.join((record.detail or '').split())[:160]}".removesuffix(": ") for record in failed]
    commonest = max(set(kinds), key=kinds.count)
    return f"{len(failed)} requests failed, most with {commonest}"


def _flush(endpoint: Endpoint, control: ControlClient, notes: list[str]) -> None:
    """Empty the prefix cache; a note when that cannot be done."""
    path = endpoint.flush
    if path is None:
        notes.append("the prefix cache was not emptied: nothing is known that empties it on this server")
        return
    until = time.monotonic() + _FLUSH_S
    while True:
        try:
            status = control.post(path)
        except TransportError as error:
            notes.append(f"the prefix cache was not emptied: {error.message}")
            return
        if status == HTTPStatus.OK:
            return
        if time.monotonic() >= until or status in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN):
            notes.append(f"the prefix cache was not emptied: the server answered {status}")
            return
        time.sleep(_FLUSH_PAUSE_S)
