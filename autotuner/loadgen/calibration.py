"""Sizes prompts by asking the server itself: a few requests of one token each, and what it counted for their prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotuner.errors import TransportError
from autotuner.loadgen.control import ControlClient
from autotuner.loadgen.prompts import Fit, PromptSource, filler_sample, texts_of

NONCE = "[0123456789]"
SAMPLE_CHARS = 6000
ROOM = 16
"""Tokens left free below the longest context for the answer and the error of the first guess."""


def calibrate(prompts: PromptSource, control: ControlClient, *, model: str, chat_path: str, contexts: Sequence[int]) -> PromptSource:
    """The same prompts, sized for the tokenizer and template of the server behind ``control``.

    Asks once for the template, once per domain, and once for the text that fills contexts, which is as long as the longest context allows.
    Raises ``TransportError`` when the server does not answer or does not count prompt tokens.
    """

    def count(text: str) -> int:
        return _prompt_tokens(control, model, chat_path, text)

    overhead = count(NONCE)
    questions = []
    for domain in prompts.domains:
        text = texts_of(domain)
        questions.append((domain, _chars_per_token(text, count(f"{NONCE} {text}") - overhead)))
    fit = Fit(overhead_tokens=overhead, question_chars=tuple(questions))
    room = (max(contexts, default=0) - overhead - ROOM) * 2
    text = filler_sample(max(200, min(SAMPLE_CHARS, room)))
    filler_chars = _chars_per_token(text, count(f"{NONCE} {text}") - overhead)
    return prompts.with_fit(replace(fit, filler_chars=filler_chars))


def _chars_per_token(text: str, tokens: int) -> float:
    return len(text) / max(tokens, 1)


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
