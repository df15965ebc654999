"""Sizes prompts by asking the server itself: requests of one token each, and what it counted for their prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from statistics import fmean
from typing import get_args

from autotuner.errors import TransportError
from autotuner.loadgen.control import ControlClient
from autotuner.loadgen.prompts import SEPARATOR, Fit, PromptSource, key_of
from autotuner.loadgen.texts import core, documents, library, questions_of, sample, texts
from autotuner.model.workload import Domain

NONCE = "[012345678901]"
BEFORE_QUESTION = f"{SEPARATOR}Q"
"""After a paragraph, since many tokenizers make one token of a full stop and the empty line after it."""
SAMPLE_CHARS = 6000
MINIMUM_CHARS = 200
QUESTION_TOKENS = 60
"""What a question and its wishes have, about."""
SHORTEST_TOKENS = 24
"""No question is much shorter than this: of a context with less room than that nothing can be learned."""
PROBES = 3
QUESTIONS = 8
"""Of contexts that hold a question and nothing else, which differ more and cost little."""
LONG = 16_384
"""From this context on one whole prompt must do: it may take a server a minute."""
ROOM = 16
"""Tokens left free below the longest context for the answer and the error of the first guess."""
GOOD = 0.015
"""Whole prompts that miss their context by more than this show a tokenizer that characters do not foretell."""
GOOD_TOKENS = 5
GOOD_QUESTION_TOKENS = 3
"""The same in tokens: for prompts that a text fills, and for questions alone."""


def calibrate(
    control: ControlClient,
    *,
    model: str,
    chat_path: str,
    contexts: Sequence[int],
    domains: Sequence[Domain] = get_args(Domain),
    at_once: int = 1,
    beat: Callable[[], None] = lambda: None,
) -> Fit:
    """How the server behind ``control`` counts prompts, for ``PromptSource.with_fit``; holds as long as model and template do.

    Asks once for the template, once per domain and once for each kind of text that fills contexts, a sample as long as the longest context
    allows, and then for a few whole prompts of every context. Where one of these is not as long as it should be, every question and every
    paragraph is counted by itself, about seven hundred short requests, ``at_once`` of them in flight: then prompts are put together from
    pieces that are known to the token. ``beat`` is called before every request.
    Raises ``TransportError`` when the server does not answer or does not count prompt tokens.
    """

    def count(text: str) -> int:
        beat()
        return _prompt_tokens(control, model, chat_path, text)

    wanted = sorted(set(contexts)) or [0]
    overhead = count(NONCE)
    # A long sample might not fit where only short contexts are served.
    room = max(MINIMUM_CHARS, min(SAMPLE_CHARS, (wanted[-1] - overhead - ROOM) * 2))

    def chars_per_token(text: str) -> float:
        shown = text[:room]
        return len(shown) / max(1, count(NONCE + SEPARATOR + shown) - overhead)

    fit = Fit(
        overhead_tokens=overhead,
        question_chars=tuple((domain, chars_per_token(questions_of(domain))) for domain in domains),
        filler_chars=chars_per_token(sample(documents(holdout=False), SAMPLE_CHARS)),
        library_chars=chars_per_token(sample(library(holdout=False), SAMPLE_CHARS)),
    )
    fit, good = _put_right(fit, count, contexts=wanted, domains=domains)
    if good:
        return fit
    bare = count(NONCE + BEFORE_QUESTION)
    with ThreadPoolExecutor(max(1, at_once)) as pool:
        asked = _asked(domains)
        counts = pool.map(lambda piece: count(NONCE + piece) - overhead, asked)
        parts = _parts()
        part_counts = pool.map(lambda part: count(NONCE + SEPARATOR + part + BEFORE_QUESTION) - bare, parts)
        counted = {key_of(piece.strip()): tokens for piece, tokens in zip(asked, counts, strict=True)}
        counted |= {key_of(part): tokens for part, tokens in zip(parts, part_counts, strict=True)}
    fit = replace(fit, counted=tuple(sorted(counted.items())), corrections=())
    return _put_right(fit, count, contexts=[context for context in wanted if context >= LONG], domains=domains)[0]


def _asked(domains: Sequence[Domain]) -> list[str]:
    """Every question and wish after what stands before it: of search and of confirmation, so that one calibration does."""
    found = [texts()[domain] for domain in domains]
    whole = [SEPARATOR + question for each in found for question in (*each.questions, *each.holdout)]
    return list(dict.fromkeys([*whole, *(f" {wish}" for each in found for wish in each.wishes)]))


def _parts() -> list[str]:
    """Every paragraph that is counted by itself."""
    found = [part for holdout in (False, True) for part in (*documents(holdout=holdout), *core(holdout=holdout))]
    return list(dict.fromkeys(part.text for part in found))


def _put_right(fit: Fit, count: Callable[[str], int], *, contexts: Sequence[int], domains: Sequence[Domain]) -> tuple[Fit, bool]:
    """The fit after a look at whole prompts, and whether they were as long as they should be once it is put right."""
    corrections: list[tuple[int, float]] = []
    good = True
    for context in contexts:
        if context < fit.overhead_tokens + SHORTEST_TOKENS:
            continue
        source = PromptSource(tuple(domains), fit=fit)
        filled = context - fit.overhead_tokens - QUESTION_TOKENS
        probes = range(QUESTIONS if filled < QUESTION_TOKENS else PROBES if context < LONG else 1)
        counts = [count(source.prompt(context, index, run="calibration").text) for index in probes]
        middle = fmean(counts)
        if filled >= QUESTION_TOKENS:
            corrections.append((context, filled / max(1.0, filled + middle - context)))
            limit = max(GOOD_TOKENS, GOOD * context)
        else:
            middle, limit = context, GOOD_QUESTION_TOKENS
        good = good and all(abs(each - middle) <= limit for each in counts)
    return replace(fit, corrections=tuple(corrections)), good


def _prompt_tokens(control: ControlClient, model: str, path: str, text: str) -> int:
    asked: dict[str, object] = {"messages": [{"role": "user", "content": text}]} if path.endswith("/chat/completions") else {"prompt": text}
    answer = control.post_json(path, {"model": model, **asked, "max_tokens": 1, "temperature": 0})
    usage = answer.get("usage") if isinstance(answer, dict) else None
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if not isinstance(tokens, int):
        raise TransportError(
            f"{control.base_url}{path}: the answer has no usage.prompt_tokens, so prompts cannot be sized",
            hint="is this an OpenAI-compatible chat endpoint?",
        )
    return tokens
