"""Tuner: baseline → controls → seeds → search → the regression's best → confirmation."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from autotuner import disk
from autotuner.decide.finalists import best_predicted, finalists, scored
from autotuner.decide.objective import ratio
from autotuner.decide.repeats import leading_cells
from autotuner.errors import AutotunerError, NothingFeasible, StopStudy
from autotuner.model.configuration import Configuration
from autotuner.model.events import Listener, Notice, Phase, TrialEnded, TrialStarted
from autotuner.model.facts import HostFacts
from autotuner.model.measurement import CellResult
from autotuner.model.outcome import HostBroken, Interrupted, Transient
from autotuner.model.trial import TrialRecord
from autotuner.model.workload import Cell
from autotuner.runner import Runner, Trial
from autotuner.study.sampling import legal_sample
from autotuner.study.study import Study, lost
from autotuner.tuner.agenda import Planned, opening_moves
from autotuner.tuner.matrix import cells_of, jobs_for
from autotuner.tuner.stop import StopRequest

RETRIES = 2
"""A trial that the wire or the moment broke is tried again this often."""
DISK_PATIENCE_S = 20
"""What fills a disk for a moment (a log, a download) is often gone again before a person could have looked."""
_CANDIDATES = 2000
"""Legal configurations among which the regression looks for its best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How far a run goes. ``trials`` counts every launch but those of the confirmation; ``None`` leaves it to the deadline."""

    trials: int | None
    confirm_rounds: int = 4

    def predicted(self, workloads: int) -> int:
        """Launches that are kept for what the regression thinks best."""
        return workloads if self.trials is None else min(workloads, max(0, (self.trials - 1) // 4))


class Tuner:
    """Drives one study. ``clock`` gives seconds that only ever grow."""

    def __init__(
        self,
        *,
        study: Study,
        runner: Runner,
        facts: HostFacts,
        cells: tuple[Cell, ...],
        live: Configuration | None,
        budget: Budget,
        stop: StopRequest,
        listener: Listener,
        clock: Callable[[], float],
        deadline_s: float | None = None,
        seed: int = 0,
    ) -> None:
        self._study = study
        self._runner = runner
        self._facts = facts
        self._cells = cells
        self._budget = budget
        self._stop = stop
        self._listener = listener
        self._clock = clock
        self._deadline_s = deadline_s
        self._seed = seed
        recorded = next((record.config for record in reversed(study.records) if record.phase is Phase.BASELINE), None)
        self._warn()
        self._moves, notes = opening_moves(study.space, facts.names(), recorded if live is None else live)
        if live is not None and recorded is not None and live != recorded:
            notes.append("what serves today is not the baseline that this study measured; it is measured anew")
        other = sum(record.measured and not study.counts(record) for record in study.records)
        if other:
            notes.append(
                f"{other} launches of this study were measured on other cells (contexts, concurrency, output tokens) and do not count here"
            )
        for note in notes:
            listener(Notice(level="warning", message=note))
        self.baseline = self._moves[0].config

    def run(self) -> None:
        """Launch until the budget is used up. Raises ``Interrupted``, ``StopStudy`` and ``NothingFeasible``."""
        self._explore()
        self._measure_predicted()
        if not any(record.measured for record in self._study.records):
            tried = {record.config for record in self._study.records}
            raise NothingFeasible(
                f"no configuration could be measured, of {len(tried)} that {'was' if len(tried) == 1 else 'were'} tried",
                hint="`autotuner trials` lists each failure with its cause",
            )
        self._confirm()

    # --- exploring ---------------------------------------------------------------------------------------------------------------

    def _explore(self) -> None:
        waiting = [Planned(config=item.config, phase=item.phase) for item in self._study.requeued]
        waiting += [move for move in self._moves if all(move.config != item.config for item in waiting)]
        for move in waiting:
            # Trial 0 is what everything is compared with; anything else that was killed again and again is not tried once more.
            if move.phase is not Phase.BASELINE and any(lost(record) and record.config == move.config for record in self._study.records):
                continue
            if not self._launched(move.config, confirm=False) and self._room(keep=0):
                self._launch(move.config, move.phase, self._cells)
        keep = self._budget.predicted(len(self._study.workloads))
        while self._room(keep=keep):
            config = self._study.propose()
            if config is None:
                self._listener(Notice(level="info", message="every legal configuration has been launched"))
                return
            self._launch(config, Phase.SEARCH, self._cells)

    def _measure_predicted(self) -> None:
        """Launch what the regression thinks best for each workload: a prediction is measured before it may be recommended."""
        done = sum(record.phase is Phase.PREDICTED for record in self._counted)
        candidates = legal_sample(self._study.space, self._facts.names(), count=_CANDIDATES, seed=self._seed)
        for workload in self._study.workloads[done:]:
            if not self._room(keep=0):
                return
            guess, _ = best_predicted(workload, self._study.records, candidates, seed=self._seed)
            if guess is not None:
                self._launch(guess.config, Phase.PREDICTED, self._cells)

    def _room(self, *, keep: int) -> bool:
        """Whether another exploring launch fits, with ``keep`` launches and the confirmation still to come."""
        self._stop.check()
        if self._budget.trials is not None and self._explored() + keep >= self._budget.trials:
            return False
        if self._deadline_s is None:
            return True
        launches = 1 + keep + self._confirmations_left()
        return self._clock() + launches * self._launch_s(len(self._cells)) <= self._deadline_s

    def _explored(self) -> int:
        return sum(record.phase is not Phase.CONFIRM for record in self._counted)

    @property
    def _counted(self) -> list[TrialRecord]:
        """The launches that answer what this run asks, and those that were given up; one that was lost with its tuner is no launch."""
        return [record for record in self._study.records if (self._study.counts(record) or not record.measured) and not lost(record)]

    # --- confirming --------------------------------------------------------------------------------------------------------------

    def line_up(self) -> list[Configuration]:
        """Baseline first, then every finalist; empty when nothing beat the baseline."""
        wanted = [config for workload in self._study.workloads for config in finalists(workload, self._study.records)]
        others = [config for config in dict.fromkeys(wanted) if config != self.baseline]
        return [self.baseline, *others] if others and self._runs(self.baseline) else others

    def _confirm(self) -> None:
        line_up = self.line_up()
        # A launch costs far more than a cell: every finalist is measured for all workloads, which also says how launches vary.
        cells = cells_of(self._study.workloads)
        for number in range(self._budget.confirm_rounds):
            # Back and forth, so that a host that steadily warms up or speeds up favours nobody: it cancels from round to round.
            for config in line_up if number % 2 == 0 else line_up[::-1]:
                if self._launched(config, confirm=True) > number:
                    continue
                self._stop.check()
                if self._deadline_s is not None and self._clock() + self._launch_s(len(cells)) > self._deadline_s:
                    self._listener(
                        Notice(level="warning", message="out of time: the confirmation is incomplete; the same command completes it")
                    )
                    return
                self._launch(config, Phase.CONFIRM, cells)

    def _confirmations_left(self) -> int:
        line_up = len(self.line_up()) or 1 + len(self._study.workloads)
        done = sum(record.phase is Phase.CONFIRM for record in self._counted)
        return max(0, line_up * self._budget.confirm_rounds - done)

    def _runs(self, config: Configuration) -> bool:
        return any(record.measured and record.config == config for record in self._study.records)

    def _launched(self, config: Configuration, *, confirm: bool) -> int:
        """Launches of a configuration that have an outcome."""
        return sum(
            record.config == config and (record.phase is Phase.CONFIRM) == confirm and self._study.counts(record)
            for record in self._study.records
        )

    # --- one launch --------------------------------------------------------------------------------------------------------------

    def _launch(self, config: Configuration, phase: Phase, cells: Sequence[Cell]) -> None:
        """One configuration to its outcome, retried while it is the wire that fails. Raises ``Interrupted`` and ``StopStudy``."""
        # Finalists are confirmed on prompts that the search never used, so that none can win by knowing the questions.
        jobs = jobs_for(self._study.workloads, cells, seed=self._seed, holdout=phase is Phase.CONFIRM)
        for attempt in range(RETRIES + 1):
            number = self._study.next_number
            self._announce(number, phase, config)
            self._begin(number, config, phase)
            self._warn()
            started, began = dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), self._clock()
            try:
                outcome = self._runner.run(
                    Trial(number=number, config=config, jobs=jobs, again=self._doubtful(phase)),
                    stop_launch=lambda: self._stop.asked,
                    stop_cell=lambda: self._stop.now,
                    keep_going=self._keep_going,
                )
            except BaseException:
                with contextlib.suppress(AutotunerError):  # a full disk must not hide what happened first; the next start settles the trial
                    self._study.abandon(number, config, phase)
                raise
            if isinstance(outcome, Interrupted):
                self._study.abandon(number, config, phase)
                self._stop.check()
                raise StopStudy("the launch was interrupted, but nobody asked to stop")
            elapsed = self._clock() - began
            record = TrialRecord.of(outcome, number=number, phase=phase, config=config, started=started, elapsed_s=round(elapsed, 3))
            try:
                self._study.tell(record)
            finally:
                self._warn()
            self._report(record, outcome, elapsed)
            if isinstance(outcome, HostBroken):
                raise StopStudy(outcome.failure.cause, hint=outcome.failure.remedy)
            if not isinstance(outcome, Transient):
                return
            self._listener(
                Notice(level="warning", message=f"trial {number}: {outcome.failure.cause}; attempt {attempt + 1} of {RETRIES + 1}")
            )

    def _begin(self, number: int, config: Configuration, phase: Phase) -> None:
        """Note that a launch begins. A disk that is full for a moment is waited for; then raises ``AutotunerError``."""
        for left in reversed(range(DISK_PATIENCE_S)):
            try:
                self._study.start(number, config, phase)
            except AutotunerError as error:
                if not left or not disk.full(error):
                    raise
                self._stop.check()
                time.sleep(1.0)
            else:
                return

    def _warn(self) -> None:
        for text in self._study.take_notices():
            self._listener(Notice(level="warning", message=text))

    def _doubtful(self, phase: Phase) -> Callable[[Sequence[CellResult]], Mapping[str, str]]:
        """Which cells of a launch are measured again before it may be called the best so far. Confirmations are repeated as they are."""
        if phase is Phase.CONFIRM:
            return lambda _: {}
        return lambda cells: leading_cells(self._study.workloads, self._study.records, cells)

    def _keep_going(self, cells: Sequence[CellResult]) -> bool:
        return not self._stop.now

    def _announce(self, number: int, phase: Phase, config: Configuration) -> None:
        done = len(self._study.records)
        planned = None if self._budget.trials is None else done + self._left()
        self._listener(TrialStarted(number=number, phase=phase, config=config, done=done, planned=planned, eta_s=self._eta_s()))

    def _left(self) -> int:
        return max(0, (self._budget.trials or 0) - self._explored()) + self._confirmations_left()

    def _eta_s(self) -> float | None:
        by_time = None if self._deadline_s is None else max(0.0, self._deadline_s - self._clock())
        if self._budget.trials is None or not self._study.records:
            return by_time
        by_count = self._left() * self._launch_s(len(self._cells))
        return by_count if by_time is None else min(by_count, by_time)

    def _launch_s(self, cells: int) -> float:
        return expected_launch_s(self._study.records, cells) or 0.0

    def _report(self, record: TrialRecord, outcome: object, elapsed_s: float) -> None:
        values = self._study.values(record)
        baseline = self._baseline_values()
        workloads = {workload.name: workload for workload in self._study.workloads}
        self._listener(
            TrialEnded(
                number=record.number,
                phase=record.phase,
                config=record.config,
                outcome=outcome,  # type: ignore[arg-type]
                elapsed_s=elapsed_s,
                values=values,
                versus_baseline={name: ratio(workloads[name], value, baseline[name]) for name, value in values.items() if name in baseline},
                best=self.best(),
                infeasible=self.infeasible,
            )
        )

    def best(self) -> dict[str, float]:
        """Workload → best ratio to the baseline so far."""
        baseline = self._baseline_values()
        return {
            workload.name: max(ratio(workload, value, baseline[workload.name]) for value in found.values())
            for workload in self._study.workloads
            if workload.name in baseline and (found := scored(workload, self._study.records))
        }

    @property
    def infeasible(self) -> int:
        """Launches so far of what cannot run here."""
        return sum(record.outcome == "infeasible" for record in self._study.records)

    def _baseline_values(self) -> dict[str, float]:
        """Workload → geometric mean over the baseline's launches."""
        logs: dict[str, list[float]] = {}
        for record in self._study.records:
            if record.config == self.baseline:
                for name, value in self._study.values(record).items():
                    logs.setdefault(name, []).append(math.log(value))
        return {name: math.exp(fmean(found)) for name, found in logs.items()}


def expected_launch_s(records: Sequence[TrialRecord], cells: int) -> float | None:
    """Seconds that a launch with so many cells is expected to take, from the latest like it; ``None`` when nothing was launched yet.

    Where only launches with fewer cells are known, the time per launch grows with the cells: too long rather than too short.
    """
    latest = [(record.elapsed_s, len(record.cells)) for record in records if record.measured][-10:]
    alike = [elapsed for elapsed, measured in latest if measured == cells]
    if alike:
        return fmean(alike)
    return fmean(elapsed * max(1.0, cells / max(1, measured)) for elapsed, measured in latest) if latest else None
