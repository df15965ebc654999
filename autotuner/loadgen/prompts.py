"""Prompts: natural text, unique from its first characters on, as long as the cell's context asks for, the same for the same seed.

Random tokens or repeated filler would misstate how many drafted tokens are accepted, so short contexts are a question with some wishes
about the answer, and longer ones put varied text in front of it. The nonce comes first: a prefix cache can then hold nothing but the
template.
"""

from __future__ import annotations

import hashlib
import random
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import get_args

from autotuner.errors import UsageError
from autotuner.model.workload import Domain

ORDINARY_FIT_CHARS = 4.0
"""Characters per token of ordinary English before anything was calibrated."""

MINIMUM_FILLER = 24
"""Fewer characters are not worth a text of their own."""
MOST_WISHES_CHARS = 300
"""Up to here, wishes about the answer bring a prompt to its length; beyond, a text in front of the question does."""
FEW_WISHES_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How the server's tokenizer and chat template count, from calibration."""

    overhead_tokens: float = 20.0
    """Tokens of the template and of the nonce."""
    question_chars: tuple[tuple[str, float], ...] = ()
    """Domain → characters per token of its questions and wishes."""
    filler_chars: float = ORDINARY_FIT_CHARS

    def chars_per_token(self, domain: str) -> float:
        """Characters per token of the domain's own text."""
        return dict(self.question_chars).get(domain, ORDINARY_FIT_CHARS)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one request asks: a user message, or a conversation whose last message it is."""

    text: str
    domain: str
    messages: tuple[Mapping[str, str], ...] = ()
    """Of a conversation, all of it, in the form of OpenAI's API; empty for a single message."""
    output_tokens: int | None = None
    """The longest answer, where the prompt brings its own limit along."""


@dataclass(frozen=True, slots=True)
class _Texts:
    questions: tuple[str, ...]
    holdout: tuple[str, ...]
    wishes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PromptSource:
    """Endless prompts of some domains. ``holdout`` selects questions and texts that the search never uses."""

    domains: tuple[Domain, ...]
    seed: int = 0
    holdout: bool = False
    fit: Fit = field(default_factory=Fit)

    def __post_init__(self) -> None:
        if not self.domains or set(self.domains) - set(get_args(Domain)):
            raise UsageError(f"prompt domains are {list(self.domains)}", hint=f"choose one or more of {', '.join(get_args(Domain))}")

    def with_fit(self, fit: Fit) -> PromptSource:
        """The same prompts, sized for another tokenizer."""
        return replace(self, fit=fit)

    @property
    def sized(self) -> bool:
        """True: every prompt aims at its context."""
        return True

    def domain(self, index: int) -> Domain:
        """The domain of prompt number ``index``."""
        return self.domains[index % len(self.domains)]

    def prompt(self, context: int, index: int, run: str = "") -> Prompt:
        """Prompt number ``index`` for a context in tokens. ``run`` changes the nonce and nothing else."""
        domain = self.domain(index)
        rng = random.Random(f"{self.seed}/{self.holdout}/{index}")  # noqa: S311 - a repeatable choice of texts
        texts = _texts()[domain]
        questions = texts.holdout if self.holdout else texts.questions
        question = questions[(index // len(self.domains) + self.seed) % len(questions)]
        nonce = nonce_of(self.seed, index, f"{self.holdout}/{run}")
        left_tokens = context - self.fit.overhead_tokens
        chars = left_tokens * self.fit.chars_per_token(domain)
        roomy = chars > len(question) + MOST_WISHES_CHARS
        if roomy or domain == "rag":
            # A text takes the rest of the room; questions about a text cannot do without one.
            chars = len(question) + (FEW_WISHES_CHARS if roomy else 0)
        question = _with_wishes(question, list(texts.wishes), rng, chars)
        left_tokens -= len(question) / self.fit.chars_per_token(domain)
        filler = self._filler(left_tokens * self.fit.filler_chars, rng)
        return Prompt(f"[{nonce}] {filler}{question}", domain)

    def _filler(self, chars: float, rng: random.Random) -> str:
        if chars < MINIMUM_FILLER:
            return ""
        paragraphs = list(_paragraphs(holdout=self.holdout))
        chosen: list[str] = []
        length = 0
        while length < chars:
            rng.shuffle(paragraphs)
            for paragraph in paragraphs:
                chosen.append(paragraph)
                length += len(paragraph) + 2
                if length >= chars:
                    break
        return _cut("\n\n".join(chosen), int(chars) - 2) + "\n\n"


def nonce_of(seed: int, index: int, run: str) -> str:
    """Twelve digits that no other prompt has. Digits only: tokenizers cut them in equal groups, so that every nonce has as many tokens."""
    return f"{int(hashlib.sha256(f'{seed}/{index}/{run}'.encode()).hexdigest(), 16) % 10**12:012d}"


def _with_wishes(question: str, wishes: list[str], rng: random.Random, chars: float) -> str:
    """The question and as many wishes about the answer as fit, the last one chosen to come nearest to ``chars``."""
    rng.shuffle(wishes)
    while wishes:
        fitting = [wish for wish in wishes if len(question) + 1 + len(wish) <= chars]
        if not fitting:
            break
        gap = chars - len(question) - 1
        longest = max(len(wish) for wish in wishes)
        wish = fitting[0] if gap > 2 * longest else min(fitting, key=lambda item: gap - len(item))
        wishes.remove(wish)
        question = f"{question} {wish}"
    nearest = min(wishes, key=lambda item: abs(chars - len(question) - 1 - len(item)), default="")
    gap = chars - len(question)
    if nearest and gap > 0 and abs(gap - 1 - len(nearest)) < gap:
        question = f"{question} {nearest}"
    return question


def _cut(text: str, chars: int) -> str:
    """The first ``chars`` characters, to the end of a word."""
    if len(text) <= chars:
        return text
    end = text.find(" ", chars)
    return text if end < 0 or end > chars + 20 else text[:end]


@cache
def _texts() -> dict[str, _Texts]:
    raw = tomllib.loads(files("autotuner.loadgen").joinpath("data/prompts.toml").read_text(encoding="utf-8"))
    return {
        name: _Texts(tuple(entry["questions"]), tuple(entry["holdout"]), (*entry["wishes"], *raw["any"]["wishes"]))
        for name, entry in raw["domain"].items()
    }


@cache
def _paragraphs(*, holdout: bool) -> tuple[str, ...]:
    text = files("autotuner.loadgen").joinpath("data/corpus.txt").read_text(encoding="utf-8")
    paragraphs = tuple(part.strip() for part in text.split("\n\n") if part.strip())
    return paragraphs[::4] if holdout else tuple(part for number, part in enumerate(paragraphs) if number % 4)


def texts_of(domain: Domain) -> str:
    """All questions and wishes of a domain in one text, as a sample for calibration."""
    texts = _texts()[domain]
    return " ".join([*texts.questions, *texts.wishes])


def filler_sample(chars: int) -> str:
    """Text of the kind that fills long contexts, drawn from all of the corpus: its parts differ by a third in characters per token."""
    paragraphs = list(_paragraphs(holdout=False))
    random.Random(0).shuffle(paragraphs)  # noqa: S311 - a repeatable choice of texts
    return _cut("\n\n".join(paragraphs), chars)
