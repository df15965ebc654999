"""Study: the trials of one (host, model, space), in Optuna's terms, derived from the records."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial

from autotuner.decide.objective import slo_excess, workload_value
from autotuner.errors import AutotunerError, Refused
from autotuner.model.configuration import Configuration
from autotuner.model.document import Scalar
from autotuner.model.events import Phase
from autotuner.model.space import SearchSpace
from autotuner.model.trial import TrialRecord
from autotuner.model.workload import Workload
from autotuner.records import RecordStore
from autotuner.study.codec import Facts, distribution, parameters_of
from autotuner.study.sampling import Proposer

_DISK = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_NOMEM")
"""Names of what SQLite says of a disk or a machine that refuses; the others say that the file is no sound database of Optuna's."""
_NUMBER, _PHASE, _DIGEST = "launch", "phase", "configuration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    """A launch that a dead process left unfinished."""

    config: Configuration
    phase: Phase


class Study:
    """Asks for configurations and is told outcomes. One process at a time (the host's lease sees to that)."""

    def __init__(
        self, store: RecordStore, *, space: SearchSpace, facts: Facts, workloads: tuple[Workload, ...], seed: int = 0, driver: str = ""
    ) -> None:
        """Open the study in ``store``, making or rebuilding Optuna's side of it.

        Trials that a dead process left running are finished: told where the record exists, else failed and listed in ``requeued``.
        Raises ``Refused`` when a newer Optuna wrote the database, ``AutotunerError`` when it cannot be opened.
        """
        self.store = store
        self.workloads = workloads
        self.space = space
        self.driver = driver
        self._facts = facts
        self._records = list(store.trials())
        self._directions = [StudyDirection.MAXIMIZE if workload.maximize else StudyDirection.MINIMIZE for workload in workloads]
        self._study = self._open()
        self._live: dict[int, int] = {}
        self.requeued = self._settle()
        self._rebuild()
        self._proposer = Proposer(space, facts, self._directions, seed=seed + len(self._records))
        for trial in self._study.get_trials(deepcopy=False):
            self._proposer.learn(trial)

    @property
    def records(self) -> tuple[TrialRecord, ...]:
        """Every launch so far, in order."""
        return tuple(self._records)

    @property
    def next_number(self) -> int:
        """The number that the next launch gets."""
        return max((record.number for record in self._records), default=-1) + 1

    def propose(self, also_known: frozenset[str] = frozenset()) -> Configuration | None:
        """A legal configuration that was never launched, or ``None`` when the space is used up."""
        known = {record.config.digest for record in self._records if self.counts(record)} | also_known
        return self._proposer.propose(lambda config: config.digest in known)

    def start(self, number: int, config: Configuration, phase: Phase) -> None:
        """Note that a launch begins, so that a killed process leaves a trace. Confirmations are no trials of Optuna's."""
        params = None if phase is Phase.CONFIRM else parameters_of(config, self.space, self._facts)
        if params is None:
            return
        with _storage_errors(self.store):
            self._study.add_trial(
                create_trial(
                    state=TrialState.RUNNING,
                    params=params,
                    distributions=self._distributions(params),
                    user_attrs={_NUMBER: number, _PHASE: phase.value, _DIGEST: config.digest},
                )
            )
            self._live[number] = self._study.get_trials(deepcopy=False)[-1].number

    def abandon(self, number: int) -> None:
        """The launch was interrupted; it leaves no result."""
        asked = self._live.pop(number, None)
        if asked is not None:
            with _storage_errors(self.store):
                self._study.tell(asked, state=TrialState.FAIL)

    def tell(self, record: TrialRecord) -> None:
        """Keep the outcome of a launch: first the record, fsynced, then Optuna."""
        self.store.append(record)
        self._records.append(record)
        asked = self._live.pop(record.number, None)
        if asked is not None:
            with _storage_errors(self.store):
                self._finish(asked, record)
                self._proposer.learn(self._study.get_trials(deepcopy=False)[asked])

    def counts(self, record: TrialRecord) -> bool:
        """Whether a launch answers what this run asks: it failed for good, or it was measured on every cell of the workloads.

        A study may hold launches that were measured on other cells, of an earlier run with another matrix.
        """
        measured = {cell.key for cell in record.cells}
        wanted = {cell.key for workload in self.workloads for cell in workload.cells}
        return record.outcome == "infeasible" or (record.measured and (wanted <= measured or record.censored))

    def values(self, record: TrialRecord) -> dict[str, float]:
        """Workload → value of a measured launch, in the objective's own unit; a workload without its cells is absent."""
        found = {workload.name: workload_value(workload, record.cells) for workload in self.workloads} if record.measured else {}
        return {name: value for name, value in found.items() if value is not None}

    def _open(self) -> optuna.Study:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with _storage_errors(self.store):
            # SQLite keeps its durable defaults: DELETE journal, FULL synchronisation.
            storage = RDBStorage(f"sqlite:///{self.store.database}", engine_kwargs={"connect_args": {"timeout": 30}})
            study = optuna.create_study(
                study_name=_objective_digest(self.workloads), storage=storage, directions=self._directions, load_if_exists=True
            )
            study.set_user_attr("workloads", [workload.name for workload in self.workloads])
        return study

    def _settle(self) -> tuple[Requeued, ...]:
        """Finish what a dead process left running: Optuna's heartbeat does nothing with ask and tell."""
        by_number = {record.number: record for record in self._records}
        requeued = []
        with _storage_errors(self.store):
            for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING, TrialState.WAITING)):
                record = by_number.get(trial.user_attrs.get(_NUMBER, -1))
                if record is not None and record.config.digest == trial.user_attrs.get(_DIGEST):
                    self._finish(trial.number, record)
                    continue
                self._study.tell(trial.number, state=TrialState.FAIL)
                values = {**self.space.fixed, **trial.params}
                requeued.append(Requeued(config=Configuration.of(values), phase=Phase(trial.user_attrs.get(_PHASE, Phase.SEARCH.value))))
        return tuple(requeued)

    def _rebuild(self) -> None:
        """Give Optuna the launches that it does not know: a study with other workloads, or a lost database, costs no launch."""
        known = {trial.user_attrs.get(_DIGEST) for trial in self._study.get_trials(deepcopy=False)}
        for record in self._records:
            if record.phase is Phase.CONFIRM or record.outcome not in ("measured", "infeasible") or record.config.digest in known:
                continue
            self.start(record.number, record.config, record.phase)
            asked = self._live.pop(record.number, None)
            if asked is not None:
                self._finish(asked, record)

    def _finish(self, asked: int, record: TrialRecord) -> None:
        if record.outcome in ("transient", "host-broken"):
            self._study.tell(asked, state=TrialState.FAIL)
            return
        trial = optuna.trial.Trial(self._study, self._study.get_trials(deepcopy=False)[asked]._trial_id)  # noqa: SLF001 - no public way
        values = self.values(record)
        missing = [workload.name for workload in self.workloads if workload.name not in values]
        if record.failure is not None:
            trial.set_constraint(record.failure.kind, 1.0)
        elif missing:
            trial.set_constraint("no-value:" + ",".join(missing), 1.0)
        else:
            for workload in self.workloads:
                for name, excess in slo_excess(workload, record.cells).items():
                    trial.set_constraint(f"{workload.name}:{name}", excess)
            self._study.tell(trial, [values[workload.name] for workload in self.workloads])
            return
        # Infeasible is told as pruned with a constraint, never as a score: samplers ignore failed trials and believe scores.
        self._study.tell(trial, state=TrialState.PRUNED)

    def _distributions(self, params: Mapping[str, Scalar]) -> dict[str, BaseDistribution]:
        return {name: distribution(self.space.parameters[name]) for name in params}


