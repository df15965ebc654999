"""Runner: one trial, from configuration to outcome. It knows the host and the engine, and nothing of the study."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from autotuner.decide.repeats import noisy, repeated
from autotuner.deploy import HostSession, Server
from autotuner.engines.base import Counters, Engine
from autotuner.errors import AutotunerError, InfeasibleConfig, RetryTrial, StopStudy, TransportError
from autotuner.errors import Interrupted as InterruptedByPerson
from autotuner.loadgen.calibration import calibrate
from autotuner.loadgen.cells import THROWN_AWAY, CellMeasurement, CellPlan, measure_cell
from autotuner.loadgen.chat import MISFITS
from autotuner.loadgen.control import ControlClient
from autotuner.loadgen.details import tells_speculation
from autotuner.loadgen.prompts import Fit, PromptSource
from autotuner.model.configuration import Configuration
from autotuner.model.events import CellMeasured, Listener, Notice, StageReached
from autotuner.model.facts import HostFacts
from autotuner.model.host import Host
from autotuner.model.measurement import CellResult
from autotuner.model.outcome import (
    Consequence,
    Failure,
    HostBroken,
    Infeasible,
    Interrupted,
    LaunchFacts,
    Measured,
    Outcome,
    Stage,
    Transient,
)
from autotuner.model.quality import QualityReport
from autotuner.model.space import SearchSpace
from autotuner.model.workload import Cell, Sampling, Slo
from autotuner.quality.asking import Asker
from autotuner.quality.gate import LIMIT_S, Gate, NotChecked
from autotuner.records import RecordStore

_FLUSH_S = 10.0
"""The prefix cache can only be emptied once the requests that the last cell abandoned have left the server."""
_FLUSH_PAUSE_S = 0.2
_AGAIN = 2
"""A cell that is measured again is measured at most this often again."""
_AGAIN_SEED = 7_919
"""Between the seeds of these measurements: other nonces, the same questions."""
_REPEATS = 2
"""A cell during which the connection to the host was lost is measured again this often."""
_STEP_S = 300.0
"""Sizing prompts at the longest contexts: long, and bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellJob:
    """One cell to measure, with what is asked and how answers are sampled."""

    cell: Cell
    prompts: PromptSource
    sampling: Sampling
    slos: tuple[Slo, ...] = ()
    """The limits that its goodput is about."""
    needed: bool = True
    """Whether a workload is judged by it; else it is measured for the sake of a whole matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One launch to make."""

    number: int
    config: Configuration
    jobs: Sequence[CellJob]
    again: Callable[[Sequence[CellResult]], Mapping[str, str]] = lambda _: {}
    """Told what all cells yielded: the cells to measure again before that counts, and by which metric each is judged."""


