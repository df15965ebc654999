from __future__ import annotations

import dataclasses

from autotuner.decide.healthchecks import check_recommendation
from autotuner.model.measurement import ClientReport
from autotuner.model.recommendation import Check, Verdict
from autotuner.model.trial import TrialRecord
from tests import builders as b

CLIENT = ClientReport(
    clock="kernel",
    reads=9,
    lag_p50_ms=0.1,
    lag_p99_ms=0.4,
    lag_max_ms=1.0,
    coalesced=0.0,
    cpu=0.2,
    steal=0.0,
    gc_pause_max_ms=0.0,
    clock_step_ms=0.0,
)


def checks(*launches: TrialRecord) -> dict[str, Check]:
    found = check_recommendation(
        b.config(),
        launches,
        verdict=Verdict.NO_SIGNIFICANT_CHANGE,
        space=None,
        facts={},
        simulated=False,
        surrogate_error_percent=None,
    )
    return {check.name: check for check in found}


def launch(client: ClientReport | None = CLIENT, **left_out: str) -> TrialRecord:
    record = b.measured(0, b.config(), (100.0, 50.0, 900.0))
    first = dataclasses.replace(record.cells[0], client=client)
    return dataclasses.replace(record, cells=(first, *record.cells[1:]), left_out=left_out)


def test_a_client_that_was_good_enough_is_no_doubt_and_neither_is_an_old_record_without_one() -> None:
    assert {"cell_left_out", "invalid_client", "user_clock"}.isdisjoint(checks(launch(), launch(None)))


def test_a_cell_that_was_left_out_is_told_once_with_its_reason() -> None:
    why = "ctx60-c512-out8 was measured 3 times, and each time the load generator was not good enough for it: it was slow"
    assert checks(launch(a=why), launch(a=why))["cell_left_out"].detail == why


def test_a_number_of_an_invalid_client_fails_the_recommendation() -> None:
    found = checks(launch(dataclasses.replace(CLIENT, invalid=("it slept",))))["invalid_client"]
    assert (found.status, found.detail) == ("fail", "ctx60-c1-out256: it slept")


def test_times_of_the_clients_own_clock_are_told() -> None:
    assert "ctx60-c1-out256" in checks(launch(dataclasses.replace(CLIENT, clock="user", lag_p99_ms=None)))["user_clock"].detail
