"""A launch that looks best has its deciding cells measured again while its server runs; and every cell is watched on the server's side."""

from __future__ import annotations

import pytest

from autotuner.discover import discover
from autotuner.engines.registry import engine_for
from autotuner.loadgen.plan import CellPlan
from autotuner.loadgen.prompts import PromptSource
from autotuner.loadgen.validity import relaxed
from autotuner.model.configuration import Configuration
from autotuner.model.events import CellMeasured
from autotuner.model.outcome import Measured
from autotuner.model.workload import Cell, Sampling
from autotuner.records import RecordStore
from autotuner.runner import CellJob, Runner, Trial
from tests import builders
from tests.integration.deploy.test_interrupted_cells import host_of

FIRST, SECOND = Cell(context=60, concurrency=2, output_tokens=32), Cell(context=60, concurrency=4, output_tokens=32)


@pytest.fixture
def night(stage, tmp_path):
    """Runs one trial on a simulated server and remembers what was told."""
    stage_host = host_of(stage)
    events: list[object] = []

    def run(again) -> Measured:
        engine = engine_for(stage_host)
        stage.engine = engine
        session = type(stage.session())(
            stage_host, engine, stage.transport, stage.services, holder="a person", purpose="a test", on_notice=stage.notices.append
        )
        with session:
            runner = Runner(
                session=session,
                engine=engine,
                host=stage_host,
                facts=discover(stage_host, engine, stage.transport),
                space=builders.space(
                    parameters={"graphs": {"type": "categorical", "choices": (True,)}}, constraints=(), baseline={}, seeds=()
                ),
                store=RecordStore(tmp_path / "study"),
                plan=relaxed(CellPlan(window_s=0.6, warmup_s=0.2, request_timeout_s=20.0, repeats=0)),
                listener=events.append,
            )
            jobs = [CellJob(cell=cell, prompts=PromptSource(("code",)), sampling=Sampling()) for cell in (FIRST, SECOND)]
            outcome = runner.run(
                Trial(number=0, config=Configuration(), jobs=jobs, again=again),
                stop_launch=lambda: False,
                stop_cell=lambda: False,
                keep_going=lambda _: True,
            )
        assert isinstance(outcome, Measured), outcome
        return outcome

    run.events = events
    run.folder = tmp_path / "study" / "trials" / "0"
    return run


def test_the_deciding_cell_counts_with_the_mean_of_its_measurements(night) -> None:
    asked = []

    def again(cells):
        asked.append([cell.key for cell in cells])
        return {SECOND.key: "output_tok_s"}

    outcome = night(again)
    assert asked == [[FIRST.key, SECOND.key]]
    first, second = outcome.cells
    assert first.measurements == ()
    values = [each["output_tok_s"] for each in second.measurements]
    assert len(values) in (2, 3)
    assert second.metrics["output_tok_s"] == pytest.approx(sum(values) / len(values))
    assert (night.folder / f"{SECOND.key}-again1.jsonl.gz").exists()
    assert (night.folder / f"{SECOND.key}.jsonl.gz").exists()
    assert not (night.folder / f"{FIRST.key}-again1.jsonl.gz").exists()
    told = [event.result.key for event in night.events if isinstance(event, CellMeasured)]
    assert told == [FIRST.key, SECOND.key, SECOND.key]


def test_every_cell_is_watched_on_the_servers_side(night) -> None:
    outcome = night(lambda _: {})
    for result, cell in zip(outcome.cells, (FIRST, SECOND), strict=True):
        server = result.server
        assert server is not None
        assert server.samples >= 1
        assert 1 <= server.running_max <= cell.concurrency
        assert server.queued_max is not None
        assert 0 < server.kv_usage_max < 1
        assert server.generation_tokens == pytest.approx(result.metrics["output_tok_s"] * result.window_s, rel=0.5)
        assert server.gpus == (), "a simulated host has none"
        assert not [warning for warning in server.warnings if "GPU" in warning]
