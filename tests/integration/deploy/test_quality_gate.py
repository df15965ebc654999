"""The correctness gate between launch and first cell: a server that answers right, wrong, cut off or with attacks, over real HTTP."""

from __future__ import annotations

import dataclasses
import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from autotuner.deploy import HostSession
from autotuner.discover import discover
from autotuner.engines.simulated.engine import SimulatedEngine
from autotuner.loadgen.plan import CellPlan
from autotuner.loadgen.prompts import PromptSource
from autotuner.loadgen.validity import relaxed
from autotuner.model.configuration import Configuration
from autotuner.model.events import Notice
from autotuner.model.host import Host
from autotuner.model.outcome import Infeasible, Interrupted, Measured, Outcome
from autotuner.model.quality import QualityReport
from autotuner.model.workload import Cell, Sampling
from autotuner.quality.gate import AnswerGate, Gate, NotChecked
from autotuner.quality.probe import Found, find_sandbox
from autotuner.quality.problems import Questions, questions
from autotuner.records import RecordStore
from autotuner.runner import CellJob, Runner, Trial
from autotuner.services.hostside import HostSide
from autotuner.services.process import ProcessManager
from autotuner.transports.local import LocalTransport
from tests import builders

ANSWERING = Path(__file__).parents[2] / "data" / "quality" / "answering.py"
CELLS = (Cell(context=60, concurrency=1, output_tokens=16),)
PLAIN, DRAFTING = Configuration.of({"spec": "off"}), Configuration.of({"spec": "dflash", "block": 8, "window": "none"})
NAMES = ("gcd", "fibonacci", "word_count", "roman", "is_leap_year", "parse_query")


class AnsweringEngine(SimulatedEngine):
    """The simulated engine with answers of a manner."""

    def __init__(self, manner: Path) -> None:
        super().__init__()
        self.manner = manner

    def command(self, host: Host) -> tuple[str, ...]:
        python, _, _, *rest = super().command(host)
        return (python, str(ANSWERING), str(self.manner), *rest)


def some_questions() -> Questions:
    """Enough for every branch, and few enough to launch often."""
    asked = questions()
    return dataclasses.replace(asked, problems=tuple(problem for problem in asked.problems if problem.name in NAMES))


class Lab:
    """One host with one study: trials in a row."""

    def __init__(self, stage, folder: Path, sandbox: Found) -> None:
        self.stage = stage
        self.store = RecordStore(folder / "study")
        self.sandbox = sandbox
        self.manner = folder / "manner"
        self.number = 0
        self.events: list[object] = []
        self.runner: Runner | None = None

    @contextmanager
    def run(self, gate: Gate | None = None) -> Iterator[Lab]:
        """A session; another one later is a resumed run."""
        gpu = {"name": "simulated", "count": 8, "memory_gib": 275.0, "sm": 103, "link": "nvlink"}
        document = {
            **self.stage.host_document,
            "engine": {"name": "sglang", "python": sys.executable, "args": ["--tp-size", "8"]},
            "model": {
                "path": "simulated:kimi-k2.6",
                "drafter": "simulated:kimi-k2.6-dflash",
                "served_name": "kimi",
                "context_length": 16384,
            },
            "simulate": {"profile": "b300", "gpu": gpu, "launch_seconds": 0.0, "noise": 0.0},
        }
        host = Host.model_validate_json(json.dumps(document))
        engine, transport = AnsweringEngine(self.manner), LocalTransport()
        side = HostSide(transport, state=str(self.store.folder.parent / "state"), leases=str(self.store.folder.parent / "leases"))
        session = HostSession(
            host, engine, transport, ProcessManager(side), holder="a person", purpose="a test", on_notice=print, ttl_s=60.0
        )
        with session:
            self.runner = Runner(
                session=session,
                engine=engine,
                host=host,
                facts=discover(host, engine, transport),
                space=builders.space(constraints=()),
                store=self.store,
                plan=relaxed(CellPlan(window_s=0.3, warmup_s=0.1, request_timeout_s=60.0)),
                listener=self.events.append,
                gate=gate or AnswerGate(folder=self.store.quality, model="kimi", sandbox=self.sandbox, asked=some_questions()),
            )
            yield self

    def trial(self, manner: str, config: Configuration, *, stop: Sequence[bool] = ()) -> Outcome:
        assert self.runner is not None
        self.manner.write_text(manner)
        jobs = [CellJob(cell=cell, prompts=PromptSource(("code",)), sampling=Sampling()) for cell in CELLS]
        answers = iter(stop)
        outcome = self.runner.run(
            Trial(number=self.number, config=config, jobs=jobs),
            stop_launch=lambda: False,
            stop_cell=lambda: next(answers, False),
            keep_going=lambda _: True,
        )
        self.number += 1
        return outcome

    def details(self, number: int) -> dict[str, object]:
        with gzip.open(self.store.folder / "trials" / str(number) / "quality.json.gz", "rt") as file:
            return json.load(file)


