"""The whole job: one command, three recommendations, and everything that reads them agrees."""

from __future__ import annotations

import gzip
import json

import pytest
import yaml

from autotuner.cli.main import COMMANDS
from tests.acceptance.conftest import MATRIX, Finished
from tests.acceptance.lab import Lab, Night

WORKLOADS = {"latency", "long-context", "throughput"}
CELLS = {f"ctx{context}-c{concurrency}-out16" for context in (60, 1024) for concurrency in (1, 8)}


def loaded(finished: Finished) -> dict[str, dict]:
    return {name: yaml.safe_load(text) for name, text in finished.documents.items()}


def test_three_recommendations_are_written_and_valid(finished: Finished) -> None:
    assert set(finished.documents) == WORKLOADS

    checked = finished.lab.run("check", *sorted((finished.lab.recommendations / "lab").glob("*.yaml")))

    assert checked.code == 0, checked.err


def test_every_recommendation_says_what_to_run_why_and_for_what_it_holds(finished: Finished) -> None:
    for name, document in loaded(finished).items():
        spec, evidence, validity = document["spec"], document["evidence"], document["validity"]
        assert document["metadata"] | {"host": "lab", "workload": name} == document["metadata"]
        assert str(spec["parameters"]["tp"]) == spec["argv"][spec["argv"].index("--tp-size") + 1]
        assert "--enable-metrics" not in spec["argv"]
        assert "ExecStart=" in spec["unit"]
        assert evidence["simulated"] is True
        assert {check["name"] for check in document["checks"]} >= {"simulated", "quality"}
        assert evidence["verdict"] in {"inconclusive", "no significant change"}  # one round of confirmation proves nothing better
        assert {f"ctx{cell['context']}-c{cell['concurrency']}-out16" for cell in evidence["cells"]} <= CELLS
        assert (validity["contexts"], validity["concurrencies"]) == ([60, 1024], [1, 8])


def test_a_block_beyond_the_drafters_is_a_warning_and_the_run_goes_on(finished: Finished) -> None:
    assert "warning: search space sglang-kimi-k26 goes to block 16, but the drafter was trained at block 8" in finished.done.err


def test_trials_are_told_as_they_were_recorded(finished: Finished) -> None:
    trials = finished.lab.trials()

    assert [trial["number"] for trial in trials] == list(range(len(trials)))
    assert trials[0]["phase"] == "baseline"
    assert sum(trial["phase"] != "confirm" for trial in trials) == 3
    assert all(trial["simulated"] for trial in trials)
    recorded = [json.loads(line) for line in (finished.lab.study / "results.jsonl").read_text().splitlines()]
    assert [(line["number"], line["outcome"]) for line in recorded] == [(trial["number"], trial["outcome"]) for trial in trials]
    plain = finished.lab.run("trials", "lab")
    assert len(plain.out.splitlines()) == len(trials)
    assert all(line.endswith("(simulated)") for line in plain.out.splitlines())


def test_recommendations_rest_on_trials_that_exist(finished: Finished) -> None:
    trials = {trial["number"]: trial for trial in finished.lab.trials()}

    for name, document in loaded(finished).items():
        chosen = trials[document["evidence"]["provenance"]["trial"]]
        assert chosen["config"]["parameters"] == document["spec"]["parameters"]
        confirmed = [
            trial["values"][name] for trial in trials.values() if trial["phase"] == "confirm" and trial["config"] == chosen["config"]
        ]
        assert document["evidence"]["objective"]["measured"] == pytest.approx(confirmed[0], abs=0.01)


def test_status_counts_what_is_there_and_says_where(finished: Finished) -> None:
    trials = finished.lab.trials()
    (row,) = json.loads(finished.lab.run("status", "--json").out)

    assert row["simulated"] is True
    assert row["trials"] == len(trials)
    assert row["measured"] == sum(trial["outcome"] == "measured" for trial in trials)
    assert row["confirmations"] == sum(trial["phase"] == "confirm" for trial in trials)
    assert set(row["best"]) == WORKLOADS
    assert row["paths"]["folder"] == str(finished.lab.study)
    plain = finished.lab.run("status", "--paths")
    assert f"(simulated): {len(trials)} launches" in plain.out
    assert str(finished.lab.study / "results.jsonl") in plain.out
    assert finished.lab.run("status", "elsewhere").out == ""


def test_the_raw_requests_of_every_cell_are_kept(finished: Finished) -> None:
    for trial in finished.lab.trials():
        folder = finished.lab.study / "trials" / str(trial["number"])
        files = {path.name.removesuffix(".jsonl.gz"): path for path in folder.glob("ctx*")}
        assert {name.partition("-again")[0] for name in files} == {cell["key"] for cell in trial["cells"]}
        for cell in trial["cells"]:  # of one that was measured again, the requests of every measurement
            kept = [gzip.decompress(path.read_bytes()).splitlines() for name, path in files.items() if name.startswith(cell["key"])]
            assert len([json.loads(line) for lines in kept for line in lines]) >= cell["requests"]
        with gzip.open(folder / "server.log.gz", "rt") as stream:
            assert "The server is fired up and ready to roll!" in stream.read()


