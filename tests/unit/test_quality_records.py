"""What the gate found reaches the records, the choice of finalists and the recommendation's doubts."""

from __future__ import annotations

import dataclasses
import json

from autotuner.decide.finalists import scored
from autotuner.decide.healthchecks import check_recommendation
from autotuner.model.configuration import Configuration
from autotuner.model.events import Phase
from autotuner.model.outcome import Consequence, Failure, Infeasible, LaunchFacts, Measured, Stage
from autotuner.model.quality import QualityPart, QualityReport
from autotuner.model.recommendation import Verdict
from autotuner.model.trial import TrialRecord
from autotuner.records import RecordStore, trial_json
from tests import builders as b

FAST, SLOW = Configuration.of({"spec": "dflash", "block": 8}), Configuration.of({"spec": "off"})
FAILED = QualityReport.of(
    (QualityPart(name="greedy", status="failed", score=0.02, floor=0.4, reason="agrees on 2 %", counts={"answers": 10}),),
    sandbox="bubblewrap 0.8.0",
    reference=1,
)


def record(number: int, quality: QualityReport, config: Configuration = FAST, phase: Phase = Phase.SEARCH) -> TrialRecord:
    measured = b.measured(number, config, (100.0 + number, 50.0, 3000.0))
    outcome = Measured(cells=measured.cells, effective={}, launch=LaunchFacts(), quality=quality)
    return TrialRecord.of(outcome, number=number, phase=phase, config=config, started=measured.started, elapsed_s=1.0)


def wrong(number: int, config: Configuration = FAST, phase: Phase = Phase.SEARCH) -> TrialRecord:
    failure = Failure(kind="quality", cls="quality", stage=Stage.SERVE, consequence=Consequence.INFEASIBLE, cause="worse")
    return TrialRecord.of(
        Infeasible(failure=failure, quality=FAILED),
        number=number,
        phase=phase,
        config=config,
        started="2026-01-01T00:00:00Z",
        elapsed_s=1.0,
    )


def test_a_report_survives_the_records(tmp_path):
    store = RecordStore(tmp_path)
    for kept in (record(0, QualityReport.not_checked("no sandbox")), wrong(1)):
        store.append(kept)

    first, second = store.trials()
    assert (first.quality, first.quality_report) == ("not_checked", QualityReport.not_checked("no sandbox"))
    assert (second.quality, second.quality_report) == ("failed", FAILED)
    assert trial_json(second)["quality_report"]["parts"][0]["floor"] == 0.4  # type: ignore[index]


def test_records_from_before_the_gate_are_read(tmp_path):
    store = RecordStore(tmp_path)
    store.append(record(0, QualityReport(status="not_checked")))
    path = tmp_path / "results.jsonl"
    row = json.loads(path.read_text())
    row.pop("quality_report")
    path.write_text(json.dumps(row) + "\n")

    (found,) = store.trials()
    assert (found.quality, found.quality_report) == ("not_checked", None)


def test_a_launch_that_never_came_to_answers_says_nothing_about_them():
    failure = dataclasses.replace(wrong(0).failure, kind="sgl-graph-fail")  # type: ignore[type-var]
    outcome = Infeasible(failure=failure)  # type: ignore[arg-type]
    found = TrialRecord.of(outcome, number=0, phase=Phase.SEARCH, config=FAST, started="2026-01-01T00:00:00Z", elapsed_s=1.0)

    assert (found.quality, found.quality_report) == ("not_checked", None)


def test_a_configuration_that_failed_once_is_no_finalist_however_fast():
    passed = QualityReport(status="passed")
    trials = [record(0, passed, SLOW), record(1, passed), wrong(2, phase=Phase.CONFIRM)]

    assert set(scored(b.LATENCY, trials[:2])) == {0, 1}
    assert set(scored(b.LATENCY, trials)) == {0}


def doubts(*reports: QualityReport) -> list[str]:
    launches = [record(number, report) for number, report in enumerate(reports)]
    checks = check_recommendation(
        FAST, launches, verdict=Verdict.IMPROVED, space=None, facts={}, simulated=False, surrogate_error_percent=None
    )
    return [check.detail for check in checks if check.name == "quality"]


def test_a_recommendation_says_why_answers_were_not_checked():
    (detail,) = doubts(QualityReport.not_checked("a simulated engine has no model behind it"))

    assert detail.startswith("NOT CHECKED")
    assert "a simulated engine has no model behind it" in detail


def test_one_launch_that_passed_is_enough():
    early = QualityReport.not_checked("greedy: no reference yet")

    assert doubts(early, QualityReport(status="passed")) == []
