from __future__ import annotations

import os
import sqlite3

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from sqlalchemy.pool import NullPool

from autotuner.errors import Refused
from autotuner.model.events import Phase
from autotuner.model.legality import violations
from autotuner.model.space import Categorical
from autotuner.records import RecordStore
from autotuner.study.study import Study, _objective_digest
from autotuner.tuner.opening import locate, open_study, study_name
from tests import builders as b

DFLASH = b.config(spec="dflash", block=8, window="none")


@pytest.fixture
def store(tmp_path):
    return RecordStore(b.folder(tmp_path))


def opened(store, workloads=b.WORKLOADS, space=None):
    return Study(store, space=space or b.space(), facts=b.facts().names(), workloads=workloads)


def in_database(store, workloads=b.WORKLOADS):
    """What Optuna reads from the file as it is."""
    storage = RDBStorage(f"sqlite:///{store.database}", engine_kwargs={"poolclass": NullPool})
    return optuna.load_study(study_name=_objective_digest(workloads), storage=storage).get_trials(deepcopy=False)


def test_a_measured_launch_is_told_with_one_value_per_workload(store):
    study = opened(store)
    study.start(0, DFLASH, Phase.SEED)
    study.tell(b.measured(0, DFLASH, (100.0, 50.0, 3000.0), Phase.SEED))
    (trial,) = in_database(store)
    assert trial.state is TrialState.COMPLETE
    assert trial.values == pytest.approx([100.0, 50.0, 3000.0])


def test_an_infeasible_launch_is_pruned_with_a_constraint_and_never_has_a_score(store):
    study = opened(store)
    study.start(0, DFLASH, Phase.SEARCH)
    study.tell(b.failed(0, DFLASH))
    (trial,) = in_database(store)
    assert trial.state is TrialState.PRUNED
    assert trial.values is None
    assert trial.constraints == {"torch-oom": 1.0}


def test_a_launch_without_a_value_for_a_workload_is_no_score_either(store):
    study = opened(store)
    study.start(0, DFLASH, Phase.SEARCH)
    record = b.measured(0, DFLASH, (100.0, 50.0, 3000.0))
    study.tell(type(record)(**{name: getattr(record, name) for name in record.__dataclass_fields__} | {"cells": record.cells[:2]}))
    (trial,) = in_database(store)
    assert trial.state is TrialState.PRUNED
    assert trial.constraints == {"no-value:throughput": 1.0}


def test_retries_used_up_is_a_failed_trial(store):
    study = opened(store)
    study.start(0, DFLASH, Phase.SEARCH)
    study.tell(b.failed(0, DFLASH, outcome="transient"))
    assert in_database(store)[0].state is TrialState.FAIL


def test_proposals_are_legal_active_only_and_never_launched_before(store):
    study, space, facts = opened(store), b.space(), b.facts().names()
    seen = set()
    for number in range(25):
        config = study.propose()
        assert violations(space, config, facts) == ()
        assert ("block" in config) == (config["spec"] == "dflash")
        assert config.digest not in seen
        seen.add(config.digest)
        study.start(number, config, Phase.SEARCH)
        study.tell(b.measured(number, config, (100.0 + number, 50.0, 3000.0)) if number % 3 else b.failed(number, config))
    assert len(in_database(store)) == 25


def test_a_used_up_space_says_so(store):
    small = b.space(
        parameters={"graphs": Categorical(type="categorical", choices=(True, False))},
        constraints=(),
        baseline={},
        seeds=(),
        fixed={"spec": "off"},
    )
    study = opened(store, space=small)
    for number in range(2):
        config = study.propose()
        study.start(number, config, Phase.SEARCH)
        study.tell(b.measured(number, config, (1.0, 2.0, 3.0)))
    assert study.propose() is None


