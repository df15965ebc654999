"""The order of a study's launches, over an engine that answers at once: what is launched, kept, retried and resumed."""

from __future__ import annotations

import datetime as dt
import os
import signal

import pytest

from autotuner.errors import Interrupted, NothingFeasible, Refused, StopStudy, UsageError
from autotuner.model.configuration import Configuration
from autotuner.model.events import Notice, Phase, TrialEnded, TrialStarted
from autotuner.model.host import Window
from autotuner.model.outcome import Consequence, HostBroken, Infeasible, LaunchFacts, Measured, Transient
from autotuner.model.outcome import Interrupted as InterruptedOutcome
from autotuner.model.workload import builtin_workloads, matrix
from autotuner.records import RecordStore
from autotuner.study.study import Study
from autotuner.tuner.agenda import opening_moves
from autotuner.tuner.matrix import jobs_for
from autotuner.tuner.stop import StopRequest, on_signals
from autotuner.tuner.times import duration_s, run_seconds, seconds_until
from autotuner.tuner.tuner import Budget, Tuner, expected_launch_s
from tests import builders as b

BASE = b.config()


class Lab:
    """Runs trials by a formula; block 8 is best for latency, graphs off without a draft crashes."""

    def __init__(self):
        self.launched = []
        self.again = []
        self.now = 0.0
        self.script = {}

    def run(self, trial, *, stop_launch, stop_cell, keep_going):
        self.launched.append((trial.number, trial.config, tuple(job.cell.key for job in trial.jobs)))
        self.now += 10.0
        scripted = self.script.pop(trial.number, None)
        if scripted is not None:
            return scripted(trial.config)
        if not trial.config["graphs"]:
            return Infeasible(failure=b.failure())
        block = trial.config.get("block", 0)
        latency = 150.0 - (block - 8) ** 2 if block else 100.0
        wobble = 1 + 0.002 * (trial.number % 5)
        values = {"user_tok_s": latency * wobble, "output_tok_s": 80.0 if block else 100.0}
        cells = tuple(
            b.cell_result(job.cell, **values | ({"output_tok_s": 900.0 * wobble} if job.cell.concurrency > 1 else {})) for job in trial.jobs
        )
        self.again.append(dict(trial.again(cells)))
        return Measured(cells=cells, effective={}, launch=LaunchFacts(argv=("server",)))


class Night:
    def __init__(self, tmp_path, *, trials=10, rounds=4, space=None, live=None, seconds=None):
        self.lab, self.events, self.stop = Lab(), [], StopRequest()
        self.store = RecordStore(tmp_path)
        self.options = {"trials": trials, "rounds": rounds, "live": live, "seconds": seconds}
        self.space = space or b.space()
        self.workloads = b.WORKLOADS

    def run(self):
        study = Study(self.store, space=self.space, facts=b.facts().names(), workloads=self.workloads)
        tuner = Tuner(
            study=study,
            runner=self.lab,
            facts=b.facts(),
            cells=matrix(self.workloads, context_served=8192, contexts=(60, 2000), concurrency=(1,), output_tokens=256),
            live=self.options["live"],
            budget=Budget(trials=self.options["trials"], confirm_rounds=self.options["rounds"]),
            stop=self.stop,
            listener=self.events.append,
            clock=lambda: self.lab.now,
            deadline_s=self.options["seconds"],
        )
        tuner.run()
        return tuner

    @property
    def phases(self):
        return [record.phase for record in self.store.trials()]


def test_baseline_then_seeds_then_search_then_predicted_then_confirmation(tmp_path):
    night = Night(tmp_path)
    night.run()
    phases = night.phases
    assert phases[:2] == [Phase.BASELINE, Phase.SEED]
    assert phases.index(Phase.CONFIRM) == 10
    assert phases[8:10] == [Phase.PREDICTED, Phase.PREDICTED]
    assert night.lab.launched[0][1] == BASE


