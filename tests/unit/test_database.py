"""Optuna's database is locked, read-only, damaged or gone: the run goes on, says so once, and the database catches up."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from sqlalchemy.pool import NullPool

from autotuner.errors import Refused
from autotuner.model.events import Phase
from autotuner.records import RecordStore
from autotuner.study.study import Study
from tests import builders as b

LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(sys.argv[2])
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path):
    return RecordStore(b.folder(tmp_path))


def opened(store):
    return Study(store, space=b.space(), facts=b.facts().names(), workloads=b.WORKLOADS, busy_s=0.1)


def config(number):
    return b.config(spec="dflash", block=4 + number, window="none")


def launch(study, number):
    study.start(number, config(number), Phase.SEARCH)
    study.tell(b.measured(number, config(number), (100.0 + number, 50.0, 3000.0)))


def in_database(store):
    """Launch and state of every trial, as Optuna reads the file."""
    storage = RDBStorage(f"sqlite:///{store.database}", engine_kwargs={"poolclass": NullPool})
    (name,) = optuna.get_all_study_names(storage)
    trials = optuna.load_study(study_name=name, storage=storage).get_trials(deepcopy=False)
    return [(trial.user_attrs["launch"], trial.state) for trial in trials]


def complete(*numbers):
    return [(number, TrialState.COMPLETE) for number in numbers]


@contextlib.contextmanager
def locked(path, how="BEGIN EXCLUSIVE") -> Iterator[None]:
    """Another process has the database."""
    with subprocess.Popen([sys.executable, "-c", LOCK, str(path), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"locked\n"
        yield
        other.stdin.close()
        other.wait()


@pytest.mark.parametrize("how", ["BEGIN EXCLUSIVE", "BEGIN IMMEDIATE"])
def test_a_database_that_another_process_locks_is_told_once_and_catches_up_at_the_next_success(store, how):
    study = opened(store)
    launch(study, 0)
    assert study.take_notices() == ()
    with locked(store.database, how):
        for number in (1, 2, 3):
            launch(study, number)
        (told,) = study.take_notices()
        assert "database is locked; the run goes on" in told
        assert [record.number for record in store.trials()] == [0, 1, 2, 3]
    launch(study, 4)
    assert study.take_notices() == ()
    assert in_database(store) == complete(0, 1, 2, 3, 4)


def test_a_database_that_is_locked_for_ever_catches_up_at_the_next_start(store):
    launch(opened(store), 0)
    with locked(store.database):
        study = opened(store)
        assert [record.number for record in study.records] == [0]
        assert study.propose() is not None
        launch(study, 1)
        study.start(2, config(2), Phase.SEARCH)  # and killed
    assert [item.config for item in opened(store).requeued] == [config(2)]
    assert in_database(store) == complete(0, 1)


def test_a_launch_that_ended_while_the_database_was_locked_is_there_once(store):
    study = opened(store)
    study.start(0, config(0), Phase.SEARCH)
    with locked(store.database):
        study.tell(b.measured(0, config(0), (100.0, 50.0, 3000.0)))
    launch(study, 1)
    assert in_database(store) == complete(0, 1)


def test_a_database_that_is_deleted_during_a_run_is_made_anew(store):
    study = opened(store)
    launch(study, 0)
    study.start(1, config(1), Phase.SEARCH)
    store.database.unlink()
    study.tell(b.measured(1, config(1), (101.0, 50.0, 3000.0)))
    assert in_database(store) == complete(0, 1)
    assert study.take_notices() == ()


def spoil_bytes(path):
    path.write_bytes(b"no database at all, " * 100)


def spoil_tables(path):
    with sqlite3.connect(path) as connection:
        connection.execute("drop table trials")
    connection.close()


def spoil_pages(path):
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(bytes(data))


SPOIL = (spoil_bytes, spoil_tables, spoil_pages)


@pytest.mark.parametrize("spoil", SPOIL)
def test_a_damaged_database_is_moved_aside_and_made_anew_at_the_start(store, spoil):
    launch(opened(store), 0)
    spoil(store.database)
    store.folder.joinpath("study.db-journal").touch()
    study = opened(store)
    (told,) = study.take_notices()
    assert "it is study.db.damaged-1 now and was made anew from results.jsonl" in told
    assert store.folder.joinpath("study.db.damaged-1").exists()
    assert in_database(store) == complete(0)


@pytest.mark.parametrize("spoil", SPOIL)
def test_a_database_that_is_damaged_during_a_run_is_made_anew(store, spoil):
    study = opened(store)
    launch(study, 0)
    study.start(1, config(1), Phase.SEARCH)
    spoil(store.database)
    study.tell(b.measured(1, config(1), (101.0, 50.0, 3000.0)))
    assert in_database(store) == complete(0, 1)


def test_a_database_with_launches_that_the_records_lack_is_made_anew(store):
    study = opened(store)
    for number in range(3):
        launch(study, number)
    results = store.folder / "results.jsonl"
    results.write_bytes(b"".join(results.read_bytes().splitlines(keepends=True)[:2]))
    (told,) = opened(store).take_notices()
    assert "it holds launches that the records do not have" in told
    assert in_database(store) == complete(0, 1)


def test_a_folder_in_place_of_the_database_does_not_end_the_run(store):
    store.database.mkdir()
    study = opened(store)
    launch(study, 0)
    (told,) = study.take_notices()
    assert str(store.database) in told
    assert [record.number for record in store.trials()] == [0]


def test_only_the_user_may_read_records_and_database(store):
    old = os.umask(0)
    try:
        study = opened(store)
        launch(study, 0)
        store.write_cell(0, "ctx60-c1-out8", ())
    finally:
        os.umask(old)
    files = [path for path in store.folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {
        "study.db",
        "results.jsonl",
        "results.jsonl.reserve",
        "started.jsonl",
        "ctx60-c1-out8.jsonl.gz",
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


@pytest.mark.parametrize("name", ["study.db", "results.jsonl", "results.jsonl.reserve", "started.jsonl", "lock", "trials"])
def test_a_symbolic_link_is_not_followed(store, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    store.folder.joinpath(name).symlink_to(elsewhere)
    with pytest.raises(Refused, match=f"{name} is a symbolic link"), store.lock("bob@box (pid 7)"):
        pass
    with pytest.raises(Refused, match="symbolic link"):
        opened(store)
    assert not elsewhere.exists()


class Canary:
    """Leaves a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_no_attribute_of_a_trial_is_ever_unpickled(store, tmp_path):
    import pickle

    study = opened(store)
    launch(study, 0)
    text = pickle.dumps(Canary(tmp_path / "ran")).hex()
    with sqlite3.connect(store.database) as connection:
        for key in ("cma:optimizer:0", "cma:optimizer", "cma:n_restarts"):
            connection.execute(
                "insert into trial_system_attributes (trial_id, key, value_json) select trial_id, ?, ? from trials", (key, f'"{text}"')
            )
    connection.close()
    study = opened(store)
    for number in range(1, 12):
        launch(study, number)
        assert study.propose() is not None
    assert not (tmp_path / "ran").exists()