def test_the_same_command_again_launches_nothing_and_writes_the_same_bytes(finished: Finished, copy: Lab) -> None:
    before = copy.trials()

    again = copy.tune("--space", "sglang-kimi-k26", *MATRIX, trials=3, rounds=1)

    assert again.code == 0, again.err
    assert "resuming study" in again.err
    assert copy.trials() == before
    assert copy.documents() == finished.documents


def test_recommend_needs_no_host_and_prints_the_same(finished: Finished) -> None:
    assert not finished.lab.servers()

    printed = finished.lab.run("recommend", finished.lab.host_file)
    one = finished.lab.run("recommend", finished.lab.host_file, "--workload", "latency")
    as_json = finished.lab.run("recommend", finished.lab.host_file, "--json")

    assert list(yaml.safe_load_all(printed.out)) == [loaded(finished)[name] for name in ("latency", "long-context", "throughput")]
    assert one.out == finished.documents["latency"].decode()
    told = json.loads(as_json.out)
    assert {name: told[name]["spec"]["argv"] for name in told} == {
        name: document["spec"]["argv"] for name, document in loaded(finished).items()
    }


def test_a_dry_run_shows_the_plan_and_touches_nothing(lab: Lab) -> None:
    before = sorted(lab.folder.rglob("*"))

    shown = lab.tune("--space", "sglang-kimi-k26", *MATRIX, "--dry-run", trials=9, rounds=2)
    as_json = lab.tune("--space", "sglang-kimi-k26", *MATRIX, "--dry-run", "--json", trials=9, rounds=2)

    assert (shown.code, as_json.code) == (0, 0), shown.err
    plan = json.loads(as_json.out)
    assert plan["simulated"] is True
    assert [launch["phase"] for launch in plan["launches"]][:2] == ["baseline", "control"]
    assert plan["searched"] == 9 - len(plan["launches"])
    assert {f"ctx{cell['context']}-c{cell['concurrency']}-out16" for cell in plan["cells"]} == CELLS
    for argument in plan["launches"][0]["argv"][-6:]:
        assert argument in shown.out
    assert sorted(lab.folder.rglob("*")) == before
    assert lab.run("status").out == ""


def test_events_are_json_lines_and_the_result_is_json(lab: Lab) -> None:
    night: Night = lab.start_night("--budget", "10m")
    done = night.end()

    assert done.code == 0, done.err
    assert night.said == []
    kinds = [event["event"] for event in night.events]
    assert {"StudyOpened", "TrialStarted", "StageReached", "CellMeasured", "TrialEnded"} <= set(kinds)
    assert all(event["simulated"] for event in night.events[kinds.index("StudyOpened") :])
    ended = [event for event in night.events if event["event"] == "TrialEnded"]
    assert [event["outcome"]["outcome"] for event in ended] == ["measured"]
    result = json.loads(done.out)
    assert {item["metadata"]["workload"] for item in result["recommendations"]} == WORKLOADS


def test_a_run_without_trials_goes_on_until_its_time_is_up(lab: Lab) -> None:
    arguments = lab.tune_arguments("--budget", "12s", "--space", "sglang-kimi-k26")  # thousands of configurations: only time ends it
    del arguments[arguments.index("--trials") : arguments.index("--trials") + 2]

    done = lab.run(*arguments)

    assert done.code == 0, done.err
    assert len(lab.trials()) >= 1
    assert set(lab.documents()) == WORKLOADS


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)], ids=lambda command: " ".join(command) or "autotuner")
def test_every_command_has_help(lab: Lab, command: tuple[str, ...]) -> None:
    shown = lab.run(*command, "--help")

    assert shown.code == 0
    assert shown.out.startswith(f"Usage: autotuner{' ' if command else ''}{' '.join(command)} [OPTIONS]")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tune", "lab.yaml"), "error: missing option '--space'"),
        (("tune", "lab.yaml", "--space", "small.yaml", "--trials", "0"), "error: invalid value for '--trials'"),
        (("tune", "lab.yaml", "--space", "small.yaml", "--trails", "3"), "error: no such option '--trails'"),
        (("tune", "lab.yaml", "--space", "small.yaml", "--contexts", "60,many"), "`60,many` is not a list of whole numbers above zero"),
        (("tune", "lab.yaml", "--space", "small.yaml", "--until", "25:00"), "error: `25:00` is not a time of day"),
        (("tune", "lab.yaml", "--space", "small.yaml", "--budget", "9 hours"), "error: `9 hours` is not a duration"),
        (("tnue",), "error: no such command `tnue`\nhint: did you mean `autotuner tune`?"),
        (("trials", "nowhere"), "error: "),
    ],
)
def test_what_cannot_be_understood_ends_with_2_and_a_hint(lab: Lab, arguments: tuple[str, ...], message: str) -> None:
    done = lab.run(*arguments)

    assert done.code == 2
    assert message in done.err
    assert len(done.hints) == 1
    assert not (lab.state / "studies").exists()
