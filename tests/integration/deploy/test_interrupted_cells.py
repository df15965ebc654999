"""A cell during which the connection to the host was lost is never averaged in."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from autotuner.deploy import HostSession
from autotuner.discover import discover
from autotuner.engines.registry import engine_for
from autotuner.loadgen.plan import CellPlan
from autotuner.loadgen.prompts import PromptSource
from autotuner.loadgen.validity import relaxed
from autotuner.model.configuration import Configuration
from autotuner.model.host import Host
from autotuner.model.outcome import Measured, Outcome, Transient
from autotuner.model.workload import Cell, Sampling
from autotuner.records import RecordStore
from autotuner.runner import CellJob, Runner, Trial
from autotuner.services.hostside import HostSide
from autotuner.services.process import ProcessManager
from autotuner.transports.local import LocalTransport
from tests import builders

CELLS = (Cell(context=60, concurrency=2, output_tokens=32), Cell(context=60, concurrency=4, output_tokens=32))


class Shaky(LocalTransport):
    """This machine, over a connection that was lost so many times."""

    interruptions = 0


def host_of(stage) -> Host:
    gpu = {"name": "simulated", "count": 8, "memory_gib": 275.0, "sm": 103, "link": "nvlink"}
    document = {
        **stage.host_document,
        "engine": {"name": "sglang", "python": sys.executable, "args": ["--tp-size", "8"]},
        "model": {"path": "simulated:kimi-k2.6", "served_name": "kimi", "context_length": 16384},
        "simulate": {"profile": "b300", "gpu": gpu, "launch_seconds": 0.0, "noise": 0.0},
    }
    return Host.model_validate_json(json.dumps(document))


def run(stage, tmp_path: Path, transport: Shaky, stop_cell: Callable[[], bool]) -> Outcome:
    """One trial with two cells."""
    host = host_of(stage)
    engine, side = engine_for(host), HostSide(transport, state=str(tmp_path / "state"), leases=str(tmp_path / "leases"))
    session = HostSession(
        host, engine, transport, ProcessManager(side), holder="a person", purpose="a test", on_notice=stage.notices.append, ttl_s=60.0
    )
    with session:
        runner = Runner(
            session=session,
            engine=engine,
            host=host,
            facts=discover(host, engine, transport),
            space=builders.space(parameters={"graphs": {"type": "categorical", "choices": (True,)}}, constraints=(), baseline={}, seeds=()),
            store=RecordStore(tmp_path / "study"),
            plan=relaxed(CellPlan(window_s=0.5, warmup_s=0.2, request_timeout_s=20.0)),
            listener=lambda _: None,
        )
        jobs = [CellJob(cell=cell, prompts=PromptSource(("code",)), sampling=Sampling()) for cell in CELLS]
        trial = Trial(number=0, config=Configuration(), jobs=jobs)
        return runner.run(trial, stop_launch=lambda: False, stop_cell=stop_cell, keep_going=lambda _: True)


def test_an_interrupted_cell_is_thrown_away_measured_again_and_says_so(stage, tmp_path: Path) -> None:
    transport = Shaky()

    def lose_once() -> bool:
        transport.interruptions = 1
        return False

    outcome = run(stage, tmp_path, transport, lose_once)
    assert isinstance(outcome, Measured), outcome
    first, second = outcome.cells
    assert [text for text in first.warnings if "again" in text] == [
        "measured again after 1 thrown away: the connection to the host was lost"
    ]
    assert not [text for text in second.warnings if "again" in text]
    assert (outcome.launch.load_from, outcome.launch.rtt_ms) == ("controller", None)


def test_a_cell_that_is_interrupted_every_time_has_no_value(stage, tmp_path: Path) -> None:
    transport = Shaky()

    def lose_always() -> bool:
        transport.interruptions += 1
        return False

    outcome = run(stage, tmp_path, transport, lose_always)
    assert isinstance(outcome, Transient), outcome
    assert outcome.failure.cause.endswith("could not be measured in 3 attempts: the connection to the host was lost")
