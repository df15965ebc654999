"""Chat completions: the body of a request, and what the events of its answer say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autotuner.loadgen.answers import Answer, ReadLog, WireError, read_answer
from autotuner.loadgen.details import ASK
from autotuner.loadgen.lanes import OUTPUT_KEYS, bears_text
from autotuner.model.workload import Sampling

DETAIL_LIMIT = 300
PROMPT_TOLERANCE = 0.1
"""Of the context: how far a prompt may be from the length that it was asked to have."""
FEWEST_TOKENS_OFF = 16
CACHED_TOLERANCE = 0.1
"""Of the prompt: how much of it may come from the prefix cache."""
FEWEST_CACHED = 64
"""So much may always: every prompt begins with the same template."""


def request_body(
    *, model: str, prompt: str, sampling: Sampling, messages: Sequence[Mapping[str, str]] = (), chat: bool = True, details: bool = False
) -> bytes:
    """A streaming request without its length limit, which the lane adds at the last moment.

    ``messages`` are a whole conversation, asked instead of ``prompt``. Without ``chat`` it is a text completion of ``prompt``.
    ``details`` asks the server to say what its speculation did.
    """
    asked: dict[str, object] = {"messages": list(messages) or [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    body: dict[str, object] = {
        "model": model,
        **asked,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if sampling.ignore_eos:
        body["ignore_eos"] = True
    if details:
        body[ASK] = True
    return json.dumps(body, separators=(",", ":")).encode()


@dataclass(slots=True)
class Reply:
    """What one answer says; ``chunks`` are (ns of CLOCK_MONOTONIC, cumulative completion tokens)."""

    chunks: list[tuple[int, int]] = field(default_factory=list)
    first_output_ns: int | None = None
    """When the first text came that is no reasoning."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    verify_steps: int | None = None
    step_tokens: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
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
    if not data:
        return
    event = json.loads(data)
    if name == b"error" or event.get("error") or event.get("object") == "error":
        reply.error, reply.detail = "in-band", data[:DETAIL_LIMIT].decode(errors="replace")
        return
    before = reply.completion_tokens or 0
    counted = _usage(reply, event.get("usage"))
    choices = event.get("choices") or []
    with_text = any(bears_text(choice) for choice in choices)
    if reply.first_output_ns is None and any(bears_text(choice, OUTPUT_KEYS) for choice in choices):
        reply.first_output_ns = stamp
    for choice in choices:
        reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
    _speculation(reply, event)
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


def _speculation(reply: Reply, event: Mapping[str, object]) -> None:
    """What the answer says of its own speculation: SGLang where it was asked to, vLLM where it was started to."""
    sglang, vllm = _within(event, "sglext", "spec_tokens_details"), _within(event, "metrics", "speculative_decoding")
    if sglang:
        reply.verify_steps = _count(sglang, "spec_verify_ct", reply.verify_steps)
        reply.drafted_tokens = _count(sglang, "spec_num_proposed_drafts", reply.drafted_tokens)
        reply.accepted_tokens = _count(sglang, "spec_num_correct_drafts", reply.accepted_tokens)
    elif vllm:
        reply.verify_steps = _count(vllm, "num_spec_steps", reply.verify_steps)
        reply.drafted_tokens = _count(vllm, "num_draft_tokens", reply.drafted_tokens)
        reply.accepted_tokens = _count(vllm, "num_accepted_draft_tokens", reply.accepted_tokens)
        if reply.verify_steps is not None and reply.accepted_tokens is not None:
            reply.step_tokens = reply.verify_steps + reply.accepted_tokens


def _within(event: Mapping[str, object], outer: str, inner: str) -> Mapping[str, object]:
    part = event.get(outer)
    found = part.get(inner) if isinstance(part, dict) else None
    return found if isinstance(found, dict) else {}


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


MISFITS = frozenset({"prompt-length", "cached-prompt", "early-stop"})
"""The names of what makes an answer another one than was asked for. The server did answer."""


def misfits(reply: Reply, *, context: int | None, ignore_eos: bool) -> Iterator[tuple[str, str]]:
    """What makes a whole answer another one than was asked for, by name; nothing where it fits.

    ``context`` is how many tokens the prompt should have; ``None`` where prompts have the length and the beginning that their author gave
    them.
    """
    counted = reply.prompt_tokens
    if context is not None and counted is not None:
        if abs(counted - context) > max(FEWEST_TOKENS_OFF, PROMPT_TOLERANCE * context):
            yield "prompt-length", f"the prompt has {counted} tokens by the server's count, not {context}"
        if (reply.cached_tokens or 0) > max(FEWEST_CACHED, CACHED_TOLERANCE * counted):
            yield "cached-prompt", f"{reply.cached_tokens} of {counted} tokens of the prompt came from the prefix cache"
    if ignore_eos and reply.finish_reason != "length":
        yield "early-stop", f"finish_reason is {reply.finish_reason} although the end of text was to be ignored"
