"""How numbers, trials and progress read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotuner.cli.lines import Progress, cell_line, counted, duration, number, opened_line, ratio, trial_line
from autotuner.cli.summary import preview_text
from autotuner.model.configuration import Configuration
from autotuner.model.events import CellMeasured, Notice, Phase, StageReached, StudyOpened, TrialEnded, TrialStarted
from autotuner.model.measurement import CellResult
from autotuner.model.outcome import (
    Consequence,
    Failure,
    HostBroken,
    Infeasible,
    Interrupted,
    LaunchFacts,
    Measured,
    Outcome,
    Stage,
    Transient,
)
from autotuner.model.workload import Cell
from autotuner.tuner.preview import Preview

CONFIG = Configuration.of({"tp": 8, "spec": "ddtree", "graphs": True})
FAILURE = Failure(
    kind="sgl-graph-fail", cls="engine-bug", stage=Stage.GRAPH_CAPTURE, consequence=Consequence.INFEASIBLE, cause="graph capture crashed"
)


def measured(*, censored: bool = False) -> Measured:
    return Measured(cells=(), effective={}, launch=LaunchFacts(), censored=censored)


def ended(outcome: Outcome, **fields: object) -> TrialEnded:
    return TrialEnded(number=17, phase=Phase.SEARCH, config=CONFIG, outcome=outcome, elapsed_s=95.0, **fields)  # type: ignore[arg-type]


def started(*, done: int = 16, planned: int | None = 60, eta_s: float | None = 9660.0) -> TrialStarted:
    return TrialStarted(number=done, phase=Phase.SEARCH, config=CONFIG, done=done, planned=planned, eta_s=eta_s)


def cell(**fields: object) -> CellMeasured:
    result = CellResult(
        key="ctx60-c8-out512",
        context=60,
        concurrency=8,
        output_tokens=512,
        window_s=4.0,
        requests=20,
        **({"metrics": {}} | fields),  # type: ignore[arg-type]
    )
    return CellMeasured(number=17, result=result, done=3, cells=12)


def test_a_plan_of_one_launch_and_one_cell_says_so() -> None:
    seen = Preview(
        host="lab",
        study="lab-1",
        simulated=False,
        done=1,
        launches=(),
        searched=1,
        confirmations=1,
        cells=(Cell(context=60, concurrency=1, output_tokens=16),),
        workloads=(),
        seconds_per_launch=60.0,
        observed=True,
        total_s=120.0,
    )
    said = preview_text(seen).splitlines()
    assert said[0] == "study lab-1 on lab, 1 launch recorded so far"
    assert said[2:4] == ["then 1 launch of the search", "then up to 1 launch to confirm baseline and finalists, interleaved"]
    assert said[4].startswith("each launch measures 1 cell: ")
    many = preview_text(replace(seen, done=2, searched=3, confirmations=4, cells=seen.cells * 2))
    for words in ("2 launches recorded", "3 launches of the search", "4 launches to confirm", "2 cells: "):
        assert words in many


def test_one_is_not_many() -> None:
    assert [counted(number, "cell") for number in (0, 1, 2)] == ["0 cells", "1 cell", "2 cells"]
    assert [counted(number, "launch", "launches") for number in (1, 2)] == ["1 launch", "2 launches"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (0.4, "0 s"), (59.4, "59 s"), (59.6, "1m00"), (200, "3m20"), (3599.7, "1h00"), (9660, "2h41"), (90000, "25h00")],
)
def test_durations_have_two_figures(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_ratio_says_times() -> None:
    assert ratio(1.4166) == "×1.42"


@pytest.mark.parametrize(
    ("metric", "text"), [("user_tok_s", "163.2 tok/s"), ("ttft_p50_ms", "163.2 ms"), (None, "163.2"), ("unheard", "163.2")]
)
def test_a_number_has_its_unit_where_it_is_known(metric: str | None, text: str) -> None:
    assert number(163.21, metric) == text


def test_the_line_of_a_measured_trial() -> None:
    event = ended(measured(), values={"latency": 163.2, "throughput": 1449.0}, versus_baseline={"latency": 1.667})

    line = trial_line(event, metrics={"latency": "user_tok_s"}, simulated=False)

    assert line == "trial 17 search: graphs=on spec=ddtree tp=8 → measured: latency 163.2 tok/s ×1.67, throughput 1449.0 · 1m35"


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Infeasible(failure=FAILURE), "infeasible: graph capture crashed [sgl-graph-fail, at graph-capture]"),
        (Transient(failure=FAILURE), "transient: graph capture crashed [sgl-graph-fail, at graph-capture]"),
        (HostBroken(failure=FAILURE), "host broken: graph capture crashed [sgl-graph-fail, at graph-capture]"),
        (Interrupted(), "interrupted"),
        (measured(censored=True), "cut short"),
    ],
)
def test_the_line_of_a_trial_without_values_says_why(outcome: Outcome, text: str) -> None:
    assert f"→ {text} · 1m35" in trial_line(ended(outcome), metrics={}, simulated=False)


def test_simulated_is_said_on_every_line() -> None:
    opened = StudyOpened(study="ct200", resumed=False, trials=0, workloads=("latency",), simulated=True)

    assert "simulated" in trial_line(ended(measured()), metrics={}, simulated=True)
    assert "simulated" in opened_line(opened)
    assert "simulated" in Progress().after(opened).after(started()).headline()


def test_a_resumed_study_says_what_is_already_there() -> None:
    event = StudyOpened(study="ct200", resumed=True, trials=12, workloads=("latency", "throughput"), simulated=False)

    assert opened_line(event) == "resuming study ct200 with 12 trials · workloads latency, throughput"


def test_the_headline_is_trial_time_left_best_and_infeasible() -> None:
    progress = Progress().after(ended(measured(), best={"latency": 1.42, "throughput": 2.1}, infeasible=3)).after(started())

    assert progress.headline() == "trial 17/60 · 2h41 left · best latency ×1.42, throughput ×2.10 · 3 infeasible"
    assert progress.headline(since_s=60) == "trial 17/60 · 2h40 left · best latency ×1.42, throughput ×2.10 · 3 infeasible"


def test_a_resumed_run_shows_the_best_so_far_before_its_first_trial_ended() -> None:
    opened = StudyOpened(
        study="ct200", resumed=True, trials=16, workloads=("latency",), simulated=False, best={"latency": 1.42}, infeasible=3
    )

    assert Progress().after(opened).after(started()).headline() == "trial 17/60 · 2h41 left · best latency ×1.42 · 3 infeasible"


def test_the_headline_leaves_out_what_is_not_known() -> None:
    assert Progress().headline() == "getting ready"
    assert Progress().after(started(done=0, planned=None, eta_s=None)).headline() == "trial 1"


def test_the_line_below_follows_stage_and_cell() -> None:
    running = Progress().after(started())
    staged = running.after(StageReached(number=17, stage=Stage.LOAD, elapsed_s=34.2))
    measuring = staged.after(cell(metrics={"output_tok_s": 251.7, "ttft_p50_ms": 80.0}))

    assert Progress().subline() == ""
    assert running.subline() == "search: graphs=on spec=ddtree tp=8"
    assert staged.subline() == "search: graphs=on spec=ddtree tp=8 · load · 34 s"
    assert measuring.subline().endswith("cell 3/12 · context 60, C=8: 251.7 tok/s, 80.0 ms")
    assert measuring.after(Notice(level="info", message="x")) == measuring
    assert measuring.after(ended(measured())).detail == ""


def test_a_cell_says_what_failed_in_it() -> None:
    assert cell_line(cell(failed=2)).endswith("2 failed")
    assert cell_line(cell()).endswith("nothing measured")
