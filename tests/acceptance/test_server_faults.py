"""Servers that fail in every way: a lesson for the search, never a traceback, and the next trial runs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.acceptance.lab import Done, Lab

AFTER_CALIBRATION = 18
"""Requests that size the prompts come first on the first launch; a fault of a later launch strikes the cells at once."""
AFTER_HANG = 3
FAULTS = {
    "die": {"kind": "die", "launch": "candidate-1", "after_requests": 3},
    "http-500": {"kind": "http-500", "launch": "candidate-2", "after_requests": 1},
    "in-band-error": {"kind": "in-band-error", "launch": "candidate-3", "after_requests": 1},
    "malformed-stream": {"kind": "malformed-stream", "launch": "candidate-4", "after_requests": 1},
    "hang": {"kind": "hang", "launch": "candidate-5", "after_requests": AFTER_HANG},
}


@dataclass(frozen=True)
class Night:
    lab: Lab
    done: Done
    trials: list[dict[str, Any]]

    def trial(self, number: int) -> dict[str, Any]:
        return self.trials[number]

    def requests(self, number: int) -> list[dict[str, Any]]:
        """Raw records of every request of a trial."""
        rows = []
        for path in sorted((self.lab.study / "trials" / str(number)).glob("ctx*.jsonl.gz")):
            with gzip.open(path, "rt") as stream:
                rows += [json.loads(line) for line in stream]
        return rows


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    """Six launches; every one but the first has a fault of its own."""
    lab = Lab(tmp_path_factory.mktemp("faults"))
    lab.write_host(limits={"request_timeout_s": 2}, faults=list(FAULTS.values()))
    done = lab.tune(trials=6)
    assert done.code == 0, done.err
    yield Night(lab, done, lab.trials())
    lab.close()


def test_no_fault_stops_the_run(night: Night) -> None:
    assert [trial["number"] for trial in night.trials] == [0, 1, 2, 3, 4, 5]
    assert set(night.lab.documents()) == {"latency", "long-context", "throughput"}


def test_a_server_that_dies_during_a_cell_is_infeasible_with_the_end_of_its_log(night: Night) -> None:
    trial = night.trial(1)

    assert trial["outcome"] == "infeasible"
    assert trial["failure"]["stage"] == "serve"
    assert any("simulated fault: the scheduler was told to die" in line for line in trial["failure"]["evidence"])
    assert "trial 1 " in night.done.err
    with gzip.open(night.lab.study / "trials" / "1" / "server.log.gz", "rt") as stream:
        assert "simulated fault: the scheduler was told to die" in stream.read()
    assert any("error" in row for row in night.requests(1))


@pytest.mark.parametrize("number", [2, 3, 4], ids=list(FAULTS)[1:4])
def test_one_bad_answer_is_counted_and_loses_no_other(night: Night, number: int) -> None:
    trial = night.trial(number)

    assert trial["outcome"] == "measured"
    assert sum(cell["failed"] for cell in trial["cells"]) == 1
    assert [sum(cell["errors"].values()) for cell in trial["cells"] if cell["failed"]] == [1]
    rows = night.requests(number)
    assert sum("error" in row for row in rows) == 1
    assert len(rows) > 3
    assert set(trial["values"]) == {"latency", "long-context", "throughput"}


def test_a_request_that_hangs_loses_no_other(night: Night) -> None:
    trial = night.trial(5)

    assert trial["outcome"] == "measured"
    assert set(trial["values"]) == {"latency", "long-context", "throughput"}
    hung = [row for row in night.requests(5) if len(row["chunks"]) == 1 and "end_s" not in row]
    assert [row["lane"] for row in hung] == [0]
    assert sum("finish_reason" in row for row in night.requests(5)) > AFTER_HANG


def test_a_server_that_answers_nothing_but_errors_is_infeasible_and_when_it_is_all_there_is_the_code_is_3(lab: Lab) -> None:
    lab.write_host(faults=[{"kind": "http-500", "after_requests": AFTER_CALIBRATION, "requests": None}])

    done = lab.tune()

    assert done.code == 3
    assert done.errors == ["error: no configuration could be measured, of 1 that was tried"]
    (trial,) = lab.trials()
    assert trial["outcome"] == "infeasible"
    assert trial["failure"]["kind"] == "no-valid-request"
    assert "500" in trial["failure"]["cause"]
    assert not lab.documents()
    assert lab.run("recommend", lab.host_file).code == 3


def test_a_server_that_never_becomes_ready_is_given_up_and_the_next_trial_runs(lab: Lab) -> None:
    lab.write_host(limits={"ready_timeout_s": 4}, faults=[{"kind": "never-ready", "launch": "candidate-0"}])

    done = lab.tune(trials=2)

    assert done.code == 0, done.err
    first, second = lab.trials()
    assert (first["outcome"], second["outcome"]) == ("infeasible", "measured")
    assert first["failure"]["kind"] == "never-ready"
    assert "not ready after 4 s (limits.ready_timeout_s)" in first["failure"]["cause"]
    assert first["failure"]["evidence"]
    assert "limits.ready_timeout_s" in first["failure"]["remedy"]


def test_a_server_that_answers_no_calibration_is_tried_again_and_then_left(lab: Lab) -> None:
    lab.write_host(faults=[{"kind": "http-500", "launch": f"candidate-{number}", "requests": None} for number in range(3)])

    done = lab.tune(trials=4)

    assert done.code == 0, done.err
    assert [trial["outcome"] for trial in lab.trials()] == ["transient", "transient", "transient", "measured"]
    assert "attempt 3 of 3" in done.err
