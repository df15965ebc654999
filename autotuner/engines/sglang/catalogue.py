"""The catalogue of failures as data: ``engines/failures.toml``, whose head describes the format."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from autotuner.model.document import Scalar
from autotuner.model.outcome import Consequence, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a match means, perhaps at one stage only."""

    cause: str
    remedy: str
    consequence: Consequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One known failure."""

    id: str
    cls: str
    pattern: re.Pattern[str]
    meaning: Meaning
    anywhere: bool
    """Searched in every line, not in tracebacks only."""
    secondary: bool
    """What others print because the first one died."""
    stage: Stage | None
    confidence: float
    at: Mapping[Stage, Meaning] = field(default_factory=dict)

    def facts(self, match: re.Match[str]) -> dict[str, Scalar]:
        """The named groups of a match; numbers as numbers."""
        return {name: _scalar(text) for name, text in match.groupdict().items() if text is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A line that says that something runs otherwise than asked for, and is no failure."""

    id: str
    cls: str
    pattern: re.Pattern[str]
    text: str


@functools.cache
def rules() -> tuple[Rule, ...]:
    """Every known failure, the specific before the general."""
    return tuple(_rule(entry) for entry in _document()["failure"])


@functools.cache
def notice_rules() -> tuple[Notice, ...]:
    """Every known notice."""
    return tuple(
        Notice(id=entry["id"], cls=entry["class"], pattern=re.compile(entry["pattern"]), text=entry["text"])
        for entry in _document()["notice"]
    )


@functools.cache
def _document() -> dict[str, Any]:
    return tomllib.loads((resources.files("autotuner.engines") / "failures.toml").read_text(encoding="utf-8"))


def _rule(entry: Mapping[str, Any]) -> Rule:
    usual = Meaning(cause=entry["cause"], remedy=entry["remedy"], consequence=Consequence(entry.get("consequence", Consequence.INFEASIBLE)))
    at = {
        Stage(stage): Meaning(
            cause=over.get("cause", usual.cause),
            remedy=over.get("remedy", usual.remedy),
            consequence=Consequence(over.get("consequence", usual.consequence)),
        )
        for stage, over in entry.get("at", {}).items()
    }
    return Rule(
        id=entry["id"],
        cls=entry["class"],
        pattern=re.compile(entry["pattern"], re.MULTILINE),
        meaning=usual,
        anywhere=entry.get("scope") == "anywhere",
        secondary=entry.get("rank") == "secondary",
        stage=Stage(entry["stage"]) if "stage" in entry else None,
        confidence=entry.get("confidence", 1.0),
        at=at,
    )


def _scalar(text: str) -> Scalar:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
