"""Agenda: what is launched before the search proposes anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autotuner.model.configuration import Configuration
from autotuner.model.document import Scalar
from autotuner.model.events import Phase
from autotuner.model.legality import canonical, violations
from autotuner.model.space import Categorical, SearchSpace

Facts = Mapping[str, Scalar | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A configuration and why it is launched."""

    config: Configuration
    phase: Phase


def opening_moves(space: SearchSpace, facts: Facts, live: Configuration | None) -> tuple[list[Planned], list[str]]:
    """Baseline, controls and seeds in order, each configuration once; and a sentence for each that had to be left out.

    The baseline is what runs today (``live``, kept as it is even outside of the space), else the space's ``baseline:``, else the engine's
    defaults. Controls: no speculation, and for trees a chain, so that every speed-up is a ratio measured side by side.
    """
    baseline = live if live is not None else canonical(space, space.baseline, facts)
    moves = [Planned(config=baseline, phase=Phase.BASELINE)]
    notes: list[str] = []
    control = _without_speculation(space, baseline, facts)
    if control is not None:
        moves.append(Planned(config=control, phase=Phase.CONTROL))
    chain = [(Phase.CONTROL, values) for values in _chain(space)]
    for phase, values in [*chain, *((Phase.SEED, seed) for seed in space.seeds)]:
        config = canonical(space, values, facts)
        broken = violations(space, config, facts)
        if broken:
            notes.append(f"{phase} left out: {config}: {broken[0]}")
        elif all(config != move.config for move in moves):
            moves.append(Planned(config=config, phase=phase))
    return moves, notes


def _without_speculation(space: SearchSpace, baseline: Configuration, facts: Facts) -> Configuration | None:
    """The baseline without speculation, otherwise as it is, even where it lies outside of the space; ``None`` when it is that already."""
    spec = space.parameters.get("spec")
    if not isinstance(spec, Categorical) or "off" not in spec.choices or baseline.get("spec", "off") == "off":
        return None
    inside = canonical(space, {**baseline, "spec": "off"}, facts, baseline.extra_args)
    outside = {name: value for name, value in baseline.items() if name not in space.parameters}
    return Configuration.of({**outside, **inside}, baseline.extra_args)


def _chain(space: SearchSpace) -> Iterator[dict[str, Scalar]]:
    """The first tree among the seeds as a plain chain: what the tree itself is worth."""
    spec = space.parameters.get("spec")
    if isinstance(spec, Categorical) and {"ddtree", "dflash"} <= set(spec.choices):
        tree = next((seed for seed in space.seeds if seed.get("spec") == "ddtree"), None)
        if tree is not None:
            yield {**tree, "spec": "dflash"}
