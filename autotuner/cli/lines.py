"""Lines: how events and numbers read, as pure functions of what happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autotuner.model.events import CellMeasured, Event, Notice, StageReached, StudyOpened, TrialEnded, TrialStarted
from autotuner.model.measurement import METRICS, CellResult
from autotuner.model.outcome import HostBroken, Infeasible, Interrupted, Measured, Outcome, Transient

SIMULATED = "simulated"


def duration(seconds: float) -> str:
    """``8 s``, ``3m20``, ``2h41``: two figures are enough to decide whether to wait."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """``1 launch``, ``2 launches``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def ratio(value: float) -> str:
    """``×1.42``; above 1 is better than the baseline."""
    return f"×{value:.2f}"


def number(value: float, metric: str | None) -> str:
    """A value with the unit of its metric, where that is known."""
    known = METRICS.get(metric) if metric else None
    return known.format(value) if known else f"{value:.1f}"


def outcome_word(outcome: Outcome) -> str:
    """One word for how a trial ended."""
    match outcome:
        case Measured(censored=True):
            return "cut short"
        case Measured():
            return "measured"
        case Infeasible():
            return "infeasible"
        case Transient():
            return "transient"
        case HostBroken():
            return "host broken"
        case Interrupted():
            return "interrupted"


def outcome_reason(outcome: Outcome) -> str | None:
    """Stage, kind and cause of a failure; ``None`` where there is none."""
    if not isinstance(outcome, Infeasible | Transient | HostBroken):
        return None
    failure = outcome.failure
    return f"{failure.cause} [{failure.kind}, at {failure.stage}]"


def trial_line(event: TrialEnded, *, metrics: Mapping[str, str], simulated: bool) -> str:
    """One line for one trial: number, phase, configuration, how it ended, values with their ratio to the baseline, time."""
    values = ", ".join(
        " ".join(filter(None, (name, number(value, metrics.get(name)), _versus(event, name)))) for name, value in event.values.items()
    )
    told = outcome_reason(event.outcome) or values
    end = f"{outcome_word(event.outcome)}: {told}" if told else outcome_word(event.outcome)
    mark = f" ({SIMULATED})" if simulated else ""
    return f"trial {event.number} {event.phase}: {event.config} → {end} · {duration(event.elapsed_s)}{mark}"


def _versus(event: TrialEnded, workload: str) -> str:
    known = event.versus_baseline.get(workload)
    return ratio(known) if known is not None else ""


def opened_line(event: StudyOpened) -> str:
    """What is about to be searched, and how much of it is already there."""
    what = f"resuming study {event.study} with {event.trials} trials" if event.resumed else f"new study {event.study}"
    mark = f" · {SIMULATED}: no GPU is used, and no result holds for a real one" if event.simulated else ""
    return f"{what} · workloads {', '.join(event.workloads)}{mark}"


def cell_line(event: CellMeasured) -> str:
    """One cell, for the line under the progress bar."""
    return f"cell {event.done}/{event.cells} · context {event.result.context}, C={event.result.concurrency}: {_cell_values(event.result)}"


def _cell_values(result: CellResult) -> str:
    told = [METRICS[name].format(result.metrics[name]) for name in ("output_tok_s", "ttft_p50_ms") if name in result.metrics]
    failed = [f"{result.failed} failed"] if result.failed else []
    return ", ".join([*told, *failed]) or "nothing measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run is, from the events so far."""

    simulated: bool = False
    running: TrialStarted | None = None
    detail: str = ""
    """Stage or cell of the running trial."""
    best: Mapping[str, float] = field(default_factory=dict)
    infeasible: int = 0

    def after(self, event: Event) -> Progress:
        """Where it is after this event."""
        match event:
            case StudyOpened():
                return replace(self, simulated=event.simulated, best=event.best, infeasible=event.infeasible)
            case TrialStarted():
                return replace(self, running=event, detail="")
            case StageReached():
                return replace(self, detail=f"{event.stage} · {duration(event.elapsed_s)}")
            case CellMeasured():
                return replace(self, detail=cell_line(event))
            case TrialEnded():
                return replace(self, best=event.best, infeasible=event.infeasible, detail="")
            case Notice():
                return self

    def headline(self, *, since_s: float = 0.0) -> str:
        """``trial 17/60 · 2h41 left · best latency ×1.42, throughput ×2.10 · 3 infeasible``.

        ``since_s``: seconds since the running trial started, taken off the time left.
        """
        parts = [SIMULATED] if self.simulated else []
        if self.running is None:
            return " · ".join([*parts, "getting ready"])
        planned = f"/{self.running.planned}" if self.running.planned is not None else ""
        parts.append(f"trial {self.running.done + 1}{planned}")
        if self.running.eta_s is not None:
            parts.append(f"{duration(self.running.eta_s - since_s)} left")
        if self.best:
            parts.append("best " + ", ".join(f"{name} {ratio(value)}" for name, value in self.best.items()))
        if self.infeasible:
            parts.append(f"{self.infeasible} infeasible")
        return " · ".join(parts)

    def subline(self) -> str:
        """The running configuration and what it is doing."""
        if self.running is None:
            return ""
        return " · ".join(filter(None, (f"{self.running.phase}: {self.running.config}", self.detail)))
