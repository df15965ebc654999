"""Preview: what a run would do, without doing any of it."""

from __future__ import annotations

from dataclasses import dataclass

from autotuner.deploy.production import read_host
from autotuner.deploy.reach import Route
from autotuner.errors import InfeasibleConfig
from autotuner.model.events import Listener
from autotuner.model.workload import Cell, Workload
from autotuner.services.registry import manager_for
from autotuner.tuner.agenda import Planned, opening_moves
from autotuner.tuner.night import NightPlan, reach
from autotuner.tuner.opening import locate, study_name
from autotuner.tuner.tuner import expected_launch_s

_FIRST_LAUNCH_S = 120.0
"""Seconds per launch before any was seen: large models take one to five minutes, small ones about one."""
_SETTLE_S = 1.0
"""Seconds per cell beside warm-up and window: first tokens, flushing the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLaunch:
    """A launch that is known before the search starts. ``argv`` is empty when this build cannot run it, and ``refusal`` says why."""

    move: Planned
    argv: tuple[str, ...]
    env: dict[str, str]
    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The plan of a run."""

    host: str
    study: str
    simulated: bool
    done: int
    """Launches that the study already holds."""
    launches: tuple[PlannedLaunch, ...]
    searched: int | None
    """Launches after those, chosen by the search; ``None`` when the time decides."""
    confirmations: int
    """Launches of the confirmation, at most."""
    cells: tuple[Cell, ...]
    workloads: tuple[Workload, ...]
    seconds_per_launch: float
    observed: bool
    """Whether that comes from launches of this study; else it is a guess."""
    total_s: float


def preview(plan: NightPlan, *, listener: Listener) -> Preview:
    """Look the host over and lay out the run. Raises as a run would; changes nothing on the host."""
    with reach(plan, listener) as there:
        host_side = manager_for(plan.host, there.transport).host_side
        production = read_host(plan.host, there.engine, host_side, Route(plan.host, host_side)).production
        live = there.engine.read_argv(production.argv, host=plan.host) if production else None
        moves, _ = opening_moves(plan.space, there.facts.names(), live)
        launches = []
        for move in moves:
            try:
                spec = there.engine.launch(move.config, space=plan.space, host=plan.host, facts=there.facts, name="preview")
                launches.append(PlannedLaunch(move=move, argv=spec.argv, env=dict(spec.env)))
            except InfeasibleConfig as error:
                launches.append(PlannedLaunch(move=move, argv=(), env={}, refusal=error.message))
        store = locate(plan.state, study_name(plan.host, plan.space), new=plan.new_study)
        store.read_meta()
        records = store.trials()
        measured = plan.cell_plan.window_s + plan.cell_plan.warmup_s + _SETTLE_S
        seen = expected_launch_s(records, len(there.cells))
        per_launch = _FIRST_LAUNCH_S + measured * len(there.cells) if seen is None else seen
        trials = plan.budget.trials
        confirmations = plan.budget.confirm_rounds * (1 + len(there.workloads))
        return Preview(
            host=plan.host.name,
            study=store.folder.name,
            simulated=there.facts.simulated,
            done=len(records),
            launches=tuple(launches if trials is None else launches[:trials]),
            searched=None if trials is None else max(0, trials - len(launches)),
            confirmations=confirmations,
            cells=there.cells,
            workloads=there.workloads,
            seconds_per_launch=per_launch,
            observed=seen is not None,
            total_s=plan.seconds if trials is None and plan.seconds else (confirmations + (trials or 0)) * per_launch,
        )