def space_digest(space: SearchSpace) -> str:
    """What must be equal for trials to belong to one search space: everything but names and texts."""
    content = space.model_dump(mode="json", include={"engine", "dialect", "parameters", "constraints", "fixed", "raw"})
    return "sha256:" + hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _objective_digest(workloads: tuple[Workload, ...]) -> str:
    content = [workload.model_dump(mode="json", exclude={"metadata": {"description"}}) for workload in workloads]
    return "objectives-" + hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


class _storage_errors:  # noqa: N801 - reads as a statement: with _storage_errors(store)
    """Maps what Optuna and its database raise."""

    def __init__(self, store: RecordStore) -> None:
        self._path = store.database

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError) and "optuna" in str(error) and "schema" in str(error):
            raise Refused(
                f"{self._path}: written by another version of Optuna: {error}", hint="upgrade optuna, or start over with --new-study"
            ) from error
        if error is not None and (isinstance(error, optuna.exceptions.StorageInternalError) or _is_sqlalchemy(error)):
            cause = getattr(error.__cause__ or error, "orig", None) or error.__cause__ or error
            raise AutotunerError(f"{self._path}: {cause}", hint=self._hint(cause)) from error

    def _hint(self, cause: object) -> str:
        if getattr(cause, "sqlite_errorname", "SQLITE_FULL").startswith(_DISK):
            return "free some space or mend the disk, then start the same command again: results are safe in results.jsonl beside it"
        # A journal that stays behind would be played back into the new database.
        files = [path for path in (self._path, self._path.with_name(f"{self._path.name}-journal")) if path.exists()]
        moves = " && ".join(shlex.join(["mv", str(path), f"{path}.damaged"]) for path in files)
        return f"move it aside with `{moves}`, then start the same command again: it is rebuilt from results.jsonl beside it"


def _is_sqlalchemy(error: BaseException) -> bool:
    return type(error).__module__.startswith("sqlalchemy")
