from __future__ import annotations

import json

from autotuner.loadgen.answers import ReadLog
from autotuner.loadgen.chat import Reply, misfits, read_reply, request_body
from autotuner.loadgen.lanes import with_limit
from autotuner.model.workload import Sampling

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
FINISH = {"choices": [{"delta": {}, "finish_reason": "stop"}]}


def text(content: str, tokens: int | None = None, key: str = "content") -> dict[str, object]:
    event: dict[str, object] = {"choices": [{"delta": {key: content}, "finish_reason": None}]}
    return event if tokens is None else {**event, "usage": {"prompt_tokens": 9, "completion_tokens": tokens}}


def total(tokens: int, **more: object) -> dict[str, object]:
    return {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens}, **more}


def reply(*events: dict[str, object] | bytes, ended: bool = True) -> Reply:
    data = [event if isinstance(event, bytes) else b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    return read_reply(ReadLog(sent_ns=0, reads=[(0, HEAD), *enumerate(data, start=1)], end_ns=99 if ended else None))


DONE = b"data: [DONE]\n\n"


def test_role_and_empty_chunks_are_no_tokens_even_when_counted() -> None:
    role = {"choices": [{"delta": {"role": "assistant", "content": ""}}], "usage": {"completion_tokens": 1, "prompt_tokens": 9}}
    found = reply(role, text("", 1), text("a", 2), text("b", 5), FINISH, total(5), DONE)
    assert found.error is None
    assert found.chunks == [(3, 2), (4, 5)]
    assert (found.prompt_tokens, found.completion_tokens, found.finish_reason) == (9, 5, "stop")


def test_reasoning_counts_as_tokens() -> None:
    found = reply(text("hm", 1, "reasoning_content"), text("a", 2), FINISH, total(2), DONE)
    assert found.chunks == [(1, 1), (2, 2)]


def test_a_rise_of_the_count_without_text_is_a_token_and_the_late_total_is_none() -> None:
    found = reply(text("a", 1), text("", 2), text("b", 3), FINISH, total(4), DONE)
    assert found.chunks == [(1, 1), (2, 2), (3, 3)]
    assert found.completion_tokens == 4


def test_totals_are_spread_over_chunks_only_at_the_end() -> None:
    whole = reply(text("a"), text("b"), text("c"), text("d"), FINISH, total(10), DONE)
    assert [tokens for _, tokens in whole.chunks] == [2, 5, 8, 10]
    assert not whole.counted
    part = reply(text("a"), text("b"), ended=False)
    assert [tokens for _, tokens in part.chunks] == [1, 2]
    assert part.completion_tokens is None
    assert part.error is None


def test_details_that_servers_add_are_taken() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    details = {"spec_verify_ct": 7, "spec_num_correct_drafts": 11, "spec_num_proposed_drafts": 21, "spec_accept_length": 2.6}
    found = reply(text("a", 2), FINISH, {"choices": [], "usage": usage, "sglext": {"spec_tokens_details": details}}, DONE)
    assert (found.cached_tokens, found.verify_steps, found.accepted_tokens, found.drafted_tokens) == (4, 7, 11, 21)
    assert found.step_tokens is None


def test_an_answer_of_vllm_counts_the_tokens_of_its_steps_apart() -> None:
    details = {"num_spec_steps": 43, "num_accepted_draft_tokens": 10, "num_draft_tokens": 129, "mean_acceptance_length": 1.2326}
    last = {"choices": [], "usage": {"completion_tokens": 55}, "metrics": {"speculative_decoding": details}}
    found = reply(text("a", 2), FINISH, last, DONE)
    assert (found.verify_steps, found.step_tokens, found.accepted_tokens, found.drafted_tokens) == (43, 53, 10, 129)
    odd = reply(text("a", 2), FINISH, {**last, "metrics": {"speculative_decoding": None, "x": 1}}, DONE)
    assert (odd.verify_steps, odd.error) == (None, None)
    assert reply(text("a", 2), FINISH, {**last, "metrics": "none"}, DONE).error is None


def test_faults_have_names() -> None:
    assert reply(text("a", 1), {"error": {"message": "x"}}, DONE).error == "in-band"
    assert reply(text("a", 1), b'event: error\ndata: {"message":"x"}\n\n').error == "in-band"
    assert reply(text("a", 1), b"data: {\n\n", DONE).error == "malformed"
    assert reply(text("a", 1), b"data: [1]\n\n", DONE).error == "malformed"
    assert reply(text("a", 1), total(1), DONE).error == "no-finish"
    assert reply(text("a", 1), FINISH, total(1)).error == "no-done"
    assert reply(text("a"), FINISH, DONE).error == "no-usage"
    assert reply(FINISH, total(0), DONE).error == "empty"
    assert reply(text("a", 1), {"choices": [{"delta": {}, "finish_reason": "abort"}]}, total(1), DONE).error == "aborted"
    assert reply(b'{"error": "no such model"}').error == "in-band"
    assert reply(b"<html>").error == "malformed"


def test_a_body_is_json_with_and_without_its_limit() -> None:
    body = request_body(model="m", prompt='say "hi"\u2028', sampling=Sampling(temperature=0.5, ignore_eos=True))
    limited = json.loads(with_limit(body, 17))
    assert limited["max_tokens"] == 17
    assert limited["ignore_eos"] is True
    assert limited["temperature"] == 0.5
    assert limited["messages"] == [{"role": "user", "content": 'say "hi"\u2028'}]


def test_output_begins_after_reasoning_and_a_first_token_does_not() -> None:
    found = reply(text("hm", 1, "reasoning"), text("so", 2, "reasoning_content"), text("", 2), text("a", 3), FINISH, total(3), DONE)
    assert (found.chunks[0][0], found.first_output_ns) == (1, 4)
    called = {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}
    assert reply(text("hm", 1, "reasoning"), called, FINISH, total(2), DONE).first_output_ns == 2
    assert reply(text("hm", 1, "reasoning"), FINISH, total(1), DONE).first_output_ns is None


def test_events_without_data_are_nothing() -> None:
    found = reply(b"data:\n\n", text("a", 1), b"data: \n\n", b"event: ping\n\n", FINISH, total(1), DONE)
    assert (found.error, found.chunks) == (None, [(2, 1)])


def test_an_error_object_in_place_of_an_answer_is_no_success() -> None:
    assert reply(text("a", 1), {"object": "error", "message": "x", "code": 500}, FINISH, total(1), DONE).error == "in-band"


def asked(prompt: int, cached: int | None = None, finish: str = "length") -> Reply:
    return Reply(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=8, finish_reason=finish)


def names(found: Reply, context: int | None = 1000, *, ignore_eos: bool = False) -> list[str]:
    return [name for name, _ in misfits(found, context=context, ignore_eos=ignore_eos)]


def test_a_prompt_must_have_the_length_that_was_asked_for_by_the_servers_own_count() -> None:
    assert names(asked(1100)) == names(asked(900)) == []
    assert names(asked(1101)) == names(asked(899)) == ["prompt-length"]
    assert names(asked(76), 60) == []  # words cannot be cut
    assert names(asked(77), 60) == ["prompt-length"]
    assert names(asked(5000), None) == []


def test_a_prompt_that_the_server_knew_already_measures_nothing() -> None:
    assert names(asked(1000, cached=100)) == []
    assert names(asked(1000, cached=101)) == ["cached-prompt"]
    assert names(asked(60, cached=60), 60) == []  # the template
    assert names(asked(1000, cached=1000), None) == []


def test_an_answer_that_was_to_ignore_its_end_must_be_as_long_as_it_may() -> None:
    assert names(asked(1000, finish="stop")) == []
    assert names(asked(1000, finish="stop"), ignore_eos=True) == ["early-stop"]
    assert names(asked(1000), ignore_eos=True) == []
