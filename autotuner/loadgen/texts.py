"""The texts that prompts are made of, as they are shipped: questions, wishes about answers, and paragraphs that fill long contexts."""

from __future__ import annotations

import gzip
import random
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from autotuner.model.workload import Domain

LIBRARY = "library"
"""Kind of the paragraphs that are code with its documentation."""
CORE_CHARS = 1200
"""Excerpts of the library up to this length are counted one by one in a calibration; the longer ones only fill very long contexts."""
CORE_EVERY = 8
NEARBY = 12
_KINDS = {"Minutes,": "minutes", "Dear": "letter", "In": "prose", "Q:": "chat", "For": "prose", "Field": "notes", "SELECT": "query"}
_KINDS |= {"class": "code", "func": "code", "function": "code", "def": "code"}


@dataclass(frozen=True, slots=True)
class Texts:
    """What is asked in one domain."""

    questions: tuple[str, ...]
    holdout: tuple[str, ...]
    wishes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A piece of text without an empty line; pieces of one kind have about as many characters per token."""

    text: str
    kind: str


@cache
def texts() -> dict[str, Texts]:
    """What is asked, by domain."""
    raw = tomllib.loads(files("autotuner.loadgen").joinpath("data/prompts.toml").read_text(encoding="utf-8"))
    return {
        name: Texts(tuple(entry["questions"]), tuple(entry["holdout"]), (*entry["wishes"], *raw["any"]["wishes"]))
        for name, entry in raw["domain"].items()
    }


@cache
def documents(*, holdout: bool) -> tuple[Paragraph, ...]:
    """Minutes, letters, field notes, questions and answers, tables, logs and some code. Every fourth is held out."""
    text = files("autotuner.loadgen").joinpath("data/corpus.txt").read_text(encoding="utf-8")
    return _share([Paragraph(part, _kind(part)) for part in _parts(text)], holdout=holdout)


@cache
def library(*, holdout: bool) -> tuple[Paragraph, ...]:
    """Code with its documentation: excerpts of Python's standard library, see ``data/NOTICE.txt``. Every fourth is held out."""
    return _share(_library(), holdout=holdout)


@cache
def core(*, holdout: bool) -> tuple[Paragraph, ...]:
    """The part of the library that is drawn from first: every eighth excerpt that is not long."""
    short = [part for part in _library() if len(part.text) <= CORE_CHARS]
    held = set(library(holdout=holdout))
    return tuple(part for part in short[::CORE_EVERY] if part in held)


@cache
def _library() -> list[Paragraph]:
    text = gzip.decompress(files("autotuner.loadgen").joinpath("data/library.txt.gz").read_bytes()).decode()
    return [Paragraph(part, LIBRARY) for part in _parts(text)]


def questions_of(domain: Domain) -> str:
    """All questions and wishes of a domain in one text, as a sample for calibration."""
    found = texts()[domain]
    return " ".join([*found.questions, *found.wishes])


def sample(paragraphs: tuple[Paragraph, ...], chars: int) -> str:
    """Text of a kind, drawn from all of it: its parts differ by a third in characters per token."""
    mixed = list(paragraphs)
    random.Random(0).shuffle(mixed)  # noqa: S311 - a repeatable choice of texts
    return cut("\n\n".join(part.text for part in mixed), chars)


def cut(text: str, chars: int) -> str:
    """The first ``chars`` characters of a longer text, or as many more or fewer as the nearest end of a word asks for."""
    if len(text) <= chars:
        return text
    ends = (text.rfind(" ", 0, chars + 1), text.rfind("\n", 0, chars + 1), text.find(" ", chars), text.find("\n", chars))
    end = min((end for end in ends if end > 0), key=lambda end: abs(end - chars), default=0)
    return text[: end if abs(end - chars) <= NEARBY else chars]


def _parts(text: str) -> list[str]:
    return [part.strip("\n") for part in text.split("\n\n") if part.strip()]


def _share(parts: list[Paragraph], *, holdout: bool) -> tuple[Paragraph, ...]:
    return tuple(parts[::4] if holdout else [part for number, part in enumerate(parts) if number % 4])


def _kind(paragraph: str) -> str:
    first = paragraph.split(maxsplit=1)[0]
    return "table" if first.startswith("station,") else "log" if first[0].isdigit() else _KINDS.get(first, "prose")