class Runner:
    """Runs trials on one host."""

    def __init__(
        self,
        *,
        session: HostSession,
        engine: Engine,
        host: Host,
        facts: HostFacts,
        space: SearchSpace,
        store: RecordStore,
        plan: CellPlan,
        listener: Listener,
        gate: Gate | None = None,
    ) -> None:
        """Without a ``gate`` nobody looks at the answers, and the outcome says so."""
        self._session = session
        self._engine = engine
        self._host = host
        self._facts = facts
        self._space = space
        self._store = store
        self._plan = plan
        self._listener = listener
        self._gate = gate or NotChecked("no gate was asked for")
        self._fit: Fit | None = None
        """How this model's tokenizer and template count; the same for every launch."""

    def run(
        self,
        trial: Trial,
        *,
        stop_launch: Callable[[], bool],
        stop_cell: Callable[[], bool],
        keep_going: Callable[[Sequence[CellResult]], bool],
    ) -> Outcome:
        """Launch, wait until ready, measure every cell, stop.

        ``stop_launch`` is asked while the server starts, ``stop_cell`` while it is measured, ``keep_going`` after each cell.
        Never raises for what can go wrong with a configuration, the wire or the host: that is in the outcome. Raises ``AutotunerError``
        for what ends the run as a whole (records cannot be written, port taken by a foreign process).
        """
        try:
            return self._run(trial, stop_launch, stop_cell, keep_going)
        finally:
            with contextlib.suppress(TransportError, StopStudy):  # what was measured counts; the next launch, or the end, meets it again
                self._session.stop()

    def _run(
        self,
        trial: Trial,
        stop_launch: Callable[[], bool],
        stop_cell: Callable[[], bool],
        keep_going: Callable[[Sequence[CellResult]], bool],
    ) -> Outcome:
        cells: list[CellResult] = []
        launch = LaunchFacts()
        left_out: dict[str, str] = {}
        quality: list[QualityReport] = []
        server: Server | None = None
        try:
            spec = self._engine.launch(
                trial.config,
                space=self._space,
                host=self._host,
                facts=self._facts,
                name=f"candidate-{trial.number}-{self._host.endpoint.port}",
            )
            launch = LaunchFacts(argv=spec.argv, env=spec.env)
            server = self._session.launch(
                spec,
                on_stage=lambda stage, at: self._listener(StageReached(number=trial.number, stage=stage, elapsed_s=at)),
                should_stop=stop_launch,
            )
            effective = self._engine.effective(server.info)
            rewrites = self._engine.rewrites(trial.config, effective)
            launch = dataclasses.replace(server.facts, warnings=(*server.facts.warnings, *rewrites))
            speculative = effective.get("spec", trial.config.get("spec", "off")) != "off"
            complete = self._measure(
                trial, server, cells, stop_cell, keep_going, left_out=left_out, quality=quality, speculative=speculative
            )
            return Measured(
                cells=tuple(cells), effective=effective, launch=launch, censored=not complete, left_out=left_out, quality=quality[-1]
            )
        except InfeasibleConfig as error:
            infeasible = Infeasible(failure=error.failure, launch=launch, cells=tuple(cells))
            return dataclasses.replace(infeasible, quality=quality[-1]) if quality else infeasible
        except InterruptedByPerson:
            return Interrupted()
        except RetryTrial as error:
            return Transient(failure=_failure(error, Consequence.TRANSIENT, "wire"))
        except StopStudy as error:
            return HostBroken(failure=_failure(error, Consequence.HOST_BROKEN, "host"))
        finally:
            if server is not None:
                self._store.write_log(trial.number, server.log())

    def _measure(
        self,
        trial: Trial,
        server: Server,
        cells: list[CellResult],
        stop_cell: Callable[[], bool],
        keep_going: Callable[[Sequence[CellResult]], bool],
        *,
        left_out: dict[str, str],
        quality: list[QualityReport],
        speculative: bool,
    ) -> bool:
        """Have the answers judged, into ``quality``, and measure the trial's cells into ``cells``; whether all of them were.

        A cell that the load generator spoiled in every attempt is never scored: it comes into ``left_out``. If a workload is judged by it
        nothing is known about the configuration, so that raises ``RetryTrial``, and the launch is made again.
        """
        with self._session.control() as control:
            self._session.touch(_STEP_S)
            if self._fit is None:
                self._fit = calibrate(
                    control,
                    model=self._model,
                    chat_path=self._engine.endpoints.chat,
                    contexts=[job.cell.context for job in trial.jobs],
                    beat=lambda: self._session.touch(_STEP_S),
                )
            quality.append(self._judge(trial, server, stop_cell, speculative=speculative))
            _refuse_wrong_answers(quality[-1], trial)
            plan = self._plan
            if speculative and tells_speculation(control, model=self._model, chat_path=self._engine.endpoints.chat):
                plan = dataclasses.replace(plan, details=True)
            for job in trial.jobs:
                measurement = self._measure_cell(job, control, server, plan, stop_cell, number=trial.number)
                self._store.write_cell(trial.number, job.cell.key, measurement.records)
                if measurement.result.requests == 0 and not stop_cell():
                    self._refuse_silent_server(control, measurement.result, trial)
                if stop_cell():
                    raise InterruptedByPerson("stopped during a cell")
                if spoiled := _spoiled(measurement.result):
                    self._leave_out(job, spoiled, trial, left_out)
                    continue
                cells.append(measurement.result)
                done = len(cells) + len(left_out)
                self._listener(CellMeasured(number=trial.number, result=measurement.result, done=done, cells=len(trial.jobs)))
                if not keep_going(cells):
                    break
            complete = len(cells) + len(left_out) == len(trial.jobs)
            if complete:
                self._measure_again(
                    trial,
                    cells,
                    lambda job, seed: self._measure_cell(
                        job, control, server, dataclasses.replace(plan, seed=seed), stop_cell, number=trial.number
                    ),
                    stop_cell,
                )
        return complete

    def _leave_out(self, job: CellJob, why: str, trial: Trial, left_out: dict[str, str]) -> None:
        """Take note of a cell that the load generator spoiled. Raises ``RetryTrial`` when a workload is judged by it."""
        tries = self._plan.repeats + 1
        what = f"{job.cell.key} was measured {tries} times, and each time the load generator was not good enough for it: {why}"
        if job.needed:
            raise RetryTrial(
                what, hint="end what else runs where the load is driven, or drive it from another machine (load.from in the host document)"
            )
        left_out[job.cell.key] = what
        self._listener(Notice(level="warning", message=f"trial {trial.number}: {what}; the cell is left out"))

    def _measure_again(
        self,
        trial: Trial,
        cells: list[CellResult],
        measure: Callable[[CellJob, int], CellMeasurement],
        stop_cell: Callable[[], bool],
    ) -> None:
        """Replace the results by which this launch looks best: one more measurement each, and another where the two disagree."""
        jobs = {job.cell.key: job for job in trial.jobs}
        for key, metric in trial.again(cells).items():
            index = next(index for index, cell in enumerate(cells) if cell.key == key)
            again: list[CellResult] = []
            for turn in range(1, 1 + _AGAIN):
                found = measure(jobs[key], self._plan.seed + turn * _AGAIN_SEED)
                if stop_cell():
                    raise InterruptedByPerson("stopped during a cell")
                self._store.write_cell(trial.number, f"{key}-again{turn}", found.records)
                if found.result.get(metric) is not None and not _spoiled(found.result):
                    again.append(found.result)
                values = [result.get(metric) or 0.0 for result in (cells[index], *again)]
                if len(values) > 1 and not noisy(values):
                    break
            cells[index] = repeated(cells[index], again, metric)
            self._listener(CellMeasured(number=trial.number, result=cells[index], done=len(cells), cells=len(trial.jobs)))

    def _judge(self, trial: Trial, server: Server, stop_cell: Callable[[], bool], *, speculative: bool) -> QualityReport:
        """What the gate says of this launch's answers. Raises what became of a server that has died meanwhile."""

        def going_on() -> None:
            self._session.touch()
            if stop_cell():
                raise InterruptedByPerson("stopped while answers were checked")

        with self._session.control(timeout_s=self._plan.request_timeout_s) as control:
            asker = Asker(
                control,
                model=self._model,
                chat_path=self._engine.endpoints.chat,
                going_on=going_on,
                failed=server.check,
                limit_s=LIMIT_S,
            )
            checked = self._gate.check(asker, number=trial.number, speculative=speculative)
        if checked.notice:
            self._listener(Notice(level="warning", message=f"trial {trial.number}: {checked.notice}"))
        if checked.details:
            self._store.write_quality(trial.number, checked.details)
        return checked.report

    def _measure_cell(
        self, job: CellJob, control: ControlClient, server: Server, plan: CellPlan, stop_cell: Callable[[], bool], *, number: int
    ) -> CellMeasurement:
        """One cell. What was measured while the connection to the host was lost is thrown away, and measured again once the host answers.

        Raises ``RetryTrial`` when that happens every time, and what became of a server that has died.
        """

        def asked() -> bool:
            self._session.touch()
            return stop_cell()

        notes: list[str] = []

        def flush() -> None:
            self._session.touch()
            notes[:] = self._flush(control)

        thrown = ""
        for attempt in range(_REPEATS + 1):
            before = self._session.interruptions
            why = "the connection to the host was lost"
            found: CellMeasurement | None = None
            try:
                with self._session.observing(self._facts.gpus) as observer:
                    found = measure_cell(
                        self._session.load_path.base_url,
                        model=self._model,
                        chat_path=self._engine.endpoints.chat,
                        cell=job.cell,
                        prompts=job.prompts.with_fit(self._fit or Fit()),
                        sampling=job.sampling,
                        plan=plan,
                        read_counters=lambda: self._counters(control),
                        should_stop=asked,
                        workers=self._session.workers,
                        observe=observer,
                        before_attempt=flush,
                        slos=job.slos,
                    )
            except RetryTrial as error:  # a worker was lost, or the way to the server
                why = error.message
            try:
                server.check()
            except AutotunerError:
                if found is not None:  # the requests that the server died of say how
                    self._store.write_cell(number, job.cell.key, found.records)
                raise
            if found is not None and (self._session.interruptions == before or stop_cell()):
                repeated = (f"measured again after {attempt} thrown away: {thrown}",) if attempt else ()
                self._tell(number, found.result)
                result = dataclasses.replace(found.result, warnings=(*found.result.warnings, *notes, *repeated))
                return dataclasses.replace(found, result=result)
            thrown = why
            self._session.check()
        raise RetryTrial(f"{job.cell.key} could not be measured in {_REPEATS + 1} attempts: {thrown}")

    def _tell(self, number: int, result: CellResult) -> None:
        """Let a person know that the load generator was not good enough at first."""
        for warning in result.warnings:
            if warning.startswith(THROWN_AWAY):
                self._listener(Notice(level="warning", message=f"trial {number}: {result.key}: {warning}"))

    @property
    def _model(self) -> str:
        return self._host.model.served_name or self._host.model.path

    def _counters(self, control: ControlClient) -> Counters:
        path = self._engine.endpoints.metrics
        return self._engine.counters(control.get_text(path)) if path else Counters()

    def _flush(self, control: ControlClient) -> tuple[str, ...]:
        """Empty the prefix cache, so that no cell profits from the one before; a warning when that cannot be done."""
        path = self._engine.endpoints.flush
        if path is None:
            return ("the prefix cache cannot be emptied on this engine",)
        until = time.monotonic() + _FLUSH_S
        while (code := control.post(path)) != HTTPStatus.OK:
            if time.monotonic() >= until:
                return (f"the prefix cache was not emptied before this cell: the server answered {code}",)
            time.sleep(_FLUSH_PAUSE_S)
        return ()

    def _refuse_silent_server(self, control: ControlClient, result: CellResult, trial: Trial) -> None:
        """Not one request of a cell was answered: the configuration cannot serve, whatever the process list says."""
        answers = control.status(self._engine.endpoints.ready) == HTTPStatus.OK
        errors = ", ".join(f"{count} × {kind}" for kind, count in sorted(result.errors.items())) or "no answer"
        if result.errors and MISFITS.issuperset(result.errors):
            raise RetryTrial(
                f"no request of {result.key} measured what was asked for ({errors})",
                hint=f"its requests with their reasons are in trials/{trial.number} in the study's folder",
            )
        state = "still answers its health check" if answers else "no longer answers its health check"
        raise InfeasibleConfig(
            Failure(
                kind="no-valid-request" if answers else "hung",
                cls="engine-bug",
                stage=Stage.SERVE,
                consequence=Consequence.INFEASIBLE,
                cause=f"no request of {result.key} was answered ({errors}); the server {state}",
                remedy=f"read its log: trials/{trial.number}/server.log.gz in the study's folder",
                confidence=0.5,
            )
        )


def _refuse_wrong_answers(report: QualityReport, trial: Trial) -> None:
    """A configuration whose answers are worse than the baseline's is of no use, however fast it is."""
    if report.status == "failed":
        raise InfeasibleConfig(
            Failure(
                kind="quality",
                cls="quality",
                stage=Stage.SERVE,
                consequence=Consequence.INFEASIBLE,
                cause=f"its answers are not as good as the baseline's: {'; '.join(report.reasons)}",
                remedy=f"read them: trials/{trial.number}/quality.json.gz in the study's folder",
            )
        )


def _spoiled(result: CellResult) -> str:
    """Why a cell says more about the load generator than about the server; empty when it does not."""
    return "; ".join(result.client.invalid) if result.client is not None and result.requests else ""


def _failure(error: AutotunerError, consequence: Consequence, kind: str) -> Failure:
    failure: Failure | None = getattr(error, "failure", None)
    if failure is not None:
        return failure
    return Failure(kind=kind, cls=kind, stage=Stage.SERVE, consequence=consequence, cause=error.message, remedy=error.hint, confidence=0.5)
