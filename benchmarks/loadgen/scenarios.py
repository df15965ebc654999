"""The golden scenarios. S1 to S11 are those in which at least one leading tool is known to go wrong; the rest is what servers also do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from benchmarks.loadgen.scripts import FIRST_S, GAP_S, HUGE, Ask, Scenario, Script

ACCEPTED = (3, 1, 4, 1, 5, 2, 6, 5, 3, 5)
"""Tokens of successive verification steps in the scenarios with speculative decoding: fewer steps than engines log at once."""
DRAFTED = 7
"""Tokens that are drafted for each of them."""


def _plain(script: Script) -> None:
    script.stream()
    script.close()


def _role_first(script: Script) -> None:
    script.role()
    _plain(script)


def _four_per_chunk(script: Script) -> None:
    script.role()
    script.stream(per_chunk=4)
    script.close()


def _reasoning_as(key: str, script: Script) -> None:
    script.role()
    script.stream(until=script.total // 2, key=key)
    script.stream()
    script.close()


def _late_usage(script: Script) -> None:
    script.stream()
    script.finish()
    script.usage(after_s=0.5)
    script.done()


def _early_stop(script: Script) -> None:
    script.stream(until=10)
    script.finish("stop")
    script.usage()
    script.done()


def _dies(script: Script) -> None:
    script.stream(until=10)
    script.dies = True


def _in_band(script: Script) -> None:
    script.stream(until=10)
    script.event({"error": {"message": "CUDA error: out of memory", "type": "InternalServerError", "code": 500}}, after_s=GAP_S)
    script.done()


def _split(script: Script) -> None:
    script.role()
    script.stream(parts=3)
    script.close()


def _no_usage(script: Script) -> None:
    script.continuous = False
    script.stream()
    script.finish()
    script.done()


def _line_separator(script: Script) -> None:
    script.stream(text=" a\u2028b\u2029c\u0085d")
    script.close()


def _huge_event(script: Script) -> None:
    script.stream(until=10)
    script.tokens(1, after_s=GAP_S, text="x" * HUGE)
    script.stream()
    script.close()


def _crlf(script: Script) -> None:
    script.eol = b"\r\n"
    _role_first(script)


def _comments(script: Script) -> None:
    script.raw(b": keep-alive\n\n")
    script.role()
    script.raw(b": ping\n\nretry: 1000\nid: 7\n\n", after_s=FIRST_S / 2)
    script.tokens(1, after_s=FIRST_S / 2)
    while script.n < script.total:
        script.raw(b": ping\n\n", after_s=GAP_S / 2)
        script.tokens(1, after_s=GAP_S / 2)
    script.close()


def _total_only(script: Script) -> None:
    script.continuous = False
    _role_first(script)


def _cached(script: Script) -> None:
    script.cached = max(1, script.ask.prompt_tokens // 4)
    _role_first(script)


def _bundled(script: Script) -> None:
    """The first chunk bears eight tokens."""
    script.role()
    script.tokens(8, after_s=FIRST_S)
    script.stream()
    script.close()


def _two_in_one_write(script: Script) -> None:
    """Every write holds two events of one token."""
    script.role()
    while script.n < script.total:
        after_s = FIRST_S if script.n == 0 else 2 * GAP_S
        script.tokens(1, after_s=after_s)
        if script.n < script.total:
            first = script.frames.pop()
            script.tokens(1, after_s=0.0)
            second = script.frames.pop()
            script.frames.append(replace(first, data=first.data + second.data, tokens=first.tokens + second.tokens))
    script.close()


def _tool_calls(script: Script) -> None:
    script.role()
    while script.n < script.total:
        script.n += 1
        call = {"index": 0, "function": {"arguments": ' {"'}}
        script.event(script.chunk({"tool_calls": [call]}), after_s=FIRST_S if script.n == 1 else GAP_S, tokens=(script.n,))
    script.finish("tool_calls")
    script.usage()
    script.done()


def _part_of_a_character(script: Script) -> None:
    """Every third token completes no character: the count rises, the text does not."""
    script.role()
    while script.n < script.total:
        after_s = FIRST_S if script.n == 0 else GAP_S
        script.tokens(1, after_s=after_s, text="" if script.n % 3 == 2 else " tok")
    script.close()


def _until_close(script: Script) -> None:
    script.framing = "close"
    _role_first(script)


def _dribbled_head(script: Script) -> None:
    script.head_parts = 8
    _role_first(script)


def _quoting(script: Script) -> None:
    """An answer about event streams: its text looks like their end and like an error."""
    script.stream(text='data: [DONE]\n\n{"error": {"message": "quoted"}}\r\n0\r\n\r\n')
    script.close()


def _no_space(script: Script) -> None:
    """``data:`` without a space, and an event over two lines."""
    script.stream(until=script.total - 1)
    script.tokens(1, after_s=GAP_S)
    script.close()
    for number, frame in enumerate(script.frames):
        data = frame.data.replace(b"data: ", b"data:", 1)
        if frame.tokens and frame.tokens[-1] % 2:
            data = data.replace(b',"choices":', b',\ndata: "choices":', 1)
        script.frames[number] = replace(frame, data=data)


def _named_error(script: Script) -> None:
    script.stream(until=10)
    script.raw(b'event: error\ndata: {"message":"engine died","code":500}\n\n', after_s=GAP_S)
    script.done()


def _http_500(script: Script) -> None:
    script.status = 500


def _http_429(script: Script) -> None:
    script.status = 429


def _no_finish(script: Script) -> None:
    script.stream()
    script.usage()
    script.done()


def _no_done(script: Script) -> None:
    script.stream()
    script.finish()
    script.usage()


def _aborted(script: Script) -> None:
    script.stream(until=10)
    script.finish("abort")
    script.usage()
    script.done()


def _empty(script: Script) -> None:
    script.role()
    script.finish("stop")
    script.usage()
    script.done()


def _steps(script: Script, first: int) -> int:
    """Chunks of the script's verification steps behind ``first`` tokens of prefill; how many steps there were."""
    steps = 0
    if first:
        script.tokens(first, after_s=FIRST_S)
    while script.n < script.total:
        count = min(ACCEPTED[steps % len(ACCEPTED)], script.total - script.n)
        script.tokens(count, after_s=FIRST_S if script.n == 0 else 2 * GAP_S)
        steps += 1
    return steps


