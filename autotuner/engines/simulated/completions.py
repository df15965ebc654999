"""Chat and text completions: what an OpenAI client asks for, and the answer in one piece or as a stream of events.

A chunk is written from the scheduler's own call, without a task of its own, so that one costs little.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autotuner.engines.simulated import tokens
from autotuner.engines.simulated.setting import Setting
from autotuner.engines.simulated.wire import LAST_CHUNK, Answer, chunk, head

COMPLETION_DEFAULT = 16
"""Tokens of a text completion whose client does not say."""


class UnusableRequestError(Exception):
    """The request asks for something that the engine refuses with 400."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one completion request asks for."""

    chat: bool
    model: str
    prompt: str
    prompt_tokens: int
    answer_tokens: int
    finish_reason: str
    domain: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    scripted: str | None
    """What the answer says; ``None`` for words that follow from the prompt."""

    def words(self, start: int, stop: int) -> str:
        """Tokens ``start`` to ``stop`` of the answer."""
        if self.scripted is None:
            return tokens.words(zlib.crc32(self.prompt.encode()), start, stop)
        return self.scripted[start * tokens.CHARS_PER_TOKEN : stop * tokens.CHARS_PER_TOKEN]


def parse_ask(body: bytes, *, chat: bool, setting: Setting, context_length: int, served: str) -> Ask:
    """The request. Raises ``UnusableRequestError`` with the engine's words."""
    table = _table(body)
    prompt, prompt_tokens = _chat_prompt(table) if chat else _text_prompt(table)
    if prompt_tokens >= context_length:
        msg = f"The input ({prompt_tokens} tokens) is longer than the model's context length ({context_length} tokens)."
        raise UnusableRequestError(msg)
    wanted = _wanted(table, chat=chat)
    if wanted is not None and prompt_tokens + wanted > context_length:
        msg = (
            f"Requested token count exceeds the model's maximum context length of {context_length} tokens. You requested a total of "
            f"{prompt_tokens + wanted} tokens: {prompt_tokens} tokens from the input messages and {wanted} tokens for the completion. "
            "Please reduce the number of tokens in the input messages or the completion to fit within the limit."
        )
        raise UnusableRequestError(msg)
    limit = wanted if wanted is not None else context_length - prompt_tokens
    domain = tokens.domain_of(prompt)
    scripted = setting.scripted(prompt)
    if scripted is not None:
        natural = tokens.count(scripted)
    elif table.get("ignore_eos"):
        natural = limit
    else:
        natural = tokens.answer_tokens(setting.profile, prompt, domain=domain, seed=setting.seed)
    options = table.get("stream_options") or {}
    return Ask(
        chat=chat,
        model=str(table.get("model") or served),
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        answer_tokens=min(natural, limit),
        finish_reason="stop" if natural < limit else "length",
        domain=domain,
        stream=bool(table.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        scripted=scripted,
    )


def _table(body: bytes) -> dict[str, Any]:
    try:
        table = json.loads(body)
    except ValueError as error:
        msg = f"The body is not JSON: {error}"
        raise UnusableRequestError(msg) from error
    if not isinstance(table, dict) or not isinstance(table.get("stream_options") or {}, dict):
        msg = "The body and its stream_options must be objects."
        raise UnusableRequestError(msg)
    if table.get("n", 1) != 1:
        msg = "Only n=1 is simulated."
        raise UnusableRequestError(msg)
    return table


def _wanted(table: dict[str, Any], *, chat: bool) -> int | None:
    wanted = table.get("max_completion_tokens", table.get("max_tokens"))
    if wanted is None:
        return None if chat else COMPLETION_DEFAULT
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        msg = f"max_tokens must be at least 1, got {wanted}."
        raise UnusableRequestError(msg)
    return wanted


def _chat_prompt(table: dict[str, Any]) -> tuple[str, int]:
    messages = table.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        msg = "messages must be a list of at least one message."
        raise UnusableRequestError(msg)
    texts = [_content(message.get("content")) for message in messages]
    return "\n\n".join(texts), sum(tokens.count(text) + tokens.MESSAGE_TOKENS for text in texts)


def _content(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _text_prompt(table: dict[str, Any]) -> tuple[str, int]:
    prompt = table.get("prompt")
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return " ".join(map(str, prompt)), len(prompt)
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str) or not prompt:
        msg = "prompt must be a text, or a list of one text or of tokens."
        raise UnusableRequestError(msg)
    return prompt, tokens.count(prompt)


class Usage:
    """Token counts as the engine reports them."""

    def __init__(self, ask: Ask, cached: int | None) -> None:
        self._prompt = ask.prompt_tokens
        self._details = None if cached is None else {"cached_tokens": cached}

    def at(self, made: int) -> dict[str, Any]:
        """After ``made`` tokens of the answer."""
        return {
            "prompt_tokens": self._prompt,
            "total_tokens": self._prompt + made,
            "completion_tokens": made,
            "prompt_tokens_details": self._details,
            "reasoning_tokens": 0,
        }


class Whole:
    """An answer in one piece."""

    def __init__(self, ask: Ask, usage: Usage) -> None:
        self._ask, self._usage = ask, usage
        self.done = asyncio.get_running_loop().create_future()

    def emit(self, _: int, end: bool) -> None:  # noqa: FBT001 - called once per step by the scheduler
        """Take the scheduler's word that the answer is complete."""
        if end and not self.done.done():
            self.done.set_result(None)

    def answer(self) -> Answer:
        """The finished answer."""
        ask = self._ask
        text = ask.words(0, ask.answer_tokens)
        part = {"message": {"role": "assistant", "content": text, "tool_calls": None}} if ask.chat else {"text": text}
        choice = {"index": 0, **part, "logprobs": None, "finish_reason": ask.finish_reason}
        return Answer.of(
            {
                "id": uuid.uuid4().hex,
                "object": "chat.completion" if ask.chat else "text_completion",
                "created": int(time.time()),
                "model": ask.model,
                "choices": [choice],
                "usage": self._usage.at(ask.answer_tokens),
            }
        )


class Stream:
    """An answer as server-sent events; ``write`` takes the bytes."""

    def __init__(self, ask: Ask, usage: Usage, write: Callable[[bytes], object]) -> None:
        self._ask, self._usage, self._write = ask, usage, write
        self._begun = False
        self._sent = 0
        self._id = uuid.uuid4().hex
        self._created = int(time.time())
        self.done = asyncio.get_running_loop().create_future()

    def emit(self, made: int, end: bool) -> None:  # noqa: FBT001 - called once per step by the scheduler
        """Send what is new of the answer, and its end."""
        if self.done.done():
            return
        events = [] if self._begun else self._begin()
        if made > self._sent:
            events.append(self._event(self._delta(self._ask.words(self._sent, made)), made=made))
            self._sent = made
        if end:
            events += self._end(made)
        self.send(events)
        if end:
            self._write(LAST_CHUNK)
            self.done.set_result(None)

    def send(self, events: list[str]) -> None:
        """Send events as one chunk."""
        self._write(chunk("".join(f"data: {event}\n\n" for event in events).encode()))

    def _begin(self) -> list[str]:
        self._begun = True
        self._write(head(200, "text/event-stream", "transfer-encoding: chunked"))
        return [self._event({"delta": {"role": "assistant", "content": ""}}, made=0)] if self._ask.chat else []

    def _end(self, made: int) -> list[str]:
        events = [self._event(self._delta(None), made=made, finish=self._ask.finish_reason)]
        if self._ask.include_usage:
            events.append(self._json([], self._usage.at(made)))
        return [*events, "[DONE]"]

    def _delta(self, text: str | None) -> dict[str, Any]:
        if self._ask.chat:
            return {"delta": {} if text is None else {"content": text}}
        return {"text": text or ""}

    def _event(self, part: dict[str, Any], *, made: int, finish: str | None = None) -> str:
        usage = self._usage.at(made) if self._ask.continuous_usage else None
        return self._json([{"index": 0, **part, "logprobs": None, "finish_reason": finish, "matched_stop": None}], usage)

    def _json(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> str:
        kind = "chat.completion.chunk" if self._ask.chat else "text_completion"
        return json.dumps(
            {"id": self._id, "object": kind, "created": self._created, "model": self._ask.model, "choices": choices, "usage": usage}
        )
