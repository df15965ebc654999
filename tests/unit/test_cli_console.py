"""A run as it is shown on a terminal, in a log and to a machine."""

from __future__ import annotations

import io
import json

import pytest

from autotuner.cli.console import listener
from autotuner.model.configuration import Configuration
from autotuner.model.events import Event, Notice, Phase, StageReached, StudyOpened, TrialEnded, TrialStarted
from autotuner.model.outcome import Consequence, Failure, Infeasible, Stage

CONFIG = Configuration.of({"tp": 8}, extra_args=("--trust-remote-code",))
FAILURE = Failure(kind="oom", cls="memory", stage=Stage.LOAD, consequence=Consequence.INFEASIBLE, cause="out of memory [GPU 3]")
RUN: tuple[Event, ...] = (
    StudyOpened(study="ct200", resumed=False, trials=0, workloads=("latency",), simulated=True),
    TrialStarted(number=1, phase=Phase.SEED, config=CONFIG, done=1, planned=4, eta_s=40.0),
    StageReached(number=1, stage=Stage.LOAD, elapsed_s=3.0),
    TrialEnded(number=1, phase=Phase.SEED, config=CONFIG, outcome=Infeasible(failure=FAILURE), elapsed_s=5.0, infeasible=1),
    Notice(level="warning", message="block is beyond the drafter's"),
)


@pytest.fixture(autouse=True)
def _a_wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")


def shown(*, as_json: bool = False, tty: bool = False, color: bool = True) -> str:
    stream = io.StringIO()
    with listener(stream, json=as_json, tty=tty, color=color, clock=lambda: 0.0) as listen:
        for event in RUN:
            listen(event)
    return stream.getvalue()


def test_a_log_gets_one_line_per_trial_and_no_control_characters() -> None:
    lines = shown().splitlines()

    assert len(lines) == 3
    assert "\x1b" not in "".join(lines)
    assert lines[1] == "trial 1 seed: tp=8 → infeasible: out of memory [GPU 3] [oom, at load] · 5 s (simulated)"
    assert lines[2] == "warning: block is beyond the drafter's"


def test_json_is_one_object_per_event_and_each_is_marked_simulated() -> None:
    events = [json.loads(line) for line in shown(as_json=True).splitlines()]

    assert [event["event"] for event in events] == ["StudyOpened", "TrialStarted", "StageReached", "TrialEnded", "Notice"]
    assert all(event["simulated"] is True for event in events)
    assert events[3]["config"] == {"parameters": {"tp": 8}, "extra_args": ["--trust-remote-code"], "digest": CONFIG.digest}
    assert events[3]["outcome"]["outcome"] == "infeasible"
    assert events[3]["outcome"]["failure"]["cause"] == "out of memory [GPU 3]"


@pytest.mark.parametrize("simulated", [True, False])
def test_json_is_marked_simulated_before_the_study_is_open(*, simulated: bool) -> None:
    stream = io.StringIO()
    listener(stream, json=True, tty=False, simulated=simulated)(Notice(level="info", message="x"))

    assert json.loads(stream.getvalue())["simulated"] is simulated


def test_a_terminal_shows_headline_detail_and_ended_trials_and_is_left_clean() -> None:
    text = shown(tty=True)

    assert "simulated · trial 2/4 · 40 s left" in text
    assert "load · 3 s" in text
    assert "out of memory [GPU 3]" in text, "square brackets are text, not markup"
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is hidden and shown again"


def test_a_terminal_without_colour_gets_none() -> None:
    assert "\x1b[33m" in shown(tty=True)
    assert "\x1b[33m" not in shown(tty=True, color=False)