def test_a_launch_that_a_killed_process_left_is_failed_with_its_cause_and_asked_again(store):
    opened(store).start(0, DFLASH, Phase.SEED)
    study = opened(store)
    assert [(item.config, item.phase) for item in study.requeued] == [(DFLASH, Phase.SEED)]
    (trial,) = in_database(store)
    assert (trial.state, trial.user_attrs["cause"]) == (TrialState.FAIL, "the tuner ended during this launch")
    assert [item.config for item in opened(store).requeued] == [DFLASH]  # until it is launched again


def test_a_launch_that_was_lost_twice_is_given_up_with_its_cause_and_never_proposed_again(store):
    small = b.space(parameters={"graphs": Categorical(type="categorical", choices=(True, False))}, fixed={"spec": "off"}, constraints=())
    killer = opened(store, space=small).propose()
    for _ in range(2):
        study = opened(store, space=small)
        study.start(study.next_number, killer, Phase.SEARCH)
    study = opened(store, space=small)
    assert study.requeued == ()
    (record,) = store.trials()
    assert (record.number, record.outcome, record.config) == (0, "transient", killer)
    assert "2 times" in record.failure.cause
    assert [trial.state for trial in in_database(store)] == [TrialState.FAIL] * 2
    assert in_database(store)[-1].user_attrs["cause"] == record.failure.cause
    assert study.propose() not in (killer, None)
    assert len(opened(store, space=small).records) == 1  # said once


def test_a_launch_that_was_interrupted_in_good_order_is_not_lost(store):
    study = opened(store)
    study.start(0, DFLASH, Phase.SEED)
    study.abandon(0, DFLASH, Phase.SEED)
    assert in_database(store)[0].user_attrs["cause"] == "the launch was interrupted"
    assert opened(store).requeued == ()


def test_a_lost_launch_whose_repetition_was_interrupted_is_still_asked_again(store):
    opened(store).start(0, DFLASH, Phase.SEED)
    study = opened(store)
    study.start(0, DFLASH, Phase.SEED)
    study.abandon(0, DFLASH, Phase.SEED)
    assert [item.config for item in opened(store).requeued] == [DFLASH]


def test_a_lost_launch_is_asked_again_without_any_database(store):
    opened(store).start(0, DFLASH, Phase.SEED)
    store.database.unlink()
    assert [item.config for item in opened(store).requeued] == [DFLASH]


def test_a_result_that_was_kept_but_not_told_is_told_at_the_next_start_and_not_asked_again(store):
    opened(store).start(0, DFLASH, Phase.SEED)
    store.append(b.measured(0, DFLASH, (100.0, 50.0, 3000.0), Phase.SEED))  # killed between the record and the telling
    study = opened(store)
    assert study.requeued == ()
    assert [trial.values for trial in in_database(store)] == [pytest.approx([100.0, 50.0, 3000.0])]


def test_the_record_is_on_the_disk_before_optuna_is_told(store, monkeypatch):
    study = opened(store)
    study.start(0, DFLASH, Phase.SEED)
    results, synced, at_tell = store.folder / "results.jsonl", {}, []
    fsync, update = os.fsync, study._database.update

    def noted(descriptor):
        found = os.fstat(descriptor)
        fsync(descriptor)
        synced[found.st_ino] = found.st_size

    def told(*arguments, **named):
        found = results.stat()
        at_tell.append((found.st_size, synced.get(found.st_ino)))
        update(*arguments, **named)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(study._database, "update", told)
    study.tell(b.measured(0, DFLASH, (100.0, 50.0, 3000.0), Phase.SEED))
    ((size, on_disk),) = at_tell
    assert size == on_disk > 0


def test_a_lost_database_is_rebuilt_from_the_records(store):
    study = opened(store)
    study.start(0, DFLASH, Phase.SEED)
    study.tell(b.measured(0, DFLASH, (100.0, 50.0, 3000.0), Phase.SEED))
    study.tell(b.measured(1, DFLASH, (101.0, 51.0, 3001.0), Phase.CONFIRM))
    store.database.unlink()
    opened(store)
    assert [trial.values for trial in in_database(store)] == [pytest.approx([100.0, 50.0, 3000.0])]


