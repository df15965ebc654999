"""Agenda: what is launched before the search proposes anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autotuner.model.configuration import Configuration
from autotuner.model.document import Scalar
from autotuner.model.events import Phase
from autotuner.model.legality import canonical, violations
from autotuner.model.space import Categorical, SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A configuration and why it is launched."""

    config: Configuration
    phase: Phase


def opening_moves(space: SearchSpace, facts: dict[str, Scalar | None], live: Configuration | None) -> tuple[list[Planned], list[str]]:
    """Baseline, controls and seeds in order, each configuration once; and a sentence for each that had to be left out.

    The baseline is what runs today (``live``, kept as it is even outside of the space), else the space's ``baseline:``, else the engine's
    defaults. Controls: no speculation, and for trees a chain, so that every speed-up is a ratio measured side by side.
    """
    baseline = live if live is not None else canonical(space, space.baseline, facts)
    moves = [Planned(config=baseline, phase=Phase.BASELINE)]
    notes: list[str] = []
    for phase, values in [*((Phase.CONTROL, item) for item in _controls(space, baseline)), *((Phase.SEED, seed) for seed in space.seeds)]:
        config = canonical(space, values, facts)
        broken = violations(space, config, facts)
        if broken:
            notes.append(f"{phase} left out: {config}: {broken[0]}")
        elif all(config != move.config for move in moves):
            moves.append(Planned(config=config, phase=phase))
    return moves, notes


def _controls(space: SearchSpace, baseline: Configuration) -> Iterator[dict[str, Scalar]]:
    spec = space.parameters.get("spec")
    if not isinstance(spec, Categorical):
        return
    known = {name: value for name, value in baseline.items() if name in space.parameters or name in space.fixed}
    if "off" in spec.choices:
        yield {**known, "spec": "off"}
    if "ddtree" in spec.choices and "dflash" in spec.choices:
        tree = next((seed for seed in space.seeds if seed.get("spec") == "ddtree"), None)
        if tree is not None:
            yield {**known, **tree, "spec": "dflash"}