def test_the_confirmation_goes_back_and_forth_between_baseline_and_finalists_on_the_cells_of_the_workloads(tmp_path):
    night = Night(tmp_path)
    night.run()
    confirmations = [row for row, phase in zip(night.lab.launched, night.phases, strict=True) if phase is Phase.CONFIRM]
    configs = [config for _, config, _ in confirmations]
    line_up = list(dict.fromkeys(configs))
    assert line_up[0] == BASE
    assert len(line_up) > 1
    assert configs == [*line_up, *line_up[::-1]] * 2
    assert {keys for _, _, keys in confirmations} == {("ctx60-c1-out256", "ctx2000-c1-out256", "ctx60-c128-out256")}


def test_only_a_launch_that_would_lead_is_measured_again_and_no_confirmation(tmp_path):
    night = Night(tmp_path)
    night.run()
    records = [record for record in night.store.trials() if record.measured]
    asked = dict(zip([record.number for record in records], night.lab.again, strict=True))
    assert asked[0] == {}, "the baseline was not chosen"
    assert "ctx60-c1-out256" in asked[1], "the seed is faster than the baseline"
    assert asked[1]["ctx60-c1-out256"] == "user_tok_s"
    best = 0.0
    for record in records:
        value = record.cells[0]["user_tok_s"]
        if record.phase is not Phase.CONFIRM and record.number > 0:
            assert ("ctx60-c1-out256" in asked[record.number]) == (value > best)
        if record.phase is not Phase.CONFIRM:
            best = max(best, value)
    assert all(asked[record.number] == {} for record in records if record.phase is Phase.CONFIRM)


def test_the_best_configuration_is_found_and_the_events_say_how_far_it_is(tmp_path):
    night = Night(tmp_path, trials=20)
    night.run()
    ended = [event for event in night.events if isinstance(event, TrialEnded)]
    assert ended[-1].best["latency"] == pytest.approx(1.5, abs=0.02)
    assert ended[0].versus_baseline["latency"] == pytest.approx(1.0)
    started = [event for event in night.events if isinstance(event, TrialStarted)]
    assert started[-1].planned == len(started)
    assert started[-1].eta_s == pytest.approx(10.0)


def test_the_same_command_continues_and_repeats_nothing(tmp_path):
    whole = Night(tmp_path / "whole")
    (tmp_path / "whole").mkdir()
    whole.run()
    cut = Night(tmp_path / "cut")
    (tmp_path / "cut").mkdir()
    cut.lab.script[6] = lambda config: (cut.stop.ask(), InterruptedOutcome())[1]
    with pytest.raises(Interrupted):
        cut.run()
    cut.stop = StopRequest()
    cut.run()
    assert [record.number for record in cut.store.trials()] == list(range(len(cut.store.trials())))
    assert cut.phases[:10] == whole.phases[:10]
    explored = [record.config.digest for record in cut.store.trials() if record.phase is not Phase.CONFIRM]
    assert len(set(explored)) == len(explored)
    before = len(cut.lab.launched)
    cut.run()
    assert len(cut.lab.launched) == before  # nothing is left to do


def test_launches_on_other_cells_are_said_and_measured_anew(tmp_path):
    night = Night(tmp_path, trials=4, rounds=0)
    night.run()
    other = Night(tmp_path, trials=4, rounds=0)
    other.workloads = builtin_workloads(context_served=8192, contexts=(60, 2000), concurrency=(1, 64), output_tokens=256)
    other.run()
    notes = [event.message for event in other.events if isinstance(event, Notice)]
    assert any("4 launches of this study were measured on other cells" in note for note in notes)
    assert other.lab.launched[0][1] == BASE
    assert len(other.lab.launched) == 4


def test_the_time_of_a_launch_comes_from_launches_like_it():
    few = [b.measured(n, b.config(block=n), (1.0, 2.0, 3.0)) for n in range(3)]
    assert expected_launch_s([], 3) is None
    assert expected_launch_s(few, 3) == 60.0
    assert expected_launch_s(few, 15) == 300.0


