"""Runner: one trial, from configuration to outcome. It knows the host and the engine, and nothing of the study."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from autotuner.deploy import HostSession, Server
from autotuner.engines.base import Counters, Engine
from autotuner.errors import AutotunerError, InfeasibleConfig, RetryTrial, StopStudy
from autotuner.errors import Interrupted as InterruptedByPerson
from autotuner.loadgen.calibration import calibrate
from autotuner.loadgen.cells import CellPlan, measure_cell
from autotuner.loadgen.control import ControlClient
from autotuner.loadgen.prompts import Fit, PromptSource
from autotuner.model.configuration import Configuration
from autotuner.model.events import CellMeasured, Listener, StageReached
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
from autotuner.model.space import SearchSpace
from autotuner.model.workload import Cell, Sampling
from autotuner.records import RecordStore

_FLUSH_S = 10.0
"""The prefix cache can only be emptied once the requests that the last cell abandoned have left the server."""
_FLUSH_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class CellJob:
    """One cell to measure, with what is asked and how answers are sampled."""

    cell: Cell
    prompts: PromptSource
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One launch to make."""

    number: int
    config: Configuration
    jobs: Sequence[CellJob]


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
    ) -> None:
        self._session = session
        self._engine = engine
        self._host = host
        self._facts = facts
        self._space = space
        self._store = store
        self._plan = plan
        self._listener = listener
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
        cells: list[CellResult] = []
        launch = LaunchFacts()
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
            complete = self._measure(trial, server, cells, stop_cell, keep_going)
            return Measured(cells=tuple(cells), effective=effective, launch=launch, censored=not complete)
        except InfeasibleConfig as error:
            return Infeasible(failure=error.failure, launch=launch, cells=tuple(cells))
        except InterruptedByPerson:
            return Interrupted()
        except RetryTrial as error:
            return Transient(failure=_failure(error, Consequence.TRANSIENT, "wire"))
        except StopStudy as error:
            return HostBroken(failure=_failure(error, Consequence.HOST_BROKEN, "host"))
        finally:
            self._session.stop()
            if server is not None:
                self._store.write_log(trial.number, server.log())

    def _measure(
        self,
        trial: Trial,
        server: Server,
        cells: list[CellResult],
        stop_cell: Callable[[], bool],
        keep_going: Callable[[Sequence[CellResult]], bool],
    ) -> bool:
        """Measure the trial's cells into ``cells``; whether all of them were."""
        model = self._host.model.served_name or self._host.model.path
        chat_path = self._engine.endpoints.chat
        with ControlClient(self._host.base_url) as control:
            if self._fit is None:
                self._fit = calibrate(control, model=model, chat_path=chat_path, contexts=[job.cell.context for job in trial.jobs])
            for job in trial.jobs:
                notes = self._flush(control)
                measurement = measure_cell(
                    self._host.base_url,
                    model=model,
                    chat_path=chat_path,
                    cell=job.cell,
                    prompts=job.prompts.with_fit(self._fit),
                    sampling=job.sampling,
                    plan=self._plan,
                    read_counters=lambda: self._counters(control),
                    should_stop=stop_cell,
                )
                self._store.write_cell(trial.number, job.cell.key, measurement.records)
                server.check()
                if measurement.result.requests == 0 and not stop_cell():
                    self._refuse_silent_server(control, measurement.result, trial)
                if stop_cell():
                    raise InterruptedByPerson("stopped during a cell")
                result = dataclasses.replace(measurement.result, warnings=(*measurement.result.warnings, *notes))
                cells.append(result)
                self._listener(CellMeasured(number=trial.number, result=result, done=len(cells), cells=len(trial.jobs)))
                if not keep_going(cells):
                    break
        return len(cells) == len(trial.jobs)

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


def _failure(error: AutotunerError, consequence: Consequence, kind: str) -> Failure:
    failure: Failure | None = getattr(error, "failure", None)
    if failure is not None:
        return failure
    return Failure(kind=kind, cls=kind, stage=Stage.SERVE, consequence=consequence, cause=error.message, remedy=error.hint, confidence=0.5)
