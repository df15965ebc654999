"""Study: the trials of one (host, model, space), derived from the records. Optuna's database follows them and is never waited for."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections import Counter
from dataclasses import dataclass

from optuna.study import StudyDirection

from autotuner.model.configuration import Configuration
from autotuner.model.events import Phase
from autotuner.model.outcome import Consequence, Failure, Stage
from autotuner.model.space import SearchSpace
from autotuner.model.trial import TrialRecord
from autotuner.model.workload import Workload
from autotuner.records import Begun, RecordStore
from autotuner.study.codec import Facts
from autotuner.study.database import BUSY_S, LOST, Database
from autotuner.study.launches import Launches
from autotuner.study.sampling import Proposer

_LOST = "lost"
"""Kind of failure of a launch during which the tuner was killed, and killed again when it was repeated."""
_CHANCES = 2
"""Times that a launch may take the tuner with it before it is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    """A launch that a dead process left unfinished."""

    config: Configuration
    phase: Phase


class Study:
    """Asks for configurations and is told outcomes. One process at a time (the lock of the store sees to that)."""

    def __init__(
        self,
        store: RecordStore,
        *,
        space: SearchSpace,
        facts: Facts,
        workloads: tuple[Workload, ...],
        seed: int = 0,
        driver: str = "",
        busy_s: float = BUSY_S,
    ) -> None:
        """Open the study in ``store`` and bring Optuna's side of it up to date, if its database lets that be done.

        Launches that a dead process left unfinished are listed in ``requeued``, once each; one that was lost again is told as failed.
        ``busy_s`` is how long a locked database is waited for. Raises ``Refused`` when a newer Optuna wrote the database or a file of the
        study belongs to another user, ``AutotunerError`` when the disk is full.
        """
        store.prepare()
        self.store = store
        self.workloads = workloads
        self.space = space
        self.driver = driver
        self._records = list(store.trials())
        self._launches = Launches(space, facts, workloads)
        self.requeued = self._settle()
        self._finished = [trial for record in self._records if (trial := self._launches.finished(record)) is not None]
        directions = [StudyDirection.MAXIMIZE if workload.maximize else StudyDirection.MINIMIZE for workload in workloads]
        self._database = Database(
            store.database,
            name=_objective_digest(workloads),
            directions=directions,
            workloads=[workload.name for workload in workloads],
            busy_s=busy_s,
        )
        self._database.update(self._finished)
        # TPE learns from the records, so that no trial attribute in a database is ever believed, let alone unpickled.
        self._proposer = Proposer(space, facts, directions, seed=seed + len(self._records))
        for trial in self._finished:
            self._proposer.learn(trial)

    @property
    def records(self) -> tuple[TrialRecord, ...]:
        """Every launch so far, in order."""
        return tuple(self._records)

    @property
    def next_number(self) -> int:
        """The number that the next launch gets."""
        return max((record.number for record in self._records), default=-1) + 1

    def take_notices(self) -> tuple[str, ...]:
        """What a person should read about records and database since this was last asked."""
        return (*self.store.take_notices(), *self._database.take_notices())

    def propose(self, also_known: frozenset[str] = frozenset()) -> Configuration | None:
        """A legal configuration that was never launched, or ``None`` when the space is used up."""
        known = {record.config.digest for record in self._records if self.counts(record) or lost(record)} | also_known
        return self._proposer.propose(lambda config: config.digest in known)

    def start(self, number: int, config: Configuration, phase: Phase) -> None:
        """Note that a launch begins, so that a killed process leaves a trace. Confirmations are no trials of Optuna's.

        Raises ``AutotunerError`` when the disk has no room for what would be measured.
        """
        self.store.make_ready()
        if phase is Phase.CONFIRM:
            return
        self.store.begin(Begun(number=number, phase=phase, config=config, at=_now()))
        self._database.update(self._finished, self._launches.running(number, config, phase))

    def abandon(self, number: int, config: Configuration, phase: Phase) -> None:
        """The launch was interrupted; it leaves no result."""
        if phase is Phase.CONFIRM:
            return
        self._database.update(self._finished, cause="the launch was interrupted")
        self.store.begin(Begun(number=number, phase=phase, config=config, at=_now(), abandoned=True))

    def tell(self, record: TrialRecord) -> None:
        """Keep the outcome of a launch: first the record, fsynced, then Optuna. Raises ``AutotunerError`` when it cannot be kept."""
        self.store.append(record)
        self._records.append(record)
        trial = self._launches.finished(record)
        if trial is not None:
            self._finished.append(trial)
            self._proposer.learn(trial)
        self._database.update(self._finished)

    def counts(self, record: TrialRecord) -> bool:
        """Whether a launch answers what this run asks: it failed for good, or it was measured on every cell of the workloads.

        A study may hold launches that were measured on other cells, of an earlier run with another matrix.
        """
        measured = {cell.key for cell in record.cells}
        wanted = {cell.key for workload in self.workloads for cell in workload.cells}
        return record.outcome == "infeasible" or (record.measured and (wanted <= measured or record.censored))

    def values(self, record: TrialRecord) -> dict[str, float]:
        """Workload → value of a measured launch, in the objective's own unit; a workload without its cells is absent."""
        return self._launches.values(record)

    def _settle(self) -> tuple[Requeued, ...]:
        """Find what dead processes left unfinished: Optuna's heartbeat does nothing with ask and tell.

        A launch keeps its number until it has an outcome, so that what began under a number without one was lost.
        """
        times: Counter[str] = Counter()
        begun: dict[str, Begun] = {}
        for entry in self.store.begun():
            if entry.number >= self.next_number:
                times[entry.config.digest] += -1 if entry.abandoned else 1
                begun[entry.config.digest] = entry
        for digest, entry in begun.items():
            if times[digest] >= _CHANCES:
                record = _given_up(self.next_number, entry)
                self.store.append(record)
                self._records.append(record)
        return tuple(Requeued(config=entry.config, phase=entry.phase) for digest, entry in begun.items() if 0 < times[digest] < _CHANCES)


def lost(record: TrialRecord) -> bool:
    """Whether the tuner was killed during this launch, each time that it was tried."""
    return record.failure is not None and record.failure.kind == _LOST


def space_digest(space: SearchSpace) -> str:
    """What must be equal for trials to belong to one search space: everything but names and texts."""
    content = space.model_dump(mode="json", include={"engine", "dialect", "parameters", "constraints", "fixed", "raw"})
    return "sha256:" + hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _given_up(number: int, entry: Begun) -> TrialRecord:
    failure = Failure(
        kind=_LOST,
        cls="env",
        stage=Stage.START,
        consequence=Consequence.TRANSIENT,
        cause=f"{LOST}, {_CHANCES} times: it was killed, or its machine went down",
        remedy="look into the log of this machine (`journalctl -b -1 -e`, `dmesg`) for what ended it",
    )
    return TrialRecord(
        number=number, phase=entry.phase, config=entry.config, outcome="transient", started=entry.at, elapsed_s=0.0, failure=failure
    )


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def _objective_digest(workloads: tuple[Workload, ...]) -> str:
    content = [workload.model_dump(mode="json", exclude={"metadata": {"description"}}) for workload in workloads]
    return "objectives-" + hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