def test_a_measurement_in_progress_is_kept_when_stopped_once(tmp_path):
    night = Night(tmp_path)

    def finish(config):
        night.stop.ask()
        return Measured(cells=b.cells(1.0, 2.0, 3.0), effective={}, launch=LaunchFacts())

    night.lab.script[3] = finish
    with pytest.raises(Interrupted, match="everything measured is kept"):
        night.run()
    assert len(night.store.trials()) == 4


def test_a_broken_wire_is_tried_twice_more_and_then_given_up(tmp_path):
    night = Night(tmp_path, trials=6, rounds=0)
    wire = b.failure("wire", Consequence.TRANSIENT)
    for number in (1, 2, 3):
        night.lab.script[number] = lambda config: Transient(failure=wire)
    night.run()
    records = night.store.trials()
    assert [record.outcome for record in records[:4]] == ["measured", "transient", "transient", "transient"]
    assert len({record.config for record in records[1:4]}) == 1
    assert records[4].config != records[1].config


def test_a_broken_host_stops_the_study_with_the_cause(tmp_path):
    night = Night(tmp_path)
    night.lab.script[2] = lambda config: HostBroken(failure=b.failure("driver", Consequence.HOST_BROKEN))
    with pytest.raises(StopStudy, match="CUDA out of memory"):
        night.run()
    assert night.store.trials()[-1].outcome == "host-broken"


def test_nothing_feasible_is_an_error_of_its_own(tmp_path):
    night = Night(tmp_path, trials=4)
    for number in range(4):
        night.lab.script[number] = lambda config: Infeasible(failure=b.failure())
    with pytest.raises(NothingFeasible, match="of 4 that were tried"):
        night.run()


def test_an_exception_leaves_no_running_trial_behind(tmp_path):
    night = Night(tmp_path)

    def explode(config):
        raise Refused("the port is taken by nginx (pid 7)")

    night.lab.script[1] = explode
    with pytest.raises(Refused):
        night.run()
    study = Study(night.store, space=night.space, facts=b.facts().names(), workloads=b.WORKLOADS)
    assert study.requeued == ()


def test_a_seed_that_took_the_tuner_with_it_twice_is_left_out_and_costs_no_launch_of_the_budget(tmp_path):
    night = Night(tmp_path, trials=3, rounds=0)
    seed = Configuration.of(night.space.seeds[0])

    class Killed(BaseException):
        """Nothing runs after a kill -9: not even what notes that a launch was given up."""

    def kill(config):
        raise Killed

    for number in (1, 1):
        night.lab.script[number] = kill
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Study, "abandon", lambda *_: None)
            with pytest.raises(Killed):
                night.run()
    assert [config for _, config, _ in night.lab.launched] == [BASE, seed, seed]

    night.run()

    records = night.store.trials()
    assert [(record.outcome, record.config == seed) for record in records[:2]] == [("measured", False), ("transient", True)]
    assert len(records) == 1 + 3
    assert [config for _, config, _ in night.lab.launched].count(seed) == 2


def test_what_the_records_have_to_say_is_told(tmp_path):
    night = Night(tmp_path, trials=2, rounds=0)
    (tmp_path / "study.db").mkdir()
    night.run()
    (told,) = [event.message for event in night.events if isinstance(event, Notice)]
    assert told.startswith(f"{tmp_path / 'study.db'}: ")
    assert len(night.store.trials()) == 2


def test_the_deadline_leaves_room_for_the_confirmation(tmp_path):
    night = Night(tmp_path, trials=None, rounds=2, seconds=200.0)
    night.run()
    assert night.lab.now <= 200.0
    confirmations = night.phases.count(Phase.CONFIRM)
    assert confirmations >= 4
    assert confirmations % 2 == 0


def test_what_runs_today_is_the_baseline_even_outside_of_the_space(tmp_path):
    live = Configuration.of({"spec": "dflash", "block": 4, "graphs": True, "mem_fraction": 0.85}, ("--log-level", "debug"))
    night = Night(tmp_path, live=live, trials=3, rounds=0)
    night.run()
    assert night.store.trials()[0].config == live
    control = night.store.trials()[1]
    assert control.phase is Phase.CONTROL
    assert control.config == Configuration.of({"spec": "off", "graphs": True, "mem_fraction": 0.85}, ("--log-level", "debug"))


