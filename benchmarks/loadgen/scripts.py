"""What the mock server says, as frames in time: golden scenarios with a known truth, and streams for load. Pure.

A model's name selects the script: ``S1`` … by name, ``S1@0.25`` for the same at a quarter of its times, ``lockstep:20`` and
``staggered:20`` for load at 20 chunks a second and stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

FIRST_S, GAP_S = 0.2, 0.025
TOKENS = 40
STAMP_MONOTONIC, STAMP_REALTIME = b"<CLOCK_MONOTONIC..>", b"<CLOCK_REALTIME...>"
"""Replaced by 19 digits of nanoseconds just before a chunk is sent."""
WATERMARK_BITS = 16
WATERMARK_CHUNKS, WATERMARK_TOKENS = 2 * WATERMARK_BITS, 3 * WATERMARK_BITS
LOAD_FIRST_S = 0.05
HUGE = 1 << 20


@dataclass(frozen=True, slots=True)
class Frame:
    """Something that is written at one moment, ``after_s`` behind the one before it."""

    after_s: float
    data: bytes
    tokens: tuple[int, ...] = ()
    """Cumulative completion tokens after each of its token-bearing events."""
    parts: int = 1
    """TCP writes that it takes, ``part_gap_s`` apart."""
    part_gap_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Ask:
    """What the mock understood of a request."""

    serial: int
    model: str
    max_tokens: int
    prompt_tokens: int
    usage: bool
    """``stream_options.include_usage``"""
    continuous: bool
    """``stream_options.continuous_usage_stats``"""
    spec_details: bool
    """``return_spec_tokens_details``, as SGLang has it."""


@dataclass(slots=True)
class Script:
    """An answer as it is written down. Times are multiplied by ``scale``."""

    ask: Ask
    scale: float = 1.0
    status: int = 200
    framing: str = "chunked"
    """``chunked``, or ``close``: the body ends with the connection."""
    head_parts: int = 1
    continuous: bool = True
    """Whether this server can count tokens chunk by chunk."""
    eol: bytes = b"\n"
    n: int = 0
    cached: int = 0
    verify_steps: int | None = None
    accepted_drafts: int | None = None
    finish_reason: str | None = None
    frames: list[Frame] = field(default_factory=list)
    dies: bool = False
    """The connection is reset after the last frame."""

    @property
    def total(self) -> int:
        """Tokens of a full answer."""
        return min(TOKENS, self.ask.max_tokens)

    def event(self, data: Mapping[str, Any] | bytes, *, after_s: float = 0.0, tokens: tuple[int, ...] = (), parts: int = 1) -> None:
        """One event of the stream."""
        text = data if isinstance(data, bytes) else json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
        self.raw(b"data: " + text + self.eol * 2, after_s=after_s, tokens=tokens, parts=parts)

    def raw(self, data: bytes, *, after_s: float = 0.0, tokens: tuple[int, ...] = (), parts: int = 1) -> None:
        """Bytes of the stream as they are."""
        gap_s = 0.004 * self.scale if parts > 1 else 0.0
        self.frames.append(Frame(after_s * self.scale, data, tokens, parts, gap_s))

    def chunk(self, delta: Mapping[str, Any], *, usage: bool = True, finish: str | None = None) -> dict[str, Any]:
        """A chunk as SGLang shapes it, with the stamps that the mock fills in."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "matched_stop": None}
        chunk: dict[str, Any] = {**self._envelope(), "choices": [choice]}
        if usage and self.ask.continuous and self.continuous:
            chunk["usage"] = self._usage()
        return chunk

    def role(self, *, after_s: float = 0.0) -> None:
        """The first chunk of every real server: a role and no token."""
        self.event(self.chunk({"role": "assistant", "content": ""}), after_s=after_s)

    def tokens(self, count: int = 1, *, after_s: float, key: str = "content", text: str | None = None, parts: int = 1) -> None:
        """One chunk with so many tokens."""
        self.n += count
        words = " tok" * count if text is None else text
        self.event(self.chunk({key: words}), after_s=after_s, tokens=(self.n,), parts=parts)

    def stream(
        self, *, until: int | None = None, per_chunk: int = 1, key: str = "content", text: str | None = None, parts: int = 1
    ) -> None:
        """Chunks of ``per_chunk`` tokens, in time with one token every ``GAP_S``, up to ``until`` tokens."""
        until = self.total if until is None else min(until, self.total)
        while self.n < until:
            count = min(per_chunk, until - self.n)
            self.tokens(count, after_s=FIRST_S if self.n == 0 else GAP_S * per_chunk, key=key, text=text, parts=parts)

    def finish(self, reason: str = "length") -> None:
        """The frame with the reason."""
        self.finish_reason = reason
        self.event(self.chunk({}, finish=reason))

    def usage(self, *, after_s: float = 0.0, **extra: Any) -> None:
        """The last frame with the totals, if they were asked for."""
        if self.ask.usage:
            self.event({**self._envelope(), "choices": [], "usage": self._usage(), **extra}, after_s=after_s)

    def done(self) -> None:
        """The end of the stream."""
        self.event(b"[DONE]")

    def close(self) -> None:
        """What a regular answer ends with."""
        self.finish()
        self.usage()
        self.done()

    def _envelope(self) -> dict[str, Any]:
        stamps = {"mono": STAMP_MONOTONIC.decode(), "real": STAMP_REALTIME.decode()}
        head = {"id": f"chatcmpl-{self.ask.serial}", "object": "chat.completion.chunk", "created": 1700000000, "model": self.ask.model}
        return {**head, "sent": stamps}

    def _usage(self) -> dict[str, Any]:
        usage: dict[str, Any] = {"prompt_tokens": self.ask.prompt_tokens, "completion_tokens": self.n}
        usage["total_tokens"] = self.ask.prompt_tokens + self.n
        usage["prompt_tokens_details"] = {"cached_tokens": self.cached} if self.cached else None
        return usage


