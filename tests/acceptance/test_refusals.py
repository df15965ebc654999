"""What must not be touched is not: foreign processes, hosts that are taken, studies of something else."""

from __future__ import annotations

import json
import signal
import sqlite3
from pathlib import Path

from tests.acceptance.conftest import MATRIX
from tests.acceptance.lab import GPU, TINY, Done, Lab


def assert_refused(done: Done, message: str, hint: str) -> None:
    assert done.code == 4, done.err
    assert len(done.errors) == 1
    assert message in done.errors[0]
    assert hint in done.hints[-1]


def test_a_foreign_process_on_the_port_is_named_and_left_alone(lab: Lab) -> None:
    foreign = lab.start_foreign()

    for production in ("none", "auto"):
        lab.write_host(production=production)
        assert_refused(lab.tune(), f"(pid {foreign.pid})", "it is never stopped from here")

    assert foreign.poll() is None
    assert lab.status("/") == 200
    assert not lab.state.exists()


def test_what_serves_is_not_stopped_where_the_document_says_that_nothing_does(lab: Lab) -> None:
    argv = lab.produce()

    assert_refused(lab.tune(), f"serves on port {lab.port}, but service.production is none", "production: auto")

    lab.assert_as_before(argv)


def test_a_second_tuner_is_refused_with_the_name_of_the_first_which_goes_on(lab: Lab) -> None:
    first = lab.start_night(trials=2)
    first.wait_for(event="StageReached", stage="ready")
    first.process.send_signal(signal.SIGSTOP)  # else it may be done before the second one has begun

    second = lab.tune("--new-study", trials=1)

    first.process.send_signal(signal.SIGCONT)
    assert_refused(second, f"(pid {first.process.pid})", "wait until that has ended")
    done = first.end()
    assert done.code == 0, done.err
    assert [trial["outcome"] for trial in lab.trials()] == ["measured", "measured"]


def test_trials_of_another_machine_are_not_mixed_and_a_new_study_is_begun_on_request(copy: Lab) -> None:
    before = copy.trials()
    copy.write_host(gpu={**GPU, "count": 8, "driver": "999.1"})

    refused = copy.tune("--space", "sglang-kimi-k26", *MATRIX)

    assert_refused(refused, "driver was 580.0, is 999.1", "--new-study")
    assert copy.trials() == before

    begun = copy.tune("--space", "sglang-kimi-k26", "--new-study", *TINY)

    assert begun.code == 0, begun.err
    assert [path.name for path in sorted((copy.state / "studies").iterdir())] == [
        "lab--simulated-kimi-k2.6--sglang-kimi-k26",
        "lab--simulated-kimi-k2.6--sglang-kimi-k26.2",
    ]
    assert len(copy.trials()) == 1  # the newest study of the host
    named = copy.run("trials", "lab--simulated-kimi-k2.6--sglang-kimi-k26", "--json")
    assert [json.loads(line) for line in named.out.splitlines()] == before


def test_a_search_space_that_changed_is_not_mixed_with_the_old_one(copy: Lab, finished: object) -> None:
    shipped = Path(__file__).parents[2] / "search_spaces" / "sglang-kimi-k26.yaml"
    changed = copy.folder / "sglang-kimi-k26.yaml"
    changed.write_text(shipped.read_text().replace("choices: [32, 48,", "choices: [32, 40,"))
    assert changed.read_text() != shipped.read_text()
    before = copy.trials()

    refused = copy.tune("--space", changed, *MATRIX)

    assert_refused(refused, "the search space sglang-kimi-k26 has changed since", "--new-study")
    assert copy.trials() == before


def test_a_study_of_a_newer_version_is_not_guessed_at(copy: Lab) -> None:
    meta = copy.study / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"schema": 9, "unheard": True}))
    before = {path: path.read_bytes() for path in copy.study.rglob("*") if path.is_file()}

    for done in (copy.tune("--space", "sglang-kimi-k26", *MATRIX), copy.run("status"), copy.run("recommend", copy.host_file)):
        assert_refused(done, "written by a newer autotuner (schema 9, this one reads 1)", "upgrade autotuner")

    assert {path: path.read_bytes() for path in copy.study.rglob("*") if path.is_file()} == before


def test_a_database_of_a_newer_version_is_not_guessed_at(copy: Lab) -> None:
    database = copy.study / "study.db"
    with sqlite3.connect(database) as connection:
        connection.execute("update version_info set schema_version = 99")
        connection.execute("update alembic_version set version_num = 'v99.0.0.a'")
    connection.close()
    before = copy.trials()

    refused = copy.tune("--space", "sglang-kimi-k26", *MATRIX, trials=9)

    assert_refused(refused, "written by another version of Optuna", "--new-study")
    assert copy.trials() == before


def test_a_lost_database_costs_no_launch(copy: Lab) -> None:
    (copy.study / "study.db").unlink()
    before = copy.trials()

    again = copy.tune("--space", "sglang-kimi-k26", *MATRIX, trials=3, rounds=1)

    assert again.code == 0, again.err
    assert copy.trials() == before


def test_a_flag_that_the_build_does_not_have_is_refused_once_and_before_the_first_launch(lab: Lab) -> None:
    lab.write_space(raw={"schedule-polcy": "fcfs"})
    said = "has no flag --schedule-polcy (raw of search space small), did you mean --schedule-policy?"

    assert_refused(lab.tune(), said, "raw of search space small")
    assert_refused(lab.tune("--dry-run"), said, "raw of search space small")
    doctor = lab.run("doctor", lab.host_file, "--space", lab.space_file)

    assert (doctor.code, said in doctor.out) == (1, True)
    assert not lab.state.exists()