def _sglang_spec(script: Script) -> None:
    """SGLang: ``spec_verify_ct`` in a chunk of its own. It counts the step of prefill with the first of them."""
    script.role()
    steps = _steps(script, 0)
    script.verify_steps, script.accepted_drafts = steps, script.n - steps
    script.finish()
    if script.ask.spec_details:
        details = {
            "spec_accept_length": script.n / steps,
            "spec_verify_ct": steps,
            "spec_num_correct_drafts": script.n - steps,
            "spec_num_proposed_drafts": DRAFTED * steps,
        }
        script.event({**script.chunk({}, usage=False), "choices": [], "sglext": {"spec_tokens_details": details}})
    script.usage()
    script.done()


def _vllm_steps(script: Script) -> dict[str, object]:
    """vLLM: the token of prefill belongs to no step."""
    script.role()
    steps = _steps(script, 1)
    accepted = script.n - 1 - steps
    script.verify_steps, script.accepted_drafts = steps, accepted
    script.finish()
    return {
        "mean_acceptance_length": 1 + accepted / steps,
        "draft_acceptance_rate": accepted / (DRAFTED * steps),
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": DRAFTED * steps,
        "num_spec_tokens": DRAFTED,
    }


def _vllm_spec(script: Script) -> None:
    """``metrics.speculative_decoding`` on the chunk with the totals."""
    script.usage(metrics={"speculative_decoding": _vllm_steps(script)})
    script.done()


def _vllm_silent(script: Script) -> None:
    """Without ``--per-request-spec-decode-metrics``: only the counters tell."""
    _vllm_steps(script)
    script.usage()
    script.done()


SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("S1", "plain stream", _plain),
        Scenario("S2", "role chunk at once, first token later", _role_first),
        Scenario("S3", "four tokens in a chunk", _four_per_chunk),
        Scenario("S4", "reasoning before the answer", lambda script: _reasoning_as("reasoning_content", script)),
        Scenario("S5", "usage chunk half a second late", _late_usage),
        Scenario("S6", "ends before its limit", _early_stop),
        Scenario("S7", "connection dies in mid-stream", _dies, error="truncated"),
        Scenario("S8", "error in the stream, then [DONE]", _in_band, error="in-band"),
        Scenario("S9", "events split over TCP writes", _split),
        Scenario("S10", "no token counts at all", _no_usage, error="no-usage", counted=False),
        Scenario("S11", "U+2028 in the text", _line_separator),
        Scenario("huge-event", "an event of 1 MiB", _huge_event),
        Scenario("crlf", "lines end with CR LF", _crlf),
        Scenario("comments", "comments, ids and retry fields between events", _comments),
        Scenario("total-only", "only the total is counted", _total_only, counted=False),
        Scenario("cached", "a quarter of the prompt from the prefix cache", _cached),
        Scenario("bundled", "eight tokens in the first chunk", _bundled),
        Scenario("two-in-one", "two events in every write", _two_in_one_write),
        Scenario("tool-calls", "tool calls instead of text", _tool_calls),
        Scenario("part-of-a-character", "tokens without text", _part_of_a_character),
        Scenario("vllm-reasoning", "reasoning under vLLM's name", lambda script: _reasoning_as("reasoning", script)),
        Scenario("until-close", "a body that ends with its connection", _until_close),
        Scenario("dribbled-head", "a head in eight writes", _dribbled_head),
        Scenario("quoting", "text that looks like the end of a stream", _quoting),
        Scenario("no-space", "data: without a space, events over two lines", _no_space),
        Scenario("named-error", "an event of the name error", _named_error, error="in-band"),
        Scenario("http-500", "HTTP 500", _http_500, error="http-500"),
        Scenario("http-429", "HTTP 429", _http_429, error="http-429"),
        Scenario("no-finish", "no finish_reason", _no_finish, error="no-finish"),
        Scenario("no-done", "no [DONE]", _no_done, error="no-done"),
        Scenario("aborted", "finish_reason is abort", _aborted, error="aborted"),
        Scenario("empty", "an answer without a token", _empty, error="empty"),
        Scenario("sglang-spec", "SGLang's details of speculative decoding", _sglang_spec),
        Scenario("vllm-spec", "vLLM's details of speculative decoding", _vllm_spec),
        Scenario("vllm-silent", "speculative decoding that only vLLM's counters tell", _vllm_silent),
    )
}
"""Every golden scenario by name."""


def script_of(ask: Ask) -> Script:
    """The answer to a request; ``S1@0.25`` is S1 at a quarter of its times. Raises ``KeyError`` for a model that has no script."""
    name, _, scale = ask.model.partition("@")
    script = Script(ask, float(scale or 1))
    SCENARIOS[name].write(script)
    return script
