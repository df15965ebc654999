"""One line of a file of prompts → the request that it stands for. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant", "bing": "assistant"}
ROLES |= {"system": "system", "developer": "developer", "tool": "tool"}
LONGEST_TOKENS = 100_000_000
KINDS_HINT = 'give "messages" (OpenAI), "conversations" (ShareGPT), "prompt" (a text) or "input_length" (tokens)'


class LineError(Exception):
    """The line is no request. ``key`` says where in it to look."""

    def __init__(self, message: str, *, key: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.key = key
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One request of the file. Either it has ``messages``, or ``input_tokens`` says how long a text to make up."""

    line: int
    messages: tuple[Mapping[str, str], ...] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None
    arrival_s: float | None = None


def entry_of(value: object, *, line: int) -> Entry:
    """The request that a JSON value stands for. Raises ``LineError``."""
    if not isinstance(value, Mapping):
        raise LineError("this is no JSON object", hint=KINDS_HINT)
    body = value.get("body")
    table: Mapping[str, Any] = (
        {**body, **{key: item for key, item in value.items() if key != "body"}} if isinstance(body, Mapping) else value
    )
    output = next((key for key in ("max_completion_tokens", "max_tokens", "output_length") if table.get(key) is not None), None)
    output_tokens = None if output is None else _tokens(table, output)
    only_length = not any(key in table for key in ("messages", "conversations", "prompt"))
    arrival_s = _arrival_s(table, milliseconds=only_length)
    if "messages" in table:
        messages = _openai(table["messages"])
    elif "conversations" in table:
        messages = _sharegpt(table["conversations"])
    elif "prompt" in table:
        messages = (_message("user", table["prompt"], "prompt"),)
    elif "input_length" in table:
        return Entry(line=line, input_tokens=_tokens(table, "input_length"), output_tokens=output_tokens, arrival_s=arrival_s)
    else:
        raise LineError("there is no prompt in this object", hint=KINDS_HINT)
    return Entry(line=line, messages=messages, output_tokens=output_tokens, arrival_s=arrival_s)


def _openai(messages: object) -> tuple[Mapping[str, str], ...]:
    if not isinstance(messages, list) or not messages:
        raise LineError("`messages` is not a list of at least one message", key="messages")
    found = []
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise LineError(f"message {number} is no object with a `role`", key="messages", hint='{"role": "user", "content": "…"}')
        content = message.get("content")
        if content is None and message["role"] == "assistant":
            content = ""
        found.append(_message(message["role"], content, "content"))
    return tuple(found)


def _sharegpt(turns: object) -> tuple[Mapping[str, str], ...]:
    """The conversation up to its last human turn: what comes after is for the model to say."""
    if not isinstance(turns, list) or not turns:
        raise LineError("`conversations` is not a list of at least one turn", key="conversations")
    found = []
    for number, turn in enumerate(turns, start=1):
        role = ROLES.get(str(turn.get("from"))) if isinstance(turn, Mapping) else None
        if role is None:
            raise LineError(f"turn {number} is not from `human`, `gpt` or `system`", key="from", hint='{"from": "human", "value": "…"}')
        found.append(_message(role, turn.get("value"), "value"))
    last = max((at for at, message in enumerate(found) if message["role"] == "user"), default=None)
    if last is None:
        raise LineError("the conversation has no human turn", key="conversations")
    return tuple(found[: last + 1])


def _message(role: str, content: object, key: str) -> Mapping[str, str]:
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, Mapping) and part.get("type", "text") == "text" else None for part in content]
        if not all(isinstance(part, str) for part in parts):
            raise LineError(f"`{key}` has a part that is not text", key=key, hint="only texts can be asked, no images or sound")
        content = "".join(str(part) for part in parts)
    if not isinstance(content, str):
        raise LineError(f"`{key}` is {type(content).__name__}, not a text", key=key)
    if not content and role == "user":
        raise LineError(f"`{key}` is empty", key=key)
    return {"role": role, "content": content}


def _tokens(table: Mapping[str, Any], key: str) -> int:
    value = table[key]
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LONGEST_TOKENS:
        raise LineError(f"`{key}` is {value!r}, not a number of tokens", key=key)
    return value


def _arrival_s(table: Mapping[str, Any], *, milliseconds: bool) -> float | None:
    key = next((key for key in ("arrival_s", "timestamp") if table.get(key) is not None), None)
    if key is None:
        return None
    value = table[key]
    if isinstance(value, str):
        try:
            return dt.datetime.fromisoformat(value).astimezone(dt.UTC).timestamp()
        except ValueError:
            raise LineError(f"`{key}` is {value!r}, not a time", key=key, hint="seconds, or 2025-06-01T08:00:00.250+00:00") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e13:
        raise LineError(f"`{key}` is {value!r}, not a time", key=key, hint="seconds, or 2025-06-01T08:00:00.250+00:00")
    return float(value) / 1000 if milliseconds and key == "timestamp" else float(value)
