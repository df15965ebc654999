"""The tuner's own time and memory per trial: everything but launching and measuring.

`python -m benchmarks.overhead [--trials 200] [--json]` drives a whole study of the shipped Kimi space with a runner that answers at
once, and beside it, in the same process, plain Optuna asking and telling as many trials of the same parameters in the same kind of
database.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import optuna

from autotuner.documents import load_space
from autotuner.model.configuration import Configuration
from autotuner.model.document import Scalar
from autotuner.model.facts import DrafterFacts, EngineBuild, Gpu, HostFacts, ModelFacts
from autotuner.model.measurement import CellResult, RequestRecord
from autotuner.model.outcome import Consequence, Failure, Infeasible, LaunchFacts, Measured, Outcome, Stage
from autotuner.model.workload import builtin_workloads, matrix
from autotuner.records import RecordStore
from autotuner.runner import Trial
from autotuner.study.codec import suggest
from autotuner.study.study import Study
from autotuner.tuner.stop import StopRequest
from autotuner.tuner.tuner import Budget, Tuner

SPACE = load_space("search_spaces/sglang-kimi-k26.yaml")
WORKLOADS = builtin_workloads(context_served=16384)
CELLS = matrix(WORKLOADS, context_served=16384)
FACTS = HostFacts(
    gpus=tuple(Gpu(index=index, name="GPU", memory_gib=96.0, sm=120) for index in range(8)),
    driver="580.0",
    link="pcie",
    cpus=64,
    memory_gib=1000.0,
    disk_free_gib=100.0,
    model=ModelFacts(path="model", heads=64, experts=256, context_max=16384, digest="m"),
    drafter=DrafterFacts(path="drafter", block_size=8, digest="d"),
    build=EngineBuild(engine="sglang", version="0", digest="b", flags={}),
)


class Instant:
    """A runner that answers at once: a plain formula, a third of the space does not start. It keeps raw records as the real one does."""

    def __init__(self, store: RecordStore) -> None:
        self._store = store

    def run(
        self,
        trial: Trial,
        *,
        stop_launch: Callable[[], bool],
        stop_cell: Callable[[], bool],
        keep_going: Callable[[Sequence[CellResult]], bool],
    ) -> Outcome:
        config = trial.config
        if not config["graphs"] and config["spec"] == "ddtree":
            failure = Failure(kind="crash", cls="engine-bug", stage=Stage.LOAD, consequence=Consequence.INFEASIBLE, cause="crash")
            return Infeasible(failure=failure)
        cells = tuple(_cell(job.cell.context, job.cell.concurrency, job.cell.output_tokens, config) for job in trial.jobs)
        for cell in cells:
            row = RequestRecord(index=0, lane=0, domain="code", start_s=0.0, chunks=((0.1, 1), (0.2, 9)), completion_tokens=9)
            self._store.write_cell(trial.number, cell.key, [row] * 8)
        return Measured(cells=cells, effective=dict(config), launch=LaunchFacts(argv=("server",) * 40))


def _cell(context: int, concurrency: int, output_tokens: int, config: Configuration) -> CellResult:
    block = float(config.get("block", 1))
    speed = 100.0 / (1 + abs(block - 8) / 8) / (1 + context / 8192) * (1.2 if config["graphs"] else 1.0)
    metrics = {"user_tok_s": speed, "output_tok_s": speed * concurrency**0.8, "ttft_p50_ms": 20.0, "tpot_p50_ms": 1000 / speed}
    key = f"ctx{context}-c{concurrency}-out{output_tokens}"
    return CellResult(
        key=key, context=context, concurrency=concurrency, output_tokens=output_tokens, metrics=metrics, window_s=4.0, requests=8
    )


def ours(folder: Path, trials: int) -> float:
    """Seconds for a whole study of so many launches, confirmation included."""
    store = RecordStore(folder)
    began = time.perf_counter()
    study = Study(store, space=SPACE, facts=FACTS.names(), workloads=WORKLOADS)
    Tuner(
        study=study,
        runner=Instant(store),  # type: ignore[arg-type]
        facts=FACTS,
        cells=CELLS,
        live=None,
        budget=Budget(trials=trials - 16, confirm_rounds=4),
        stop=StopRequest(),
        listener=lambda _event: None,
        clock=time.monotonic,
    ).run()
    return time.perf_counter() - began


def peer(folder: Path, trials: int) -> float:
    """Seconds for plain Optuna: default TPE, SQLite, legal or not, one value per workload."""
    began = time.perf_counter()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(storage=f"sqlite:///{folder}/peer.db", directions=["maximize"] * len(WORKLOADS))
    facts: dict[str, Scalar | None] = FACTS.names()
    for number in range(trials):
        trial = study.ask()
        suggest(trial, SPACE, facts)
        study.tell(trial, [float(number), 1.0, 2.0])
    return time.perf_counter() - began


def main() -> None:
    """Run both and print what a trial costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mine = ours(folder, given.trials)
        launches = len(RecordStore(folder).trials())
        rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        theirs = peer(folder, launches)
    row = {
        "launches": launches,
        "cells_per_launch": len(CELLS),
        "seconds_per_launch": round(mine / launches, 3),
        "optuna_alone_seconds_per_launch": round(theirs / launches, 3),
        "ratio": round(mine / theirs, 2),
        "peak_memory_mb": round(rss_mb),
        "within_limits": mine / launches < 0.5 and rss_mb < 300,
    }
    print(json.dumps(row) if given.json else "\n".join(f"{key}: {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
