"""What a study was told survives whatever happens to the process, the database and the disk: nothing is lost, nothing counts twice."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from autotuner.errors import AutotunerError
from autotuner.model.events import Phase
from autotuner.model.outcome import LaunchFacts
from autotuner.records import RecordStore
from autotuner.study.launches import key_of
from tests import builders as b
from tests.integration import studying

ROOT = Path(__file__).parents[2]
KILLS, SEED = 50, 20260102
NOBODY = 65534
MODES_COUNT = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
"""Runs a command of root's for whom modes count like for anybody."""


def run(command: str, folder: Path, acknowledged: Path, *numbers: int, by: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """What the process said, line by line."""
    done = subprocess.run(
        [*by, sys.executable, "-m", "tests.integration.studying", command, str(folder), str(acknowledged), *map(str, numbers)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert not done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def acknowledged_in(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def assert_nothing_lost_and_nothing_twice(store: RecordStore, acknowledged: Path) -> None:
    """The log has everything that was acknowledged; the database has every launch of the log once, and nothing that did not end."""
    lines = [json.loads(line) for line in (store.folder / "results.jsonl").read_bytes().splitlines()]
    numbers = [line["number"] for line in lines]
    assert numbers == list(range(len(numbers)))
    assert set(acknowledged_in(acknowledged)) <= set(numbers)
    assert len(set(acknowledged_in(acknowledged))) == len(acknowledged_in(acknowledged))

    trials = studying.in_database(store)
    assert {trial.state for trial in trials} <= {TrialState.COMPLETE, TrialState.FAIL}
    assert all(trial.user_attrs["cause"] for trial in trials if trial.state is TrialState.FAIL)
    complete = Counter(key_of(trial) for trial in trials if trial.state is TrialState.COMPLETE)
    measured = [record for record in store.trials() if record.measured]
    assert complete == {(record.number, record.config.digest): 1 for record in measured}
    values = [trial.value for trial in trials if trial.state is TrialState.COMPLETE]
    assert sorted(values) == pytest.approx([record.cells[0].metrics["user_tok_s"] for record in measured])


def test_fifty_kills_at_random_instants_around_tell_lose_nothing_and_count_nothing_twice(tmp_path: Path) -> None:
    store, acknowledged = RecordStore(tmp_path / "study"), tmp_path / "acknowledged"

    kills = run("kill", store.folder, acknowledged, KILLS, SEED)

    assert [kill["signal"] for kill in kills] == [signal.SIGKILL] * KILLS
    # The instants that matter were met: records that the database did not have yet, and trials that were left running.
    assert any(kill["untold"] for kill in kills)
    assert any(kill["running"] for kill in kills)
    assert kills[-1]["kept"] > 0
    told = run("add", store.folder, acknowledged, 2)
    assert len(told) == 2
    assert_nothing_lost_and_nothing_twice(store, acknowledged)
    assert max(Counter(record.config.digest for record in store.trials() if record.measured).values()) == 1


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "study")
    argv = [sys.executable, "-m", "tests.integration.studying", "add", str(store.folder), str(tmp_path / "acknowledged"), "1000000"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline()
        (refused,) = run("add", store.folder, tmp_path / "other", 1)
        assert refused["exit"] == 4
        assert "is being added to by bob@box (pid " in refused["error"]
        holder.kill()
    assert len(run("add", store.folder, tmp_path / "acknowledged", 1)) == 1
    assert_nothing_lost_and_nothing_twice(store, tmp_path / "acknowledged")


def test_a_read_only_database_is_told_once_and_catches_up_at_the_next_start(tmp_path: Path) -> None:
    store, acknowledged = RecordStore(tmp_path / "study"), tmp_path / "acknowledged"
    by = MODES_COUNT if os.geteuid() == 0 else ()
    run("add", store.folder, acknowledged, 1, by=by)
    store.database.chmod(0o400)

    told = run("add", store.folder, acknowledged, 3, by=by)

    assert [len(line["notices"]) for line in told] == [1, 0, 0]
    assert "readonly database; the run goes on" in told[0]["notices"][0]
    store.database.chmod(0o600)
    run("add", store.folder, acknowledged, 1, by=by)
    assert len(acknowledged_in(acknowledged)) == 5
    assert_nothing_lost_and_nothing_twice(store, acknowledged)


@pytest.mark.host
@pytest.mark.parametrize("name", ["", "study.db", "results.jsonl"])
def test_a_study_of_another_user_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "study"
    run("add", folder, tmp_path / "acknowledged", 1)
    os.chown(folder / name, NOBODY, NOBODY)

    (refused,) = run("add", folder, tmp_path / "acknowledged", 1)

    assert refused["exit"] == 4
    assert f"{folder / name} belongs to nobody, and this is root" in refused["error"]
    assert "run the same command as nobody" in refused["hint"]


Mount = Callable[..., None]


@pytest.fixture
def mount() -> Iterator[Mount]:
    """``mount(8)``; what is mounted ends with the test."""
    made: list[Path] = []

    def mounted(*arguments: str, at: Path) -> None:
        subprocess.run(["mount", *arguments, str(at)], check=True)
        if at not in made:
            made.append(at)

    yield mounted
    for path in made:
        subprocess.run(["umount", "--lazy", str(path)], check=False)


@pytest.mark.host
def test_a_database_on_a_read_only_mount_is_told_once_and_catches_up(tmp_path: Path, mount: Mount) -> None:
    store, acknowledged = RecordStore(tmp_path / "study"), tmp_path / "acknowledged"
    run("add", store.folder, acknowledged, 1)
    mount("--bind", str(store.database), at=store.database)
    mount("-o", "remount,bind,ro", at=store.database)

    told = run("add", store.folder, acknowledged, 3)

    assert [len(line["notices"]) for line in told] == [1, 0, 0]
    subprocess.run(["umount", str(store.database)], check=True)
    run("add", store.folder, acknowledged, 1)
    assert_nothing_lost_and_nothing_twice(store, acknowledged)


def fill(ballast: Path) -> None:
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


@pytest.mark.host
def test_what_was_measured_on_a_disk_that_filled_up_is_kept_and_the_next_launch_is_refused(tmp_path: Path, mount: Mount) -> None:
    disk, acknowledged = tmp_path / "disk", tmp_path / "acknowledged"
    disk.mkdir()
    mount("-t", "tmpfs", "-o", "size=4m", "tmpfs", at=disk)
    store, ballast = RecordStore(disk / "study"), disk / "ballast"
    with store.lock("bob@box"):
        study = studying.opened(store)
        told = []
        for number in range(2):
            study.start(number, studying.config(number), Phase.SEARCH)
            if number == 1:
                fill(ballast)
            record = b.measured(number, studying.config(number), (100.0 + number, 50.0, 3000.0))
            # Longer than what is left of any page that the file has already.
            study.tell(dataclasses.replace(record, launch=LaunchFacts(argv=("server", "x" * 8192))))
            told.append(number)
        assert [record.number for record in store.trials()] == told == [0, 1]
        assert any("launch 1 is kept in results.jsonl.reserve" in text for text in study.take_notices())

        with pytest.raises(AutotunerError, match="No space left on device") as refused:
            study.start(2, studying.config(2), Phase.SEARCH)
        assert refused.value.exit_code == 1
        assert "free some space" in refused.value.hint
    (again,) = run("add", store.folder, acknowledged, 1)  # nor does the next start begin anything
    assert "No space left on device" in again["error"]
    assert [record.number for record in store.trials()] == told

    ballast.unlink()
    assert [line["told"] for line in run("add", store.folder, acknowledged, 1)] == [2]
    assert_nothing_lost_and_nothing_twice(store, acknowledged)
