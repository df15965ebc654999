from __future__ import annotations

import dataclasses

from autotuner.decide.healthchecks import check_recommendation
from autotuner.model.measurement import ServerReport
from autotuner.model.recommendation import Check, Verdict
from autotuner.model.trial import TrialRecord
from tests import builders as b


def checks(launches: list[TrialRecord], measured: tuple[float, ...] = ()) -> dict[str, Check]:
    found = check_recommendation(
        b.config(),
        launches,
        verdict=Verdict.NO_SIGNIFICANT_CHANGE,
        space=None,
        facts={},
        simulated=False,
        surrogate_error_percent=None,
        measured=measured,
    )
    return {check.name: check for check in found}


def launch(number: int, *warnings: str) -> TrialRecord:
    record = b.measured(number, b.config(), (100.0, 50.0, 900.0))
    first = dataclasses.replace(record.cells[0], server=ServerReport(warnings=warnings))
    return dataclasses.replace(record, cells=(first, *record.cells[1:]))


def test_a_throttled_or_shared_host_is_told_with_the_cell_and_the_reason() -> None:
    hot = "GPU 0 was throttled in 3 of 9 samples: it was too hot (91 °C)"
    found = checks([launch(0, hot), launch(1, hot), launch(2, "GPU 0 had another tenant: process 77, not of this server")])
    assert found["contaminated"].detail == (
        f"ctx60-c1-out256: {hot}; ctx60-c1-out256: GPU 0 had another tenant: process 77, not of this server"
    )
    assert found["contaminated"].hint


def test_many_doubts_of_a_kind_are_cut_short() -> None:
    assert checks([launch(0, "a", "b", "c", "d", "e")])["contaminated"].detail.endswith("c; and 2 more")


def test_an_undisturbed_host_is_told_nothing() -> None:
    assert "contaminated" not in checks([launch(0), b.measured(1, b.config(), (1.0, 1.0, 1.0))])


def test_launches_that_vary_too_much_are_told() -> None:
    assert checks([launch(0)], (100.0, 120.0, 90.0))["noisy"].detail == (
        "its 3 launches vary by 14.8% (standard deviation over mean), 5% is usual at most"
    )
    assert "noisy" not in checks([launch(0)], (100.0, 103.0, 98.0))
    assert "noisy" not in checks([launch(0)], (100.0,))
