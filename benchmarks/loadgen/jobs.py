"""What a client is to do, the same for all of them. Standard library only: peers' drivers run it in environments of their own."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A point: some streams against the mock. ``requests`` are those of a whole run, ``seconds`` how long it should take."""

    url: str
    model: str
    concurrency: int = 1
    requests: int = 6
    output_tokens: int = 40
    context: int = 60
    """Prompt tokens, at four characters each."""
    seconds: float = 1.0
    points: int = 1
    """How often to measure the same; only the last is reported."""
    uvloop: bool = True

    @classmethod
    def of(cls, text: str) -> Job:
        """From JSON."""
        return cls(**json.loads(text))

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    def prompt(self, number: int) -> str:
        """The prompt of request ``number``, unique from its first characters on."""
        head = f"[{number:06d}] "
        return head + ("word " * self.context)[: max(0, 4 * self.context - len(head))]


def chunk_error_us(at_ns: int, before_ns: int, after_ns: int) -> float:
    """How far a time lies from the moment between the two: 0 inside, else the distance in µs, negative before it."""
    return (min(0, at_ns - before_ns) or max(0, at_ns - after_ns)) / 1e3