@pytest.fixture(scope="module")
def sandbox() -> Found:
    found = find_sandbox()
    if found.sandbox is None:
        pytest.skip(f"no sandbox: {'; '.join(found.reasons)}")
    return found


def report(outcome: Outcome) -> QualityReport:
    assert isinstance(outcome, Measured | Infeasible), outcome
    return outcome.quality


def part(outcome: Outcome, name: str):
    return next(part for part in report(outcome).parts if part.name == name)


def test_answers_are_judged_against_the_baseline_before_anything_is_measured(stage, tmp_path, sandbox):
    lab = Lab(stage, tmp_path, sandbox)
    with lab.run():
        early = lab.trial("right", DRAFTING)
        baseline = lab.trial("right", PLAIN)
        same = lab.trial("right", DRAFTING)
        shaky = lab.trial("shaky", DRAFTING)
        wrong = lab.trial("wrong", DRAFTING)

    assert isinstance(early, Measured)
    assert report(early).status == "not_checked"
    assert all("no reference yet" in reason for reason in report(early).reasons)
    assert isinstance(baseline, Measured)
    assert (report(baseline).status, report(baseline).reference) == ("passed", 1)
    assert isinstance(same, Measured)
    assert (report(same).status, report(same).reference) == ("passed", 1)
    assert part(same, "greedy").score == part(same, "coding").score == 1.0
    assert report(same).sandbox.startswith(("bubblewrap", "systemd"))
    assert report(shaky).status == "passed"
    assert part(shaky, "coding").counts == {"solved": 5, "wrong": 1}
    assert 0.5 < part(shaky, "greedy").score < 1

    assert isinstance(wrong, Infeasible), "however fast it is"
    assert wrong.cells == ()
    assert (wrong.failure.kind, wrong.failure.consequence) == ("quality", "infeasible")
    for told in ("greedy: agrees with the baseline on", "canary: answered 'Madrid'", "coding: 0 of 6 solved"):
        assert told in wrong.failure.cause
    kept = lab.details(4)
    assert kept["report"]["status"] == "failed"
    assert {entry["verdict"] for entry in kept["coding"]} == {"wrong"}


def test_a_resumed_run_compares_with_the_same_reference(stage, tmp_path, sandbox):
    lab = Lab(stage, tmp_path, sandbox)
    with lab.run():
        lab.trial("right", PLAIN)
    kept = (lab.store.quality / "reference.json").read_bytes()
    with lab.run():
        found = lab.trial("wrong", PLAIN)

    assert isinstance(found, Infeasible)
    assert report(found).reference == 0
    assert (lab.store.quality / "reference.json").read_bytes() == kept
    assert (lab.store.quality / "reference.json").stat().st_mode & 0o077 == 0