def test_an_illegal_seed_is_left_out_and_said(tmp_path):
    bad = {"spec": "dflash", "block": 8, "window": "none", "graphs": False, "mem_fraction": 0.3}
    night = Night(tmp_path, space=b.space(seeds=(bad,)), trials=2, rounds=0)
    night.run()
    notes = [event.message for event in night.events if isinstance(event, Notice)]
    assert any("seed left out" in note and "graphs or spec == 'off'" in note for note in notes)


def test_trees_have_a_chain_and_a_no_speculation_control():
    from autotuner.documents import load_space

    kimi = load_space("search_spaces/sglang-kimi-k26.yaml")
    facts = {"gpus": 8, "heads": 64, "experts": 256, "has_drafter": True, "drafter_block": 8}
    live = Configuration.of({**kimi.seeds[2]})
    moves, notes = opening_moves(kimi, facts, live)
    controls = [move.config for move in moves if move.phase is Phase.CONTROL]
    assert [config["spec"] for config in controls] == ["off", "dflash"]
    assert "budget" not in controls[1]
    assert notes == []


def test_the_same_cell_asked_in_two_ways_is_refused():
    other = b.LATENCY.model_copy(update={"prompts": ("code",), "metadata": b.THROUGHPUT.metadata})
    with pytest.raises(UsageError, match="different prompts or sampling"):
        jobs_for((b.LATENCY, other), b.LATENCY.cells, seed=0)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("45m", 2700), ("9h", 32400), ("1h30m", 5400), ("1.5h", 5400)])
def test_durations(text, seconds):
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "9", "h", "9x", "-1h", "0s", "1h 30m"])
def test_bad_durations(text):
    with pytest.raises(UsageError) as caught:
        duration_s(text)
    assert "9h" in caught.value.hint


@pytest.mark.parametrize("text", ["99999999999h", "31d", "9" * 400 + "h"])
def test_a_duration_that_nobody_means_is_refused_with_the_limit(text):
    assert duration_s("30d") == 30 * 86400
    with pytest.raises(UsageError, match="is longer than 30 days"):
        duration_s(text)


NOW = dt.datetime(2026, 1, 2, 18, 0, tzinfo=dt.UTC)


def test_until_is_the_next_time_that_the_clock_shows_it():
    assert seconds_until("19:30", NOW) == 5400
    assert seconds_until("18:00", NOW) == 24 * 3600
    assert seconds_until("07:00", NOW) == 13 * 3600


@pytest.mark.parametrize("text", ["7", "25:00", "07:60", "0700", "soon"])
def test_bad_times(text):
    with pytest.raises(UsageError, match="time of day"):
        seconds_until(text, NOW)


def test_the_tightest_limit_counts_and_the_window_is_kept():
    host = b.host(window=Window(start="19:00", end="07:00", timezone="Europe/Berlin"))
    assert run_seconds(host, until=None, budget=None, now_utc=NOW) == 12 * 3600
    assert run_seconds(host, until="06:00", budget="20h", now_utc=NOW) == 11 * 3600
    with pytest.raises(Refused, match=r"it is 13:00 there"):
        run_seconds(host, until=None, budget=None, now_utc=NOW.replace(hour=12))
    assert run_seconds(b.host(), until=None, budget=None, now_utc=NOW) is None


def test_signals_ask_once_then_now_and_the_old_handlers_come_back():
    stop, said = StopRequest(), []
    before = signal.getsignal(signal.SIGINT)
    with on_signals(stop, said.append):
        os.kill(os.getpid(), signal.SIGINT)
        assert (stop.asked, stop.now) == (True, False)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.now
    assert signal.getsignal(signal.SIGINT) is before
    assert "finishing this measurement" in said[0]
    with pytest.raises(Interrupted):
        stop.check()


def test_sigterm_does_not_wait_for_the_measurement():
    stop = StopRequest()
    with on_signals(stop, lambda text: None):
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.now
