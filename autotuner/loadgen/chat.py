"""Chat completions: the body of a request, and what the events of its answer say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autotuner.loadgen.lanes import bears_text
from autotuner.loadgen.wire import Answer, ReadLog, WireError, read_answer
from autotuner.model.workload import Sampling

DETAIL_LIMIT = 300


def request_body(*, model: str, prompt: str, sampling: Sampling) -> bytes:
    """A streaming request without its length limit, which the lane adds at the last moment."""
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if sampling.ignore_eos:
        body["ignore_eos"] = True
    return json.dumps(body, separators=(",", ":")).encode()


@dataclass(slots=True)
class Reply:
    """What one answer says; ``chunks`` are (ns of CLOCK_MONOTONIC, cumulative completion tokens)."""

    chunks: list[tuple[int, int]] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    verify_steps: int | None = None
    finish_reason: str | None = None
    done: bool = False
    counted: bool = True
    """Whether the server counted tokens with every chunk; if not, the counts of ``chunks`` count chunks."""
    error: str | None = None
    detail: str | None = None


def read_reply(log: ReadLog) -> Reply:
    """What a logged answer says, complete or not. A failure is in ``error``, never raised."""
    reply = Reply()
    try:
        answer = read_answer(log)
    except WireError as error:
        reply.error, reply.detail = error.kind, error.detail
        return reply
    if answer.head is not None and answer.head.status != 200:
        reply.error = f"http-{answer.head.status}"
        reply.detail = answer.body[:DETAIL_LIMIT].decode(errors="replace")
        return reply
    try:
        for stamp, name, data in answer.events:
            _event(reply, stamp, name, data)
    except (ValueError, TypeError, AttributeError) as error:
        reply.error, reply.detail = reply.error or "malformed", reply.detail or str(error)
    _spread_final_usage(reply)
    if log.end_ns is not None and reply.error is None:
        _judge(reply, answer)
    return reply


def _event(reply: Reply, stamp: int, name: bytes, data: bytes) -> None:
    if data == b"[DONE]":
        reply.done = True
        return
    event = json.loads(data)
    if name == b"error" or event.get("error"):
        reply.error, reply.detail = "in-band", data[:DETAIL_LIMIT].decode(errors="replace")
        return
    before = reply.completion_tokens or 0
    counted = _usage(reply, event.get("usage"))
    choices = event.get("choices") or []
    with_text = any(bears_text(choice) for choice in choices)
    for choice in choices:
        reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
    _details(reply, event.get("sglext"))
    # A rise without text is a token that is no whole character yet; before the first text it may be the role chunk's.
    rose = bool(choices) and bool(reply.chunks) and counted and (reply.completion_tokens or 0) > before
    if with_text or rose:
        reply.counted = reply.counted and counted
        reply.chunks.append((stamp, (reply.completion_tokens or 0) if reply.counted else len(reply.chunks) + 1))


def _usage(reply: Reply, usage: Mapping[str, object] | None) -> bool:
    """Take over the server's counts; whether it counted completion tokens here."""
    if not usage:
        return False
    reply.prompt_tokens = _count(usage, "prompt_tokens", reply.prompt_tokens)
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        reply.cached_tokens = _count(details, "cached_tokens", reply.cached_tokens)
    completion = _count(usage, "completion_tokens", None)
    if completion is None:
        return False
    reply.completion_tokens = completion
    return completion > 0


def _details(reply: Reply, extension: Mapping[str, object] | None) -> None:
    details = (extension or {}).get("spec_tokens_details")
    if isinstance(details, dict):
        reply.verify_steps = _count(details, "spec_verify_ct", reply.verify_steps)


def _count(source: Mapping[str, object], key: str, otherwise: int | None) -> int | None:
    value = source.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _spread_final_usage(reply: Reply) -> None:
    """Without counts per chunk: number the chunks, or share the final count among them when it is known."""
    if reply.counted or not reply.chunks:
        return
    total, chunks = reply.completion_tokens if reply.done else None, len(reply.chunks)
    reply.chunks = [
        (stamp, number if total is None else round(total * number / chunks)) for number, (stamp, _) in enumerate(reply.chunks, start=1)
    ]


def _judge(reply: Reply, answer: Answer) -> None:
    """An answer that ended must be whole, or it has an error."""
    reply.error, reply.detail = next(_faults(reply, answer), (None, None))


def _faults(reply: Reply, answer: Answer) -> Iterator[tuple[str, str]]:
    if not answer.events:
        text = answer.body[:DETAIL_LIMIT].decode(errors="replace")
        if answer.complete and answer.body:
            yield ("in-band" if '"error"' in text else "malformed"), f"no event stream: {text}"
    if not answer.complete:
        yield "truncated", f"the connection was closed after {len(reply.chunks)} chunks"
    if reply.finish_reason is None:
        yield "no-finish", "no finish_reason"
    if reply.finish_reason in ("abort", "error"):
        yield "aborted", f"finish_reason is {reply.finish_reason}"
    if not reply.done:
        yield "no-done", "no [DONE] at the end of the stream"
    if reply.completion_tokens is None:
        yield "no-usage", "the server did not count tokens"
    if not reply.chunks:
        yield "empty", "the answer has no token"
