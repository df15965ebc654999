"""Text: how prompts are counted and recognised, how long answers are, and what they say. Deterministic.

The tokenizer is four characters to a token, rounded up; each chat message adds ``MESSAGE_TOKENS`` for its template.
"""

from __future__ import annotations

import re
import zlib
from collections import OrderedDict
from collections.abc import Sequence

from autotuner.engines.simulated.performance import noise
from autotuner.engines.simulated.profile import Profile

CHARS_PER_TOKEN = 4
MESSAGE_TOKENS = 5
LENGTH_SPREAD = 0.35
"""Relative spread of the length of answers to prompts of one kind."""
_BLOCK_CHARS = 256
"""Prefixes are shared in blocks of this many characters."""
_CACHED_BLOCKS = 200_000
_QUESTION_CHARS = 160
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("rag", re.compile(r"\b(?:notes|facts|material|passages?|places named)\b.*\babove\b", re.IGNORECASE)),
    ("json", re.compile(r"\bJSON\b", re.IGNORECASE)),
    ("poem", re.compile(r"\b(?:haiku|poem|sonnet|ballad|limerick|verse)\b", re.IGNORECASE)),
    ("code", re.compile(r"\b(?:python|java|go|rust|bash|function|class|implement|quicksort|code|script|program in)\b", re.IGNORECASE)),
    ("prose", re.compile(r"\b(?:story|describe|letter|scene|novel|chapter|continue the thought|travel note)\b", re.IGNORECASE)),
    ("arithmetic", re.compile(r"\d+\D{0,12}\d+|\b(?:add|divide|work out)\b.*\d", re.IGNORECASE)),
)
_NONCE = re.compile(r"^\s*\[[^\]]*\]\s*")
_WORDS = tuple(f"{a}{b} " for a in ("lo", "ri", "sen", "ta", "mu", "ne", "pa", "vi") for b in ("ra", "ten", "ko", "lis", "ma", "do", "ve"))


def count(text: str) -> int:
    """Tokens of a text, at least 1."""
    return max(1, -(-len(text) // CHARS_PER_TOKEN))


def domain_of(prompt: str) -> str:
    """What kind of text a prompt asks for, by the words of its question, which is its last paragraph."""
    question = _NONCE.sub("", prompt.rstrip().rpartition("\n\n")[2])[:_QUESTION_CHARS]
    return next((kind for kind, pattern in _KINDS if pattern.search(question)), "explanation")


def answer_tokens(profile: Profile, prompt: str, *, domain: str, seed: int) -> int:
    """Length at which the answer to this prompt stops by itself: the same for the same prompt and seed."""
    mean = profile.answers.get(domain, profile.answers["explanation"])
    return max(2, round(mean * noise(seed, "answer", zlib.crc32(prompt.encode()), spread=LENGTH_SPREAD)))


def words(prompt_key: int, start: int, stop: int) -> str:
    """Tokens ``start`` to ``stop`` of the answer to a prompt: the same however they are cut into chunks."""
    size = len(_WORDS)
    return "".join([_WORDS[(prompt_key + 7 * at + at // size) % size] for at in range(start, stop)])


class PrefixCache:
    """Which prefixes of prompts are held, in blocks; the least recently used are dropped."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def use(self, prompt: str) -> int:
        """Tokens at the head of ``prompt`` that were held already; all of it is held from now on."""
        held, going, key = 0, True, 0
        for block in _blocks(prompt):
            key = zlib.crc32(block.encode(), key)
            going = going and key in self._blocks
            held += len(block) if going else 0
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > _CACHED_BLOCKS:
            self._blocks.popitem(last=False)
        return min(held // CHARS_PER_TOKEN, count(prompt) - 1)

    def flush(self) -> None:
        """Forget everything."""
        self._blocks.clear()


def _blocks(prompt: str) -> Sequence[str]:
    return [prompt[at : at + _BLOCK_CHARS] for at in range(0, len(prompt) - _BLOCK_CHARS + 1, _BLOCK_CHARS)]
