"""Database: Optuna's copy of a study. It follows the records, and nothing that is wrong with it ends a run.

It is brought up to date at every launch and at every start. While it is locked, full or read-only it stays behind; when it is damaged, or
holds launches that the records do not have, it is moved aside and made anew.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import optuna
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.pool import NullPool

from autotuner.errors import Refused
from autotuner.study.launches import CAUSE, key_of

LOST = "the tuner ended during this launch"
"""Why a trial that nobody finished has failed."""
BUSY_S = 5.0
"""How long a database that another process has locked is waited for."""
_BUSY_AGAIN_S = 0.5
"""The same once it has been found locked: a launch must not wait for it again and again."""
_LOCKED = ("SQLITE_BUSY", "SQLITE_LOCKED")
_REFUSED = (*_LOCKED, "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_NOMEM", "SQLITE_AUTH")
"""What SQLite says of a disk or a machine that refuses; anything else says that the file is no sound database of Optuna's."""
_DONE = (TrialState.COMPLETE, TrialState.PRUNED)


class Database:
    """The trials of one set of objectives, in the file ``path``."""

    def __init__(
        self, path: Path, *, name: str, directions: Sequence[StudyDirection], workloads: Sequence[str], busy_s: float = BUSY_S
    ) -> None:
        self.path = path
        self._name = name
        self._directions = list(directions)
        self._workloads = list(workloads)
        self._busy_s = busy_s
        self._study: optuna.Study | None = None
        self._seen = False
        self._behind = False
        self._notices: list[str] = []
        optuna.logging.set_verbosity(optuna.logging.WARNING)

    def take_notices(self) -> tuple[str, ...]:
        """What a person should read about the database since this was last asked."""
        found, self._notices = tuple(self._notices), []
        return found

    def update(self, finished: Sequence[FrozenTrial], running: FrozenTrial | None = None, *, cause: str = LOST) -> None:
        """Make the database hold the ``finished`` launches, each once, and the one that is ``running``.

        Any other trial that is not finished fails with ``cause``. Raises ``Refused`` when another version of Optuna wrote the file;
        every other trouble is a notice, once.
        """
        steps = ["anew"] if self._study is not None else []
        steps.append("rebuilt")
        while True:
            try:
                self._bring_up_to_date(finished, running, cause)
            except Refused:
                raise
            except Exception as error:  # noqa: BLE001 - a copy that can be made again: nothing that is wrong with it may end a run
                self._study = None
                if not steps or _sqlite_says(error).startswith(_LOCKED):
                    self._fall_behind(error)
                    return
                if steps.pop(0) == "rebuilt" and not self._move_aside(error):
                    return
            else:
                self._seen, self._behind = True, False
                return

    def _bring_up_to_date(self, finished: Sequence[FrozenTrial], running: FrozenTrial | None, cause: str) -> None:
        study = self._opened()
        wanted = {key_of(trial): trial for trial in finished}
        present = study.get_trials(deepcopy=False)
        done = Counter(key_of(trial) for trial in present if trial.state in _DONE and key_of(trial) is not None)
        if any(key not in wanted or count > 1 for key, count in done.items()):
            msg = "it holds launches that the records do not have"
            raise _NotACopyError(msg)
        known = set(done) | {key_of(trial) for trial in present if trial.state is TrialState.FAIL and _failed(wanted.get(key_of(trial)))}
        for trial in present:
            if trial.state is not TrialState.RUNNING:
                continue
            key = key_of(trial)
            if key in wanted and key not in done:
                _finish(study, trial, wanted[key])
                known.add(key)
            elif running is not None and key == key_of(running):
                running = None
            else:
                _fail(study, trial, cause)
        for key, trial in wanted.items():
            if key not in known:
                study.add_trial(trial)
        if running is not None:
            study.add_trial(running)

    def _opened(self) -> optuna.Study:
        if not self.path.exists():
            self._study = None
        # Made here, so that nobody else may read it and no link is followed.
        os.close(os.open(self.path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        patience = _BUSY_AGAIN_S if self._behind else self._busy_s
        # Optuna tries a locked database again and again: ask first, in one step, whether it can be written.
        with closing(sqlite3.connect(self.path, timeout=min(patience, self._busy_s), isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        if self._study is None:
            self._study = self._open()
        return self._study

    def _open(self) -> optuna.Study:
        try:
            # SQLite keeps its durable defaults: DELETE journal, FULL synchronisation. No connection outlives its use.
            storage = RDBStorage(f"sqlite:///{self.path}", engine_kwargs={"connect_args": {"timeout": self._busy_s}, "poolclass": NullPool})
        except RuntimeError as error:
            if self._seen or "optuna" not in str(error) or "schema" not in str(error):
                raise
            raise Refused(
                f"{self.path}: written by another version of Optuna: {error}", hint="upgrade optuna, or start over with --new-study"
            ) from error
        study = optuna.create_study(study_name=self._name, storage=storage, directions=self._directions, load_if_exists=True)
        if study.user_attrs.get("workloads") != self._workloads:
            study.set_user_attr("workloads", self._workloads)
        return study

    def _fall_behind(self, error: BaseException) -> None:
        if not self._behind:
            self._notices.append(f"{self.path}: {_cause(error)}; the run goes on, results.jsonl beside it has every launch")
        self._behind = True

    def _move_aside(self, error: BaseException) -> bool:
        """Make room for a new database, unless it is the disk that refuses; whether that was done."""
        if isinstance(error, OSError) or _sqlite_says(error).startswith(_REFUSED):
            self._fall_behind(error)
            return False
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists():
            number += 1
        try:
            self.path.rename(aside)
            # A journal that stays behind would be played back into the new database.
            journal = self.path.with_name(f"{self.path.name}-journal")
            if journal.exists():
                journal.rename(aside.with_name(f"{aside.name}-journal"))
        except OSError as refused:
            self._fall_behind(refused)
            return False
        self._notices.append(f"{self.path}: {_cause(error)}; it is {aside.name} now and was made anew from results.jsonl")
        return True


class _NotACopyError(Exception):
    """The database holds what the records do not."""


def _failed(trial: FrozenTrial | None) -> bool:
    return trial is not None and trial.state is TrialState.FAIL


def _finish(study: optuna.Study, trial: FrozenTrial, outcome: FrozenTrial) -> None:
    if outcome.state is TrialState.FAIL:
        _fail(study, trial, outcome.user_attrs[CAUSE])
        return
    told = optuna.trial.Trial(study, trial._trial_id)  # noqa: SLF001 - Optuna offers no public way
    for name, excess in outcome.constraints.items():
        if name not in trial.constraints:  # a killed process may have come so far
            told.set_constraint(name, excess)
    study.tell(told, outcome.values, state=outcome.state)


def _fail(study: optuna.Study, trial: FrozenTrial, cause: str) -> None:
    optuna.trial.Trial(study, trial._trial_id).set_user_attr(CAUSE, cause)  # noqa: SLF001 - Optuna offers no public way
    study.tell(trial.number, state=TrialState.FAIL)


def _sqlite_says(error: BaseException | None) -> str:
    """The name of SQLite's error code, wherever it is wrapped; empty for an error of another kind."""
    while error is not None:
        if isinstance(error, sqlite3.Error):
            return getattr(error, "sqlite_errorname", "")
        inner = getattr(error, "orig", None)
        error = inner if isinstance(inner, BaseException) else error.__cause__
    return ""


def _cause(error: BaseException) -> str:
    inner = error.__cause__ or error
    return str(getattr(inner, "orig", None) or inner)
