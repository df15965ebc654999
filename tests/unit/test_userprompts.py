from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotuner.errors import InvalidDocument, UsageError
from autotuner.loadgen.prompts import Fit
from autotuner.loadgen.userprompts import UserPrompts, load_prompts, load_replay

HELLO = '{"messages": [{"role": "user", "content": "Hello"}]}'


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "own.jsonl"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    ("line", "messages", "output"),
    [
        (HELLO, [("user", "Hello")], None),
        ('{"body": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 7}, "custom_id": "1"}', [("user", "Hi")], 7),
        ('{"prompt": "Say it", "max_completion_tokens": 9}', [("user", "Say it")], 9),
        (
            '{"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": "A"}]}]}',
            [("system", "Be kind."), ("user", "A")],
            None,
        ),
        (
            (
                '{"conversations": [{"from": "human", "value": "1?"}, {"from": "gpt", "value": "1!"}, {"from": "human", "value": "2?"}, '
                '{"from": "gpt", "value": "2!"}]}'
            ),
            [("user", "1?"), ("assistant", "1!"), ("user", "2?")],
            None,
        ),
    ],
)
def test_every_form_of_a_line_is_read(tmp_path: Path, line: str, messages: list[tuple[str, str]], output: int | None) -> None:
    prompt = load_prompts(write(tmp_path, f"\ufeff{line}\r\n\n"), nonce=False).prompt(1, 0)
    assert [(message["role"], message["content"]) for message in prompt.messages] == messages
    assert prompt.output_tokens == output


def test_a_file_that_is_one_array_is_read_as_well(tmp_path: Path) -> None:
    prompts = load_prompts(write(tmp_path, f"[\n{HELLO},\n{HELLO}\n]"))
    assert len(prompts) == 2


def test_a_nonce_stands_first_of_all_and_no_two_requests_share_it(tmp_path: Path) -> None:
    line = '{"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "A"}]}'
    prompts = load_prompts(write(tmp_path, line))
    heads = [prompts.prompt(1, index, run="r").messages[0]["content"] for index in range(50)]
    assert len({head[:14] for head in heads}) == 50
    assert all(head.endswith("] Be kind.") for head in heads)
    assert prompts.prompt(1, 0, run="r") != prompts.prompt(1, 0, run="another")


def test_prompts_are_named_by_their_content_and_a_file_that_changes_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, HELLO)
    prompts = load_prompts(path)
    elsewhere = UserPrompts(prompts.path, "0" * 64)
    with pytest.raises(UsageError, match="was changed while it was in use"):
        elsewhere.prompt(1, 0)


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("", ":1:1:", "there is no prompt in this file"),
        (f"{HELLO}\n{{not json", ":2:2:", "the line is not JSON"),
        ("[1, 2", ":1:6:", "the array is not JSON"),
        (b'{"prompt": "\xff"}', ":1:13:", "not UTF-8"),
        ('{"text": "x"}', ":1:1:", "there is no prompt in this object"),
        ("[3]", ":1:1:", "this is no JSON object"),
        ('{"id": 1, "messages": []}', ":1:11:", "not a list of at least one message"),
        ('{"messages": [{"role": "user", "content": 5}]}', ":1:32:", "`content` is int, not a text"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', ":1:32:", "a part that is not text"),
        ('{"messages": ["x"]}', ":1:2:", "no object with a `role`"),
        ('{"conversations": [{"from": "gpt", "value": "x"}]}', ":1:2:", "no human turn"),
        ('{"conversations": [{"from": "dog", "value": "x"}]}', ":1:21:", "not from `human`"),
        ('{"prompt": ""}', ":1:2:", "empty"),
        ('{"prompt": "x", "max_tokens": 0}', ":1:17:", "not a number of tokens"),
        ('{"prompt": "x", "max_tokens": "many"}', ":1:17:", "not a number of tokens"),
        ('{"prompt": "x", "arrival_s": "noon"}', ":1:17:", "not a time"),
        ('{"prompt": "x", "arrival_s": -1}', ":1:17:", "not a time"),
        ("[" * 100_000, ":1:", "not JSON"),
    ],
)
def test_what_is_wrong_is_said_with_line_and_column(tmp_path: Path, text: str | bytes, where: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InvalidDocument) as caught:
        load_prompts(path)
    first = caught.value.problems[0]
    assert f"{path}{where}" in str(first)
    assert message in first.message


def test_many_problems_are_told_together_up_to_a_limit(tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument) as caught:
        load_prompts(write(tmp_path, "{}\n" * 1000))
    assert [problem.line for problem in caught.value.problems] == list(range(1, 21))


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load_prompts(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot be read"):
        load_prompts(tmp_path)


def test_a_log_gives_the_times_from_its_first_request_on(tmp_path: Path) -> None:
    lines = [
        '{"prompt": "a", "timestamp": "2025-06-01T08:00:00.250+00:00"}',
        '{"prompt": "b", "timestamp": "2025-06-01T10:00:01.750+02:00", "max_tokens": 5}',
    ]
    prompts = load_replay(write(tmp_path, "\n".join(lines)))
    assert prompts.arrivals_s() == pytest.approx((0.0, 1.5))
    assert prompts.prompt(1, 1).output_tokens == 5


def test_a_log_of_lengths_only_is_in_milliseconds_and_gets_texts_of_those_lengths(tmp_path: Path) -> None:
    lines = [{"timestamp": 3000, "input_length": 700, "output_length": 50, "hash_ids": [1]}, {"timestamp": 3500, "input_length": 60}]
    prompts = load_replay(write(tmp_path, "\n".join(map(json.dumps, lines)))).with_fit(Fit(overhead_tokens=20))
    assert prompts.arrivals_s() == (0.0, 0.5)
    assert prompts.only_lengths
    assert len(prompts.prompt(1, 0).text) == pytest.approx(680 * 4, rel=0.05)


def test_a_log_without_times_or_out_of_order_is_refused(tmp_path: Path) -> None:
    lines = ['{"prompt": "a", "arrival_s": 2}', '{"prompt": "b"}', '{"prompt": "c", "arrival_s": 3}', '{"prompt": "d", "arrival_s": 1}']
    with pytest.raises(InvalidDocument) as caught:
        load_replay(write(tmp_path, "\n".join(lines)))
    assert [(problem.line, problem.message.split(",")[0]) for problem in caught.value.problems] == [
        (2, "the request has no arrival time"),
        (4, "the request came at 1 s"),
    ]
