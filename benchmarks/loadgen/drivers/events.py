"""The plain way to read an event stream, for the clients that are nobody's benchmark: one stamp a read or a line, JSON afterwards."""

from __future__ import annotations

import json

from benchmarks.loadgen.drivers.common import Seen

REQUEST = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}


def body(model: str, prompt: str, max_tokens: int) -> dict[str, object]:
    """A request."""
    return {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, **REQUEST}


def take(seen: Seen, begin_ns: int, at_ns: int, line: bytes | str) -> None:
    """Take over a line of the stream that was stamped at ``at_ns``."""
    text = line if isinstance(line, str) else line.decode()
    if not text.startswith("data:") or text.endswith("[DONE]"):
        return
    event = json.loads(text[5:])
    choices = event.get("choices") or []
    delta = choices[0].get("delta") or {} if choices else {}
    usage = event.get("usage") or {}
    seen.tokens = usage.get("completion_tokens") or seen.tokens
    if not (delta.get("content") or delta.get("reasoning_content")):
        return
    seen.chunks += 1
    seen.e2e_s = (at_ns - begin_ns) / 1e9
    if seen.ttft_s is None:
        seen.ttft_s = seen.e2e_s
    sent = event.get("sent") or {}
    if str(sent.get("mono", "")).isdigit():
        seen.chunk_errors_us.append((at_ns - int(sent["mono"])) / 1e3)


def finish(seen: Seen) -> Seen:
    """What follows from the whole answer."""
    seen.ok = seen.ttft_s is not None
    if seen.ttft_s is not None and seen.e2e_s is not None and seen.tokens and seen.tokens > 1:
        seen.tpot_s = (seen.e2e_s - seen.ttft_s) / (seen.tokens - 1)
    return seen
