"""Prompts: natural text, unique from its first characters on, as long as the cell's context asks for, the same for the same seed.

Random tokens or repeated filler would misstate how many drafted tokens are accepted, so short contexts are a question with some wishes
about the answer, and longer ones put varied text in front of it. The nonce comes first: a prefix cache can then hold nothing but the
template.
"""

from __future__ import annotations

import hashlib
import math
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import get_args

from autotuner.errors import UsageError
from autotuner.loadgen.texts import Paragraph, core, cut, documents, library, texts
from autotuner.model.workload import Domain

SEPARATOR = "\n\n"
ORDINARY_FIT_CHARS = 4.0
"""Characters per token of ordinary English before anything was calibrated."""

MINIMUM_FILLER = 6
"""Fewer tokens are not worth a text of their own."""
MINIMUM_PIECE = 2.5
"""Nor are fewer than these the beginning of one more paragraph."""
MOST_WISHES = 75
"""Up to so many tokens, wishes about the answer bring a prompt to its length; beyond, a text in front of the question does."""
FEW_WISHES = 15
LAST_WISHES = 9
AT_LAST = 4
"""The last wishes, up to so many, are chosen together of so many."""
LAST_PARTS = 40
"""Paragraphs of which the last one or two are chosen, by how well they fill what room is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How the server's tokenizer and chat template count, from calibration."""

    overhead_tokens: float = 20.0
    """Tokens of the template and of the nonce."""
    question_chars: tuple[tuple[str, float], ...] = ()
    """Domain → characters per token of its questions and wishes."""
    filler_chars: float = ORDINARY_FIT_CHARS
    library_chars: float = ORDINARY_FIT_CHARS
    """Characters per token of code with its documentation."""
    counted: tuple[tuple[int, int], ...] = ()
    """``key_of`` a question, a wish or a paragraph → its tokens, of those that were counted one by one."""
    corrections: tuple[tuple[int, float], ...] = ()
    """Context → by how much the text in front of the question must be longer than reckoned, from whole prompts of that context."""

    def correction(self, context: int) -> float:
        """The factor for a context: that of the nearest one, by ratio."""
        if not self.corrections:
            return 1.0
        return min(self.corrections, key=lambda known: abs(math.log(known[0] / context)))[1]


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

    @property
    def longest_unrepeated(self) -> int:
        """Tokens of a prompt beyond which its text would have to repeat itself."""
        return round(sum(tokens for pool in _pools(self.fit, "rag", holdout=self.holdout) for _, tokens in pool))

    def domain(self, index: int) -> Domain:
        """The domain of prompt number ``index``."""
        return self.domains[index % len(self.domains)]

    def prompt(self, context: int, index: int, run: str = "") -> Prompt:
        """Prompt number ``index`` for a context in tokens. ``run`` changes the nonce and nothing else."""
        domain = self.domain(index)
        rng = random.Random(f"{self.seed}/{self.holdout}/{index}")  # noqa: S311 - a repeatable choice of texts
        asked = texts()[domain]
        questions = asked.holdout if self.holdout else asked.questions
        question = questions[(index // len(self.domains) + self.seed) % len(questions)]
        nonce = nonce_of(self.seed, index, f"{self.holdout}/{run}")
        sizes = _sizes(self.fit, domain)
        left = context - self.fit.overhead_tokens
        tokens = sizes[question]
        roomy = left > tokens + MOST_WISHES
        wishes = [(wish, sizes[wish]) for wish in asked.wishes]
        rng.shuffle(wishes)
        # A text takes the rest of the room; questions about a text cannot do without one.
        budget = FEW_WISHES if roomy else 0 if domain == "rag" else left - tokens
        for wish in _chosen(wishes, budget):
            question = f"{question} {wish}"
            tokens += sizes[wish]
        parts = self._filler((left - tokens) * self.fit.correction(context), domain, rng)
        return Prompt(SEPARATOR.join([f"[{nonce}]", *parts, question]), domain)

    def _filler(self, tokens: float, domain: Domain, rng: random.Random) -> list[str]:
        """Paragraphs of so many tokens together: as they come, and the last ones by how well they fit."""
        if tokens < MINIMUM_FILLER:
            return []
        drawn = _drawn(_pools(self.fit, domain, holdout=self.holdout), rng)
        last = [next(drawn) for _ in range(LAST_PARTS)]
        enough = 2 * max(size for _, size in last)
        chosen: list[str] = []
        while tokens > enough:
            text, size = next(drawn)
            if size <= tokens:
                chosen.append(text)
                tokens -= size
        fitting = _nearest(last, tokens)
        left = tokens - sum(size for _, size in fitting)
        chosen += [text for text, _ in fitting]
        if left >= MINIMUM_PIECE:
            # Of sentences, since a table's or a log's first words have other lengths than the rest of it.
            text, size = next((part for part in last if ". " in part[0] and part not in fitting), last[0])
            chosen.append(cut(text, max(1, int(len(text) * left / size))))
        return chosen


Sized = tuple[str, float]
"""A text and its tokens."""


def key_of(text: str) -> int:
    """What a text is called in a fit."""
    return zlib.crc32(text.encode())


@cache
def _sizes(fit: Fit, domain: Domain) -> Mapping[str, float]:
    """Tokens of the questions and wishes of a domain."""
    rate, counted = dict(fit.question_chars).get(domain, ORDINARY_FIT_CHARS), dict(fit.counted)
    found = texts()[domain]
    before = dict.fromkeys((*found.questions, *found.holdout), len(SEPARATOR)) | dict.fromkeys(found.wishes, len(" "))
    return {text: counted.get(key_of(text), (len(text) + space) / rate) for text, space in before.items()}


@cache
def _pools(fit: Fit, domain: Domain, *, holdout: bool) -> tuple[tuple[Sized, ...], ...]:
    """Paragraphs with their tokens, separator included: those that suit the domain, the others, and what only long contexts need."""
    counted = dict(fit.counted)

    def sized(parts: Sequence[Paragraph], rate: float) -> tuple[Sized, ...]:
        return tuple((part.text, counted.get(key_of(part.text), (len(part.text) + len(SEPARATOR)) / rate)) for part in parts)

    first = set(core(holdout=holdout))
    prose = sized(documents(holdout=holdout), fit.filler_chars)
    code = sized(core(holdout=holdout), fit.library_chars)
    rest = sized([part for part in library(holdout=holdout) if part not in first], fit.library_chars)
    return (code, prose, rest) if domain == "code" else (prose, code, rest)


def _drawn(pools: Sequence[Sequence[Sized]], rng: random.Random) -> Iterator[Sized]:
    """Everything once, pool by pool, in any order; and then all of it again."""
    while True:
        for pool in pools:
            left = list(pool)
            while left:
                at = rng.randrange(len(left))
                left[at], left[-1] = left[-1], left[at]
                yield left.pop()


def _nearest(parts: Sequence[Sized], room: float) -> tuple[Sized, ...]:
    """None, one or two of the parts, whichever come nearest to ``room`` without a word too many."""
    ordered = sorted(parts, key=lambda part: part[1])
    best: tuple[float, tuple[Sized, ...]] = (0.0, ())
    high = len(ordered) - 1
    for low, part in enumerate(ordered):
        if best[0] < part[1] <= room + 1:
            best = (part[1], (part,))
        while high > low and part[1] + ordered[high][1] > room + 1:
            high -= 1
        if high > low and part[1] + ordered[high][1] > best[0]:
            best = (part[1] + ordered[high][1], (part, ordered[high]))
    return best[1]


def nonce_of(seed: int, index: int, run: str) -> str:
    """Twelve digits that no other prompt has. Digits only: tokenizers cut them in equal groups, so that every nonce has as many tokens."""
    return f"{int(hashlib.sha256(f'{seed}/{index}/{run}'.encode()).hexdigest(), 16) % 10**12:012d}"


def _chosen(wishes: Sequence[Sized], room: float) -> list[str]:
    """Wishes whose tokens come nearest to ``room`` together: as they come while there is plenty, the last by how well they fit."""
    rest, found = list(wishes), []
    while rest and room > 2 * max(tokens for _, tokens in rest):
        wish, tokens = rest.pop(0)
        found.append(wish)
        room -= tokens
    sums: list[tuple[float, tuple[str, ...]]] = [(0.0, ())]
    for wish, tokens in rest[:LAST_WISHES]:
        sums += [(total + tokens, (*some, wish)) for total, some in sums if len(some) < AT_LAST]
    return [*found, *min(sums, key=lambda choice: abs(room - choice[0]))[1]]
