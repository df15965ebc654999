"""Sizes prompts by asking the server itself: a few requests of one token each, and what it counted for their prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import get_args

from autotuner.errors import TransportError
from autotuner.loadgen.control import ControlClient
from autotuner.loadgen.prompts import Fit, PromptSource, filler_sample, texts_of
from autotuner.model.workload import Domain

NONCE = "[012345678901]"
SAMPLE_CHARS = 6000
MINIMUM_CHARS = 200
QUESTION_TOKENS = 60
"""What a question and its wishes have, about."""
PROBES = 3
ROOM = 16
"""Tokens left free below the longest context for the answer and the error of the first guess."""


def calibrate(
    control: ControlClient, *, model: str, chat_path: str, contexts: Sequence[int], domains: Sequence[Domain] = get_args(Domain)
) -> Fit:
    """How the server behind ``control`` counts prompts, for ``PromptSource.with_fit``; holds as long as model and template do.

    Asks once for the template, once per domain, once for the text that fills contexts, which is as long as the longest context allows, and
    then for a few whole prompts to put the estimate right.
    Raises ``TransportError`` when the server does not answer or does not count prompt tokens.
    """

    def count(text: str) -> int:
        return _prompt_tokens(control, model, chat_path, text)

    overhead = count(NONCE)
    # A long sample might not fit where only short contexts are served.
    room = max(MINIMUM_CHARS, min(SAMPLE_CHARS, (max(contexts, default=0) - overhead - ROOM) * 2))

    def chars_per_token(text: str) -> float:
        sample = text[:room]
        return len(sample) / max(1, count(f"{NONCE} {sample}") - overhead)

    questions = tuple((domain, chars_per_token(texts_of(domain))) for domain in domains)
    fit = Fit(overhead_tokens=overhead, question_chars=questions, filler_chars=chars_per_token(filler_sample(SAMPLE_CHARS)))
    return _put_right(fit, count, context=max(contexts, default=0), domains=domains)


def _put_right(fit: Fit, count: Callable[[str], int], *, context: int, domains: Sequence[Domain]) -> Fit:
    """The fit after a look at whole prompts of the longest context: what fills them weighs most, and a sample of it can mislead."""
    filled = context - fit.overhead_tokens - QUESTION_TOKENS
    if filled < QUESTION_TOKENS:
        return fit
    source = PromptSource(tuple(domains), fit=fit)
    counted = fmean(count(source.prompt(context, index, run="calibration").text) for index in range(PROBES))
    return replace(fit, filler_chars=fit.filler_chars * filled / max(1.0, filled + counted - context))


def _prompt_tokens(control: ControlClient, model: str, chat_path: str, text: str) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 1, "temperature": 0}
    answer = control.post_json(chat_path, body)
    usage = answer.get("usage") if isinstance(answer, dict) else None
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if not isinstance(tokens, int):
        raise TransportError(
            f"{control.base_url}{chat_path}: the answer has no usage.prompt_tokens, so prompts cannot be sized",
            hint="is this an OpenAI-compatible chat endpoint?",
        )
    return tokens
