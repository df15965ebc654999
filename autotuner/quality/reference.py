"""The reference: what the baseline without speculation answered, kept with the study's records so that a resumed run compares with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from autotuner import disk
from autotuner.quality.asking import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The answers of one launch without speculation, asked twice."""

    digest: str
    """Of the questions; answers to others are not comparable."""
    model: str
    trial: int
    greedy: tuple[Answer, ...]
    """One after another."""
    agreement: float
    """Of the same questions asked all at once with the first answers: what batching alone does to them."""
    canary: Answer
    rounds: tuple[Mapping[str, str], ...]
    """Problem → verdict, for both times; empty when there was no sandbox."""


_REFERENCE = TypeAdapter(Reference)


class References:
    """The reference of one study, in ``folder``. One that the disk does not take, being full, is held until it does."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "reference.json"
        self._held: Reference | None = None
        self.trouble = ""
        """What keeps the reference from the disk; empty when nothing does."""

    def load(self, *, digest: str, model: str) -> Reference | None:
        """The reference for these questions and this model; ``None`` when there is none that can be read. It is then made anew."""
        found = self._held
        if found is not None:
            self.save(found)
        else:
            try:
                found = _REFERENCE.validate_json(self._path.read_bytes())
            except (OSError, ValidationError):
                return None
        return found if (found.digest, found.model) == (digest, model) else None

    def save(self, reference: Reference) -> None:
        """Keep it for good, or hold it and say in ``trouble`` why. Raises ``Refused`` when the place belongs to another user."""
        self._held, self.trouble = reference, ""
        try:
            disk.refuse_foreign((self._path.parent, self._path))
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            disk.replace(self._path, _REFERENCE.dump_json(reference, indent=1), mode=0o600)
            self._held = None
        except OSError as error:
            why = disk.refused("write", self._path, error).message
            self.trouble = f"{why}; what the baseline answered is held, and written at the next launch if it can be"