def test_a_reference_that_the_disk_does_not_take_judges_all_the_same(stage, tmp_path, sandbox):
    lab = Lab(stage, tmp_path, sandbox)
    lab.store.folder.mkdir(parents=True, exist_ok=True)
    lab.store.quality.write_text("in the way")
    with lab.run():
        assert isinstance(lab.trial("right", PLAIN), Measured)
        found = lab.trial("wrong", PLAIN)
        lab.store.quality.unlink()
        lab.trial("right", PLAIN)

    assert isinstance(found, Infeasible)
    assert report(found).reference == 0
    told = [event.message for event in lab.events if isinstance(event, Notice)]
    assert sum("what the baseline answered is held" in message for message in told) == 2, told
    assert (lab.store.quality / "reference.json").exists()


def test_cut_off_answers_are_told_apart_from_wrong_ones(stage, tmp_path, sandbox):
    lab = Lab(stage, tmp_path, sandbox)
    with lab.run():
        lab.trial("right", PLAIN)
        found = lab.trial("truncated", DRAFTING)

    assert isinstance(found, Measured)
    assert report(found).status == "not_checked"
    assert part(found, "coding").counts == {"truncated": 6}
    assert "6 truncated" in part(found, "coding").reason


def test_gibberish_is_refused_and_is_never_a_reference(stage, tmp_path, sandbox):
    lab = Lab(stage, tmp_path, sandbox)
    with lab.run():
        found = lab.trial("gibberish", PLAIN)

    assert isinstance(found, Infeasible)
    assert "are no language" in found.failure.cause
    assert not lab.store.quality.exists()


def test_attacks_stay_in_are_reported_and_the_run_goes_on(stage, tmp_path, sandbox):
    lab = Lab(stage, tmp_path, sandbox)
    with lab.run():
        lab.trial("right", PLAIN)
        attacked = lab.trial("attacking", DRAFTING)
        after = lab.trial("right", DRAFTING)

    assert isinstance(attacked, Infeasible)
    verdicts = {entry["problem"]: entry["verdict"] for entry in lab.details(1)["coding"]}
    assert verdicts["gcd"] == "no-values"
    assert verdicts["fibonacci"] in ("timeout", "killed")
    assert verdicts["word_count"] in ("wrong", "timeout", "killed", "no-values")
    assert verdicts["roman"] == "solved"
    assert isinstance(after, Measured)
    assert report(after).status == "passed"


def test_without_a_sandbox_code_is_not_run_and_that_is_said(stage, tmp_path):
    lab = Lab(stage, tmp_path, Found(sandbox=None, reasons=("bubblewrap: bwrap not installed",)))
    with lab.run():
        baseline = lab.trial("planting", PLAIN)
        wrong = lab.trial("wrong", DRAFTING)

    assert isinstance(baseline, Measured)
    assert report(baseline).status == "not_checked"
    assert part(baseline, "greedy").status == "passed"
    assert "never run without one: bubblewrap: bwrap not installed" in part(baseline, "coding").reason
    assert not list(tmp_path.glob("*.planted"))
    assert isinstance(wrong, Infeasible), "what does not need a sandbox is still judged"


def test_a_reference_from_before_there_was_a_sandbox_is_completed(stage, tmp_path, sandbox):
    lab = Lab(stage, tmp_path, Found(sandbox=None))
    with lab.run():
        lab.trial("right", PLAIN)
    lab.sandbox = sandbox
    with lab.run():
        found = lab.trial("right", PLAIN)

    assert (report(found).status, report(found).reference) == ("passed", 1)


def test_the_run_can_be_stopped_while_answers_are_checked(stage, tmp_path, sandbox):
    lab = Lab(stage, tmp_path, sandbox)
    with lab.run():
        assert isinstance(lab.trial("right", PLAIN, stop=[False, True]), Interrupted)


def test_a_gate_that_asks_nothing_says_why(stage, tmp_path, sandbox):
    lab = Lab(stage, tmp_path, sandbox)
    with lab.run(NotChecked("switched off by --quality off")):
        found = lab.trial("gibberish", PLAIN)

    assert report(found) == QualityReport.not_checked("switched off by --quality off")
    assert not (lab.store.folder / "trials" / "0" / "quality.json.gz").exists()