@dataclass(frozen=True, slots=True)
class Scenario:
    """A script with its truth."""

    name: str
    title: str
    write: Callable[[Script], None]
    error: str | None = None
    """The class under which the request must be counted as failed; ``None`` when it is valid."""
    counted: bool = True
    """Whether each chunk tells its tokens. If not, only the total is known, or nothing."""


def load_frames(ask: Ask, period_s: float) -> Iterator[Frame]:
    """Chunks of a stream for load. No two have the same counts, so a mix-up would show."""
    counts = watermark(ask.serial) if ask.max_tokens >= WATERMARK_TOKENS else []
    counts += [1] * (ask.max_tokens - sum(counts))
    head = json.dumps({"id": f"chatcmpl-{ask.serial}", "object": "chat.completion.chunk", "created": 1700000000, "model": ask.model})[:-1]
    head += (
        f',"sent":{{"mono":"{STAMP_MONOTONIC.decode()}","real":"{STAMP_REALTIME.decode()}"}},"choices":[{{"index":0,"delta":{{"content":"'
    )
    tail = '"},"logprobs":null,"finish_reason":null,"matched_stop":null}]'
    n = 0
    for count in counts:
        n += count
        usage = f',"usage":{_usage_text(ask, n)}' if ask.continuous else ""
        data = f"data: {head}{' tok' * count}{tail}{usage}}}\n\n".encode()
        yield Frame(LOAD_FIRST_S if n == count else period_s, data, (n,))
    closing = Script(ask, n=n)
    closing.close()
    yield Frame(0.0, b"".join(frame.data for frame in closing.frames))


def _usage_text(ask: Ask, n: int) -> str:
    prompt = ask.prompt_tokens
    return f'{{"prompt_tokens":{prompt},"completion_tokens":{n},"total_tokens":{prompt + n},"prompt_tokens_details":null}}'


def watermark(serial: int) -> list[int]:
    """Tokens of the first chunks of an answer, different for every answer: each bit of its number as 1, 2 or 2, 1."""
    return [count for bit in range(WATERMARK_BITS) for count in ((2, 1) if serial >> bit & 1 else (1, 2))]