def test_other_workloads_make_a_derived_study_over_the_same_cells(store):
    study = opened(store)
    study.start(0, DFLASH, Phase.SEED)
    study.tell(b.measured(0, DFLASH, (100.0, 50.0, 3000.0), Phase.SEED))
    opened(store, b.WORKLOADS[2:])
    assert [trial.values for trial in in_database(store, b.WORKLOADS[2:])] == [pytest.approx([3000.0])]
    assert [trial.values for trial in in_database(store)] == [pytest.approx([100.0, 50.0, 3000.0])]


def test_what_the_space_cannot_express_lives_beside_optuna(store):
    live = type(DFLASH).of({**DFLASH, "mem_fraction": 0.85}, ("--some-flag",))
    study = opened(store)
    study.start(0, live, Phase.BASELINE)
    study.tell(b.measured(0, live, (100.0, 50.0, 3000.0), Phase.BASELINE))
    assert in_database(store) == []
    assert opened(store).records[0].config == live


def test_confirmations_are_no_trials_of_optuna(store):
    study = opened(store)
    study.start(0, DFLASH, Phase.CONFIRM)
    study.tell(b.measured(0, DFLASH, (100.0, 50.0, 3000.0), Phase.CONFIRM))
    assert in_database(store) == []


def test_sqlite_keeps_its_durable_defaults(store):
    opened(store)
    with sqlite3.connect(store.database) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_database_of_a_newer_optuna_is_refused(store):
    opened(store)
    with sqlite3.connect(store.database) as connection:
        connection.execute("UPDATE version_info SET schema_version = 999")
        connection.execute("UPDATE alembic_version SET version_num = 'v99.0.0'")
    connection.close()
    with pytest.raises(Refused, match="another version of Optuna"):
        opened(store)


def opening(tmp_path, **changes):
    host, space = b.host(), changes.pop("space", b.space())
    store = locate(tmp_path, study_name(host, space), new=changes.pop("new", False))
    return open_study(store, host=host, space=space, facts=b.facts(**changes), workloads=b.WORKLOADS, seed=0)


def test_the_same_host_resumes_and_a_driver_patch_does_not_matter(tmp_path):
    assert opening(tmp_path)[2] is False
    study, meta, resumed = opening(tmp_path, driver="580.159.99")
    assert resumed
    assert meta.study == study.store.folder.name == "lab--smol--one-gpu"


def test_another_fingerprint_is_refused_with_the_difference_and_the_way_out(tmp_path):
    opening(tmp_path)
    with pytest.raises(Refused, match=r"driver was 580.159, is 590.1") as caught:
        opening(tmp_path, driver="590.1.0")
    assert "--new-study" in caught.value.hint
    study, _, resumed = opening(tmp_path, driver="590.1.0", new=True)
    assert not resumed
    assert study.store.folder.name.endswith(".2")
    assert opening(tmp_path, driver="590.1.0")[2] is True


def test_a_changed_space_is_refused_but_not_a_changed_text(tmp_path):
    opening(tmp_path)
    assert opening(tmp_path, space=b.space(seeds=()))[2] is True
    with pytest.raises(Refused, match="search space one-gpu has changed"):
        opening(tmp_path, space=b.space(constraints=()))


def test_nothing_of_optuna_is_printed(store, capfd):
    opened(store)
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == optuna.logging.WARNING


def test_results_without_their_meta_file_leave_the_name_to_the_damaged_study(store):
    store.append(b.measured(0, DFLASH, (100.0, 50.0, 3000.0)))
    state = store.folder.parents[1]
    assert locate(state, store.folder.name).folder == store.folder
    assert locate(state, store.folder.name, new=True).folder == store.folder.with_name(f"{store.folder.name}.2")
