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
