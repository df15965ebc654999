"""A person, a supervisor or a kill -9 ends the run: what served before serves again, and the same command goes on."""

from __future__ import annotations

import json
import signal
from collections import Counter
from typing import Any

import pytest

from tests.acceptance.lab import Done, Lab, Night, until

TRIALS, ROUNDS = 3, 1
CALM = "stopped on request; everything measured is kept"


def start(lab: Lab, *more: str) -> Night:
    return lab.start_night(*more, trials=TRIALS, rounds=ROUNDS)


def assert_interrupted(done: Done) -> None:
    assert done.code == 130, done.err
    assert done.errors == [f"error: {CALM}"]
    assert "the same command continues where it stopped" in done.err


def recorded(lab: Lab) -> list[dict[str, Any]]:
    text = (lab.study / "results.jsonl").read_text() if (lab.study / "results.jsonl").exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def assert_kept(lab: Lab, before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    now = recorded(lab)
    assert now[: len(before)] == before
    return now


@pytest.fixture
def busy(lab: Lab) -> tuple[Lab, list[str]]:
    """A lab whose port serves production."""
    lab.write_host(production="auto")
    return lab, lab.produce()


def test_a_night_that_is_stopped_in_every_phase_leaves_production_serving_and_loses_nothing(busy: tuple[Lab, list[str]]) -> None:
    lab, production = busy

    # While the baseline starts: it is given up at once.
    night = start(lab)
    night.wait_for(event="StageReached", number=0)
    assert_interrupted(night.stop(signal.SIGINT))
    lab.assert_as_before(production)
    assert recorded(lab) == []

    # Twice during a cell: the measurement is given up as well.
    night = start(lab, "--window", "60")
    night.wait_for(event="StageReached", number=0, stage="ready")
    done = night.stop(signal.SIGINT, signal.SIGINT)
    assert_interrupted(done)
    assert "finishing this measurement, then restoring the host (again: stop now)" in done.err
    assert "stopping now; restoring the host" in done.err
    lab.assert_as_before(production)
    assert recorded(lab) == []

    # Once during a cell: the launch is measured to its end and kept. It is what runs today.
    night = start(lab)
    night.wait_for(event="CellMeasured", number=0, done=1)
    assert_interrupted(night.stop(signal.SIGINT))
    lab.assert_as_before(production)
    kept = recorded(lab)
    assert [(trial["phase"], trial["outcome"], len(trial["cells"])) for trial in kept] == [("baseline", "measured", 2)]
    assert {"--random-seed", "77"} <= set(kept[0]["launch"]["argv"])

    # A supervisor's SIGTERM during the search, and a kill -9 during the confirmation.
    night = start(lab)
    launch = night.wait_for(event="TrialStarted", phase="search")
    night.wait_for(event="StageReached", number=launch["number"])
    assert_interrupted(night.stop(signal.SIGTERM))
    lab.assert_as_before(production)
    before = assert_kept(lab, kept)

    night = start(lab)
    launch = night.wait_for(event="TrialStarted", phase="confirm")
    night.wait_for(event="CellMeasured", number=launch["number"])
    assert night.stop(signal.SIGKILL).code == -signal.SIGKILL
    lab.assert_as_before(production)
    before = assert_kept(lab, before)

    # The same command, left alone, brings it to its end; nothing was launched twice.
    done = lab.tune(trials=TRIALS, rounds=ROUNDS)
    assert done.code == 0, done.err
    lab.assert_as_before(production)
    trials = assert_kept(lab, before)
    assert [trial["number"] for trial in trials] == list(range(len(trials)))
    launches = Counter((trial["phase"] == "confirm", json.dumps(trial["config"], sort_keys=True)) for trial in trials)
    assert set(launches.values()) == {1}
    assert sum(not confirming for confirming, _ in launches) == TRIALS
    assert set(lab.documents()) == {"latency", "long-context", "throughput"}


def test_kill_9_during_the_search_queues_the_launch_again(busy: tuple[Lab, list[str]]) -> None:
    lab, production = busy
    night = lab.start_night(trials=2)
    lost = night.wait_for(event="TrialStarted", phase="search")
    night.wait_for(event="StageReached", number=lost["number"], stage="ready")
    assert night.stop(signal.SIGKILL).code == -signal.SIGKILL
    before = recorded(lab)
    lab.assert_as_before(production)

    done = lab.tune(trials=2)

    assert done.code == 0, done.err
    trials = assert_kept(lab, before)
    assert [trial["number"] for trial in trials] == [0, 1]
    again = next(trial for trial in lab.trials() if trial["number"] == lost["number"])
    assert again["config"]["parameters"] == lost["config"]["parameters"]
    assert again["phase"] == lost["phase"]
    lab.assert_as_before(production)


def test_kill_9_with_nothing_to_bring_back_leaves_no_server(lab: Lab) -> None:
    night = lab.start_night(trials=1)
    night.wait_for(event="StageReached", stage="ready")
    assert night.stop(signal.SIGKILL).code == -signal.SIGKILL

    until(lambda: not lab.servers(), "the end of the candidate")

    assert lab.status("/health") is None


def test_a_result_that_nobody_reads_any_more_is_told_and_production_is_back(busy: tuple[Lab, list[str]]) -> None:
    lab, production = busy
    night = lab.start_night()
    assert night.process.stdout is not None
    night.process.stdout.close()

    for _ in night.follow():
        pass

    assert night.process.wait() == 1
    assert night.said[0] == "error: standard output was closed before the result was printed"
    assert night.said[1].startswith("hint: the run is done, and its recommendations are written: autotuner recommend lab")
    assert night.said[2:] == []
    assert lab.documents()
    lab.assert_as_before(production)


def test_a_dry_run_leaves_production_alone(busy: tuple[Lab, list[str]]) -> None:
    lab, production = busy
    (pid,) = lab.servers()

    plan = json.loads(lab.tune("--dry-run", "--json").out)

    assert lab.servers() == [pid]
    lab.assert_as_before(production)
    assert not lab.state.exists()
    assert {"--random-seed", "77"} <= set(plan["launches"][0]["argv"])
