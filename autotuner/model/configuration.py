"""Configuration: one point of a search space, in concepts, not in flags."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autotuner.model.document import Scalar


@dataclass(frozen=True, slots=True)
class Configuration(Mapping[str, Scalar]):
    """Concept → value for every *active* parameter; what is absent is left to the engine.

    ``extra_args`` are arguments that no concept stands for (the live service's unmapped flags), passed on verbatim.
    Two configurations are equal when they ask the engine for the same thing, whatever order they were written in.
    """

    pairs: tuple[tuple[str, Scalar], ...] = ()
    extra_args: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, values: Mapping[str, Scalar], extra_args: tuple[str, ...] = ()) -> Configuration:
        """A configuration of these values, in canonical (sorted) order."""
        return cls(tuple(sorted(values.items())), extra_args)

    def __getitem__(self, concept: str) -> Scalar:
        for name, value in self.pairs:
            if name == concept:
                return value
        raise KeyError(concept)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def with_values(self, **changes: Scalar) -> Configuration:
        """The same configuration with some concepts changed."""
        return Configuration.of({**self, **changes}, self.extra_args)

    @property
    def digest(self) -> str:
        """Twelve hex digits that stand for what is asked for."""
        text = json.dumps([self.pairs, self.extra_args], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return " ".join(f"{name}={_short(value)}" for name, value in self.pairs) or "engine defaults"


def _short(value: Scalar) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
