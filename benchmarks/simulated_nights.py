"""Nights whose truth is known: launches of configurations that do not differ, or by as much as is said."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import fmean

import numpy as np

from autotuner.decide.finalists import finalists
from autotuner.decide.verdict import decide
from autotuner.model.configuration import Configuration
from autotuner.model.events import Phase
from autotuner.model.measurement import CellResult
from autotuner.model.recommendation import Verdict
from autotuner.model.trial import TrialRecord
from autotuner.model.workload import builtin_workloads

WORKLOADS = builtin_workloads(context_served=8192, contexts=(60, 2000), concurrency=(1, 128), output_tokens=256)
LAUNCH_SD = 0.02
"""Launch-to-launch standard deviation of the logarithm of a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """How a host behaves, and how much of it is launched."""

    explored: int = 8
    """Configurations beside the baseline that the search launches once each."""
    rounds: int = 4
    """Rounds of the confirmation."""
    launch_sd: float = LAUNCH_SD
    slices: int = 8
    """Slices of the window of a cell; its value is their mean."""
    slice_sd: float = 0.03
    correlation: float = 0.5
    """Between neighbouring slices."""
    round_sd: float = 0.0
    """By how much whole rounds differ: a host that is warmer, or shared."""
    outliers: float = 0.0
    """Share of launches that are slow, by up to 20 %."""
    gain: float = 1.0
    """How many times better than the baseline everything else is."""
    creep: float = 0.0
    """Relative change of everything from one launch to the next."""
    alternate: bool = False
    """Whether every other round goes through the configurations backwards."""


def autocorrelated(rng: np.random.Generator, n: int, correlation: float) -> np.ndarray:
    """A stationary first-order autoregressive series of variance 1."""
    noise = rng.normal(size=n)
    for at in range(1, n):
        noise[at] = correlation * noise[at - 1] + np.sqrt(1 - correlation**2) * noise[at]
    return noise


def launch(rng: np.random.Generator, night: Night, cells: int = 1) -> list[float]:
    """Relative values of the cells of one launch: they share its luck, and have windows of their own."""
    luck = rng.normal(0, night.launch_sd) if night.launch_sd else 0.0
    if night.outliers and rng.random() < night.outliers:
        luck -= rng.uniform(0, 0.2)
    if not night.slice_sd:
        return [float(np.exp(luck))] * cells
    means = [1 + night.slice_sd * float(autocorrelated(rng, night.slices, night.correlation).mean()) for _ in range(cells)]
    return [float(np.exp(luck)) * mean for mean in means]


def launches(rng: np.random.Generator, night: Night, *, configs: int, rounds: int) -> list[list[float]]:
    """Values of interleaved launches, by configuration and round; none differs but by what the night does."""
    rows: list[list[float]] = [[] for _ in range(configs)]
    number = 0
    for turn in range(rounds):
        level = float(np.exp(rng.normal(0, night.round_sd))) if night.round_sd else 1.0
        order = range(configs) if not (night.alternate and turn % 2) else reversed(range(configs))
        for index in order:
            rows[index].append(100 * level * float(np.exp(night.creep * number)) * launch(rng, night)[0])
            number += 1
    return rows


@cache
def _config(number: int) -> Configuration:
    return Configuration.of({"number": number})


def _trial(rng: np.random.Generator, night: Night, config: Configuration, phase: Phase, *, number: int, level: float) -> TrialRecord:
    at = 100 * level * float(np.exp(night.creep * number)) * (1 if config == _config(0) else night.gain)
    shares = launch(rng, night, cells=len(WORKLOADS))
    cells = tuple(
        CellResult(
            key=workload.cells[0].key,
            context=workload.cells[0].context,
            concurrency=workload.cells[0].concurrency,
            output_tokens=workload.cells[0].output_tokens,
            metrics={workload.objective: at * value},
            window_s=4.0,
            requests=5,
        )
        for workload, value in zip(WORKLOADS, shares, strict=True)
    )
    return TrialRecord(
        number=number, phase=phase, config=config, outcome="measured", started="2026-01-02T03:04:05+00:00", elapsed_s=60.0, cells=cells
    )


def verdicts(rng: np.random.Generator, night: Night) -> list[bool]:
    """For each workload of a night, whether something was called improved.

    The night searches, takes the best of what it saw as finalists, launches those beside the baseline round by round, and judges.
    """
    trials = [
        _trial(rng, night, _config(number), Phase.SEARCH if number else Phase.BASELINE, number=number, level=1.0)
        for number in range(night.explored + 1)
    ]
    baseline = _config(0)
    wanted = dict.fromkeys(config for workload in WORKLOADS for config in finalists(workload, trials))
    others = [config for config in wanted if config != baseline]
    line_up = [baseline, *others] if others else []
    for turn in range(night.rounds):
        level = float(np.exp(rng.normal(0, night.round_sd))) if night.round_sd else 1.0
        for config in line_up if not (night.alternate and turn % 2) else line_up[::-1]:
            trials.append(_trial(rng, night, config, Phase.CONFIRM, number=len(trials), level=level))
    found = [decide(workload, trials, baseline) for workload in WORKLOADS]
    return [decision is not None and decision.verdict is Verdict.IMPROVED for decision in found]


def improved_rate(night: Night, *, nights: int, seed: int) -> float:
    """Share of verdicts that call something improved; three verdicts a night."""
    rng = np.random.default_rng(seed)
    return fmean(verdict for _ in range(nights) for verdict in verdicts(rng, night))
