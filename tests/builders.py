"""Small true documents and records that tests build on."""

from __future__ import annotations

from pathlib import Path

from autotuner.model.configuration import Configuration
from autotuner.model.document import Metadata
from autotuner.model.events import Phase
from autotuner.model.facts import EngineBuild, Gpu, HostFacts, ModelFacts
from autotuner.model.host import EngineInstall, Host, LocalTransport, Model, Service
from autotuner.model.measurement import CellResult
from autotuner.model.outcome import Consequence, Failure, LaunchFacts, Stage
from autotuner.model.space import Categorical, Float, Int, SearchSpace
from autotuner.model.trial import TrialRecord
from autotuner.model.workload import Cell, builtin_workloads

WORKLOADS = builtin_workloads(context_served=8192, contexts=(60, 2000), concurrency=(1, 128), output_tokens=256)
LATENCY, LONG, THROUGHPUT = WORKLOADS


def host(name: str = "lab", **changes: object) -> Host:
    values = {
        "apiVersion": "autotuner/v1",
        "kind": "Host",
        "metadata": Metadata(name=name),
        "transport": LocalTransport(type="local"),
        "engine": EngineInstall(name="sglang"),
        "model": Model(path="/models/smol"),
        "service": Service(manager="process", production="none"),
    }
    return Host(**{**values, **changes})


def space(**changes: object) -> SearchSpace:
    values = {
        "apiVersion": "autotuner/v1",
        "kind": "SearchSpace",
        "metadata": Metadata(name="one-gpu"),
        "engine": "sglang",
        "parameters": {
            "spec": Categorical(type="categorical", choices=("off", "dflash")),
            "block": Int(type="int", low=4, high=16, when="spec == 'dflash'"),
            "window": Categorical(type="categorical", choices=("none", 512, 1024), when="spec == 'dflash'"),
            "graphs": Categorical(type="categorical", choices=(True, False)),
            "mem_fraction": Float(type="float", low=0.3, high=0.5, step=0.1),
        },
        "constraints": ("window >= block", "graphs or spec == 'off'"),
        "baseline": {"spec": "off", "graphs": True, "mem_fraction": 0.3},
        "seeds": ({"spec": "dflash", "block": 8, "window": "none", "graphs": True, "mem_fraction": 0.3},),
    }
    return SearchSpace(**{**values, **changes})


def facts(**changes: object) -> HostFacts:
    values = {
        "gpus": (Gpu(index=0, name="NVIDIA H200", memory_gib=140.0, sm=90),),
        "driver": "580.159.03",
        "link": "single",
        "cpus": 16,
        "memory_gib": 128.0,
        "disk_free_gib": 60.0,
        "model": ModelFacts(path="/models/smol", digest="m1", context_max=8192),
        "drafter": None,
        "build": EngineBuild(engine="sglang", version="0.5.17", digest="e1", flags={}),
    }
    return HostFacts(**{**values, **changes})


def cell_result(cell: Cell, **metrics: float) -> CellResult:
    return CellResult(
        key=cell.key,
        context=cell.context,
        concurrency=cell.concurrency,
        output_tokens=cell.output_tokens,
        metrics=metrics,
        window_s=4.0,
        requests=5,
    )


def cells(latency: float, long: float, throughput: float) -> tuple[CellResult, ...]:
    """The three cells of the built-in workloads with these values of their objectives."""
    return (
        cell_result(LATENCY.cells[0], user_tok_s=latency, output_tok_s=latency, acceptance_length=2.8),
        cell_result(LONG.cells[0], user_tok_s=long, output_tok_s=long),
        cell_result(THROUGHPUT.cells[0], user_tok_s=throughput / 128, output_tok_s=throughput),
    )


def config(**values: object) -> Configuration:
    return Configuration.of({"spec": "off", "graphs": True, "mem_fraction": 0.3, **values})


def measured(
    number: int,
    what: Configuration,
    values: tuple[float, float, float],
    phase: Phase = Phase.SEARCH,
    started: str = "2026-01-02T03:04:05+00:00",
) -> TrialRecord:
    return TrialRecord(
        number=number,
        phase=phase,
        config=what,
        outcome="measured",
        started=started,
        elapsed_s=60.0,
        cells=cells(*values),
        launch=LaunchFacts(argv=("python3", "-m", "sglang.launch_server", "--enable-metrics"), env={"A": "b"}),
    )


def failure(kind: str = "torch-oom", consequence: Consequence = Consequence.INFEASIBLE) -> Failure:
    return Failure(kind=kind, cls="memory", stage=Stage.LOAD, consequence=consequence, cause="CUDA out of memory")


def failed(number: int, what: Configuration, phase: Phase = Phase.SEARCH, outcome: str = "infeasible") -> TrialRecord:
    return TrialRecord(
        number=number,
        phase=phase,
        config=what,
        outcome=outcome,
        started="2026-01-02T03:04:05+00:00",
        elapsed_s=20.0,
        failure=failure(),
    )


def folder(tmp_path: Path) -> Path:
    made = tmp_path / "studies" / "lab--smol--one-gpu"
    made.mkdir(parents=True)
    return made
