"""A cell that says more about the load generator than about the server is never scored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autotuner.discover import discover
from autotuner.engines.registry import engine_for
from autotuner.loadgen.plan import CellPlan
from autotuner.loadgen.prompts import PromptSource
from autotuner.loadgen.validity import relaxed
from autotuner.model.configuration import Configuration
from autotuner.model.events import CellMeasured, Notice, Phase
from autotuner.model.outcome import Measured, Outcome, Transient
from autotuner.model.trial import TrialRecord
from autotuner.model.workload import Cell, Sampling
from autotuner.records import RecordStore
from autotuner.runner import CellJob, Runner, Trial
from tests import builders
from tests.integration.deploy.test_interrupted_cells import host_of

CELLS = (Cell(context=60, concurrency=2, output_tokens=32), Cell(context=60, concurrency=4, output_tokens=32))
PLAN = relaxed(CellPlan(window_s=0.5, warmup_s=0.2, request_timeout_s=20.0, repeats=1))
IMPOSSIBLE = replace(PLAN, cpu_share=0.0)
"""A limit that every load generator breaks."""


def run(stage, folder: Path, plan: CellPlan, *, needed: bool, cells: tuple[Cell, ...] = CELLS) -> tuple[Outcome, list[object]]:
    """One trial, none of whose cells a workload needs, or all."""
    host = host_of(stage)
    stage.engine = engine_for(host)
    events: list[object] = []
    session = type(stage.session())(
        host, stage.engine, stage.transport, stage.services, holder="a person", purpose="a test", on_notice=stage.notices.append
    )
    with session:
        runner = Runner(
            session=session,
            engine=stage.engine,
            host=host,
            facts=discover(host, stage.engine, stage.transport),
            space=builders.space(parameters={"graphs": {"type": "categorical", "choices": (True,)}}, constraints=(), baseline={}, seeds=()),
            store=RecordStore(folder),
            plan=plan,
            listener=events.append,
        )
        jobs = [CellJob(cell=cell, prompts=PromptSource(("code",)), sampling=Sampling(), needed=needed) for cell in cells]
        trial = Trial(number=0, config=Configuration(), jobs=jobs)
        return runner.run(trial, stop_launch=lambda: False, stop_cell=lambda: False, keep_going=lambda _: True), events


def test_a_cell_that_no_workload_needs_is_left_out_and_its_reason_is_kept(stage, tmp_path: Path) -> None:
    outcome, events = run(stage, tmp_path / "study", IMPOSSIBLE, needed=False)
    assert isinstance(outcome, Measured), outcome
    assert (outcome.cells, outcome.censored) == ((), False)
    assert set(outcome.left_out) == {cell.key for cell in CELLS}
    told = [event.message for event in events if isinstance(event, Notice)]
    assert sum("the cell is left out" in text for text in told) == len(CELLS)
    assert sum("the load generator spoiled attempt 1 of 2" in text for text in told) == len(CELLS)
    assert not any(isinstance(event, CellMeasured) for event in events)
    store = RecordStore(tmp_path / "study")
    store.append(TrialRecord.of(outcome, number=0, phase=Phase.SEARCH, config=Configuration(), started="now", elapsed_s=1.0))
    (kept,) = store.read().trials
    assert "used" in kept.left_out[CELLS[0].key]
    assert "of a core" in kept.left_out[CELLS[0].key]


def test_a_launch_whose_needed_cell_was_spoiled_is_made_again(stage, tmp_path: Path) -> None:
    outcome, _ = run(stage, tmp_path / "study", IMPOSSIBLE, needed=True)
    assert isinstance(outcome, Transient), outcome
    assert "was measured 2 times, and each time the load generator was not good enough" in outcome.failure.cause
    assert "load.from" in (outcome.failure.remedy or "")


def test_what_the_client_says_of_itself_stands_with_every_cell(stage, tmp_path: Path) -> None:
    outcome, events = run(stage, tmp_path / "study", PLAN, needed=True)
    assert isinstance(outcome, Measured), outcome
    assert [event.done for event in events if isinstance(event, CellMeasured)] == [1, 2]
    for cell in outcome.cells:
        assert cell.client is not None
        assert cell.client.valid
        assert (cell.client.clock, cell.client.reads > 0) == ("kernel", True)


def test_prompts_of_another_length_than_the_cells_are_no_fault_of_the_configuration(stage, tmp_path: Path) -> None:
    outcome, _ = run(stage, tmp_path / "study", PLAN, needed=True, cells=(Cell(context=1, concurrency=2, output_tokens=32),))
    assert isinstance(outcome, Transient), outcome
    assert "no request of ctx1-c2-out32 measured what was asked for" in outcome.failure.cause
    assert "prompt-length" in outcome.failure.cause
