"""The simulated server as clients and the tuner meet it: every endpoint, honest speed, crashes, faults, stopping."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from simulated import Running, closed_loop, server

from autotuner.engines.sglang import SglangEngine
from autotuner.engines.simulated.acceptance import acceptance_length
from autotuner.engines.simulated.profile import load_profile
from autotuner.engines.simulated.serving import Serving
from autotuner.model.outcome import Consequence, Stage
from tests.simulated_speed import served_tok_s

DFLASH = ("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "d")
DDTREE = ("--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", "d")
TREE = (*DDTREE, "--speculative-ddtree-budget", "8", "--speculative-ddtree-topk", "4", "--max-running-requests", "64")
MEASURING = ("--enable-metrics", "--enable-cache-report")
ANSWER = 120
"""Mean length of an answer where throughput is measured."""
HELLO = {"model": "kimi", "messages": [{"role": "user", "content": "[1] Write quicksort in Python."}], "max_tokens": 40}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with server(tmp_path_factory.mktemp("tree"), "--tp-size", "8", "--ep-size", "8", *TREE, *MEASURING) as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="module")
def nvlink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    flags = ("--tp-size", "8", *DDTREE, "--speculative-ddtree-budget", "8", "--max-running-requests", "256")
    with server(tmp_path_factory.mktemp("nvlink"), *flags, profile="b300") as running:
        running.wait_ready()
        yield running


def events(text: str) -> list[str]:
    return [block.removeprefix("data: ") for block in text.split("\n\n") if block]


def test_a_streamed_chat_has_a_role_tokens_a_reason_usage_and_an_end(tree: Running) -> None:
    body = {**HELLO, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    answer = httpx.post(f"{tree.url}/v1/chat/completions", json=body)
    assert answer.headers["content-type"] == "text/event-stream"
    *chunks, end = events(answer.text)
    assert end == "[DONE]"
    parsed = [json.loads(chunk) for chunk in chunks]
    assert parsed[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    counts = [chunk["usage"]["completion_tokens"] for chunk in parsed]
    assert counts == sorted(counts)
    assert counts[-1] == 40
    assert parsed[-2]["choices"][0]["finish_reason"] == "length"
    assert parsed[-1]["choices"] == []
    assert parsed[-1]["usage"]["prompt_tokens"] == 8 + 5
    assert parsed[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in parsed[:-1])
    whole = httpx.post(f"{tree.url}/v1/chat/completions", json=HELLO).json()
    assert whole["choices"][0]["message"]["content"] == text
    assert len(text.split()) == whole["usage"]["completion_tokens"] == 40


def test_usage_comes_only_where_it_is_asked_for(tree: Running) -> None:
    last = events(httpx.post(f"{tree.url}/v1/chat/completions", json={**HELLO, "stream": True}).text)
    assert all(json.loads(chunk)["usage"] is None for chunk in last[:-1])
    final = events(
        httpx.post(f"{tree.url}/v1/chat/completions", json={**HELLO, "stream": True, "stream_options": {"include_usage": True}}).text
    )
    assert [json.loads(chunk)["usage"] is not None for chunk in final[:-1]] == [False] * (len(final) - 2) + [True]


def test_text_completions_stream_and_do_not(tree: Running) -> None:
    body = {"model": "kimi", "prompt": "Once upon a time", "max_tokens": 12}
    whole = httpx.post(f"{tree.url}/v1/completions", json=body).json()
    streamed = events(httpx.post(f"{tree.url}/v1/completions", json={**body, "stream": True}).text)
    assert whole["object"] == "text_completion"
    assert whole["choices"][0]["text"] == "".join(json.loads(chunk)["choices"][0]["text"] for chunk in streamed[:-1])


def test_answers_stop_by_themselves_unless_told_not_to(tree: Running) -> None:
    question = {"model": "kimi", "messages": [{"role": "user", "content": "What is 2+2?"}], "max_tokens": 300}
    natural = httpx.post(f"{tree.url}/v1/chat/completions", json=question).json()
    forced = httpx.post(f"{tree.url}/v1/chat/completions", json={**question, "ignore_eos": True}, timeout=30).json()
    assert natural["choices"][0]["finish_reason"] == "stop"
    assert natural["usage"]["completion_tokens"] < 150
    assert (forced["choices"][0]["finish_reason"], forced["usage"]["completion_tokens"]) == ("length", 300)


def test_prompts_beyond_the_context_and_broken_bodies_are_refused(tree: Running) -> None:
    long = {"model": "kimi", "messages": [{"role": "user", "content": "x" * 70_000}], "max_tokens": 8}
    answer = httpx.post(f"{tree.url}/v1/chat/completions", json=long)
    assert answer.status_code == 400
    assert answer.json()["object"] == "error"
    assert "longer than the model's context length (16384 tokens)" in answer.json()["message"]
    assert httpx.post(f"{tree.url}/v1/chat/completions", content=b"{").status_code == 400
    assert httpx.get(f"{tree.url}/v1/chat/completions").status_code == 405
    assert httpx.get(f"{tree.url}/v2").status_code == 404
    assert httpx.delete(f"{tree.url}/health").status_code == 405


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"nonsense\r\n\r\n", 400), (b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n", 400), (b"GET /" + b"x" * 70_000, 413)],
)
def test_what_is_not_http_is_told_so_and_cut_off(tree: Running, sent: bytes, status: int) -> None:
    with socket.create_connection(("127.0.0.1", tree.port), timeout=10) as wire:
        wire.sendall(sent)
        got = b""
        while part := wire.recv(4096):
            got += part
    assert got.startswith(b"HTTP/1.1 %d " % status)


def test_pages_about_itself_are_read_by_the_engine(tree: Running) -> None:
    engine = SglangEngine()
    httpx.post(f"{tree.url}/v1/chat/completions", json={**HELLO, "max_tokens": 300, "ignore_eos": True}, timeout=30)
    info = httpx.get(f"{tree.url}/server_info").json()
    assert httpx.get(f"{tree.url}/get_server_info").json()["version"] == info["version"]
    effective = engine.effective(info)
    wanted = {"tp": 8, "ep": 8, "spec": "ddtree", "block": 8, "budget": 8, "topk": 4, "window": "none", "graphs": True, "max_running": 64}
    assert {name: effective.get(name) for name in wanted} == wanted
    facts = engine.launch_facts(tree.log, info)
    assert facts.kv_tokens == info["max_total_num_tokens"]
    assert facts.graph_gib > 0.5
    assert info["internal_states"][0]["avg_spec_accept_length"] > 3
    assert httpx.get(f"{tree.url}/model_info").json()["simulated"] is True
    assert httpx.get(f"{tree.url}/v1/models").json()["data"][0]["id"] == "kimi"


def test_counters_hold_the_acceptance_length_of_the_pure_model(tree: Running) -> None:
    engine, metrics = SglangEngine(), f"{tree.url}/metrics"
    before = engine.counters(httpx.get(metrics).text)
    httpx.post(f"{tree.url}/v1/chat/completions", json={**HELLO, "max_tokens": 300, "ignore_eos": True}, timeout=30)
    after = engine.counters(httpx.get(metrics).text)
    assert after.generation_tokens - before.generation_tokens == 300
    measured = 299 / (after.verify_steps - before.verify_steps)
    expected = acceptance_length(load_profile("ct200"), Serving(ep=8, spec="ddtree"), context=160)
    assert measured == pytest.approx(expected, rel=0.05)


def test_prefixes_are_cached_until_they_are_flushed(tree: Running) -> None:
    body = {"model": "kimi", "messages": [{"role": "user", "content": "A long story. " * 300}], "max_tokens": 2}

    def cached() -> int:
        usage = httpx.post(f"{tree.url}/v1/chat/completions", json=body).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    cached()
    assert cached() > 900
    assert httpx.post(f"{tree.url}/flush_cache").status_code == 200
    assert cached() == 0
    assert SglangEngine().counters(httpx.get(f"{tree.url}/metrics").text).cached_tokens > 900


def test_the_cache_is_not_flushed_under_a_running_request(tree: Running) -> None:
    with httpx.stream(
        "POST", f"{tree.url}/v1/chat/completions", json={**HELLO, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    ) as got:
        parts = got.iter_bytes()
        next(parts)
        assert httpx.post(f"{tree.url}/flush_cache").status_code == 400
        assert httpx.get(f"{tree.url}/health_generate").status_code == 200
    deadline = 200
    while httpx.post(f"{tree.url}/flush_cache").status_code != 200 and deadline:
        deadline -= 1
    assert deadline, "a request whose client went away still runs"


def test_lines_about_batches_carry_what_the_engine_prints(tree: Running) -> None:
    httpx.post(f"{tree.url}/v1/chat/completions", json={**HELLO, "max_tokens": 400, "ignore_eos": True}, timeout=30)
    line = next(line for line in reversed(tree.log.splitlines()) if "Decode batch" in line)
    for part in ("TP0] Decode batch, #running-req: 1, #token: ", "accept len: ", "accept rate: ", "cuda graph: True", ", #queue-req: 0"):
        assert part in line
    assert "Prefill batch, #new-seq: 1, #new-token: " in tree.log


def is_as_predicted(running: Running, profile: str, serving: Serving, lanes: int) -> None:
    expected = served_tok_s(load_profile(profile), serving, concurrency=lanes, prompt=60, answer=ANSWER)
    cycle_s = lanes * ANSWER / expected
    measured = asyncio.run(closed_loop(running.port, lanes=lanes, answer=ANSWER, warmup_s=1.5 * cycle_s, window_s=max(2.0, 1.5 * cycle_s)))
    assert measured == pytest.approx(expected, rel=0.15)


@pytest.mark.alone
@pytest.mark.parametrize("lanes", [1, 8])
def test_throughput_over_pcie_is_that_of_the_pure_model(tree: Running, lanes: int) -> None:
    is_as_predicted(tree, "ct200", Serving(ep=8, spec="ddtree", max_running=64, graph_max_batch=64), lanes)


@pytest.mark.alone
@pytest.mark.parametrize("lanes", [1, 32, 64, 256])
def test_throughput_over_nvlink_is_that_of_the_pure_model(nvlink: Running, lanes: int) -> None:
    is_as_predicted(nvlink, "b300", Serving(spec="ddtree", max_running=256, graph_max_batch=256), lanes)


@pytest.mark.alone
def test_requests_beyond_the_running_ones_wait_in_a_queue(tmp_path: Path) -> None:
    with server(tmp_path, "--tp-size", "8", "--max-running-requests", "2", *MEASURING, profile="b300") as running:
        running.wait_ready()
        measured = asyncio.run(closed_loop(running.port, lanes=8, answer=64, warmup_s=0.5, window_s=2.0))
        expected = served_tok_s(load_profile("b300"), Serving(max_running=2), concurrency=8, prompt=60, answer=64)
        assert measured == pytest.approx(expected, rel=0.2)
        assert "#running-req: 2, " in running.log
        assert "#queue-req: 6" in running.log


def crashes(running: Running, kind: str, code: int) -> None:
    assert running.ended() == code
    failure = SglangEngine().classify(running.log, exit_code=code, stage=Stage.WARMUP)
    assert (failure.kind, failure.consequence) == (kind, Consequence.INFEASIBLE)


def test_dflash_with_graphs_crashes_on_ct200_before_it_is_ready(tmp_path: Path) -> None:
    with server(tmp_path, "--tp-size", "8", *DFLASH) as running:
        crashes(running, "dflash-graph-none", -9)
        assert "Uvicorn running" in running.log
        assert "fired up" not in running.log


def test_dflash_without_graphs_serves_on_ct200(tmp_path: Path) -> None:
    with server(tmp_path, "--tp-size", "8", "--ep-size", "8", *DFLASH, "--disable-cuda-graph") as running:
        running.wait_ready()
        assert httpx.get(f"{running.url}/metrics").status_code == 404
        assert "Capture cuda graph" not in running.log


def test_large_trees_crash_with_graphs_on_sm_103_at_the_first_decode(tmp_path: Path) -> None:
    flags = ("--tp-size", "8", *DDTREE, "--speculative-ddtree-budget", "16", "--skip-server-warmup")
    with server(tmp_path, *flags, profile="b300") as running:
        running.wait_log("fired up")
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{running.url}/v1/chat/completions", json=HELLO)
        crashes(running, "illegal-mem", -9)


@pytest.mark.parametrize(
    ("flags", "kind", "code"),
    [
        (("--tp-size", "8", "--mem-fraction-static", "0.6"), "sgl-no-kv-weights", -9),
        (("--tp-size", "8", *DFLASH, "--speculative-draft-window-size", "4"), "dflash-window", 1),
        (("--tp-size", "8", "--speculative-tree", "1"), "cli-unknown-flag", 2),
    ],
)
def test_launches_that_fail_end_with_the_engines_words_and_code(tmp_path: Path, flags: tuple[str, ...], kind: str, code: int) -> None:
    with server(tmp_path, *flags) as running:
        crashes(running, kind, code)


def test_a_long_prefill_runs_out_of_memory_while_serving(tmp_path: Path) -> None:
    flags = ("--tp-size", "8", "--mem-fraction-static", "0.97", "--disable-cuda-graph", "--chunked-prefill-size", "16384")
    with server(tmp_path, *flags) as running:
        running.wait_ready()
        long = {"model": "kimi", "messages": [{"role": "user", "content": "x" * 60_000}], "max_tokens": 8}
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{running.url}/v1/chat/completions", json=long, timeout=30)
        crashes(running, "torch-oom", -9)


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with server(tmp_path, "--tp-size", "8", port=holder.getsockname()[1]) as running:
            assert running.ended() == 1
            assert "address already in use" in running.log


def test_starting_answers_503_and_sigterm_ends_it(tmp_path: Path) -> None:
    with server(tmp_path, "--tp-size", "8", faults=[{"kind": "never-ready"}]) as running:
        running.wait_log("Uvicorn running")
        for path in ("/health", "/health_generate"):
            assert httpx.get(f"{running.url}{path}").status_code == 503
        assert httpx.get(f"{running.url}/server_info").json()["status"] == "starting"
        running.process.send_signal(signal.SIGTERM)
        assert running.ended() == 0
        assert "SIGTERM received" in running.log


def test_sigterm_while_loading_and_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    with server(tmp_path, "--tp-size", "8", launch_seconds=60.0) as loading:
        loading.wait_log("Init torch distributed begin")
        loading.process.send_signal(signal.SIGTERM)
        assert loading.ended() == 0
    with server(tmp_path, "--tp-size", "8") as serving:
        serving.wait_ready()
        with httpx.stream(
            "POST", f"{serving.url}/v1/chat/completions", json={**HELLO, "max_tokens": 4000, "ignore_eos": True, "stream": True}
        ) as got:
            parts = got.iter_bytes()
            next(parts)
            serving.process.send_signal(signal.SIGTERM)
            assert serving.ended() == 0


def test_nothing_is_left_when_its_process_group_is_killed(tmp_path: Path) -> None:
    with server(tmp_path, "--tp-size", "8") as running:
        running.wait_ready()
        os.killpg(running.process.pid, signal.SIGKILL)
        assert running.ended() == -9
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", running.port)) != 0


def test_an_api_key_is_asked_for_and_never_printed(tmp_path: Path) -> None:
    with server(tmp_path, "--tp-size", "8", "--api-key", "hush-hush") as running:
        running.wait_ready()
        assert httpx.get(f"{running.url}/server_info").status_code == 401
        info = httpx.get(f"{running.url}/server_info", headers={"authorization": "Bearer hush-hush"})
        assert info.status_code == 200
        assert "hush-hush" not in running.log + info.text


def streamed(running: Running, timeout: float = 10.0) -> tuple[int, str]:
    body = {**HELLO, "stream": True}
    text = b""
    with httpx.stream("POST", f"{running.url}/v1/chat/completions", json=body, timeout=timeout) as got:
        for part in got.iter_bytes():
            text += part
    return got.status_code, text.decode()


def test_faults_strike_the_requests_that_they_are_meant_for(tmp_path: Path) -> None:
    faults = [
        {"kind": "http-500", "after_requests": 1},
        {"kind": "in-band-error", "after_requests": 2},
        {"kind": "malformed-stream", "after_requests": 3},
        {"kind": "hang", "after_requests": 4},
        {"kind": "die", "after_requests": 6},
    ]
    with server(tmp_path, "--tp-size", "8", faults=faults) as running:
        running.wait_ready()
        assert events(streamed(running)[1])[-1] == "[DONE]"
        assert streamed(running)[0] == 500
        status, text = streamed(running)
        assert (status, '"error"' in text, '"finish_reason": "' in text) == (200, True, False)
        with pytest.raises(httpx.RemoteProtocolError):
            streamed(running)
        with pytest.raises(httpx.ReadTimeout):
            streamed(running, timeout=1.0)
        assert events(streamed(running)[1])[-1] == "[DONE]", "a hung request must not lose the others"
        body = {**HELLO, "max_tokens": 2000, "ignore_eos": True, "stream": True}
        with pytest.raises(httpx.TransportError), httpx.stream("POST", f"{running.url}/v1/chat/completions", json=body) as got:
            list(got.iter_bytes())
        assert running.ended() == -9
        assert "simulated fault: the scheduler was told to die" in running.log


def test_whole_answers_are_spoiled_as_streamed_ones_are(tmp_path: Path) -> None:
    faults = [{"kind": "in-band-error"}, {"kind": "malformed-stream", "after_requests": 1}]
    with server(tmp_path, "--tp-size", "8", faults=faults) as running:
        running.wait_ready()
        url = f"{running.url}/v1/chat/completions"
        got = httpx.post(url, json=HELLO)
        assert (got.status_code, list(got.json())) == (200, ["error"])
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(url, json=HELLO)
        assert httpx.post(url, json=HELLO).json()["choices"][0]["finish_reason"]


def test_a_script_says_what_a_launch_answers(tmp_path: Path) -> None:
    script = [{"asked": HELLO["messages"][0]["content"], "answer": 'Grüße: `a$b`\n"c"', "launch": "candidate-7"}]
    for launch, scripted in (("candidate-7", True), ("candidate-8", False)):
        with server(tmp_path, "--tp-size", "8", launch=launch, answers=script) as running:
            running.wait_ready()
            url = f"{running.url}/v1/chat/completions"
            text = httpx.post(url, json=HELLO).json()["choices"][0]["message"]["content"]
            assert (text == script[0]["answer"]) == scripted
            chunks = [json.loads(event) for event in events(streamed(running)[1])[:-1]]
            told = "".join(one["choices"][0]["delta"].get("content") or "" for one in chunks if one["choices"])
            assert told == text


def test_a_slow_start_takes_longer_than_the_launch(tmp_path: Path) -> None:
    with server(tmp_path, "--tp-size", "8", faults=[{"kind": "slow-start", "seconds": 60.0}]) as running:
        running.wait_log("Init torch distributed begin")
        assert "Load weight end" not in running.log
        assert running.process.poll() is None


def test_a_launch_knows_its_name_from_the_environment(tmp_path: Path) -> None:
    faults = [{"kind": "die", "launch": "candidate-7"}]
    with server(tmp_path, "--tp-size", "8", launch="candidate-7", faults=faults) as running:
        running.wait_ready()
        with pytest.raises(httpx.TransportError):
            streamed(running)
        assert running.ended() == -9
    for other in ("candidate-8", ""):
        with server(tmp_path, "--tp-size", "8", launch=other, faults=faults) as running:
            running.wait_ready()
            assert events(streamed(running)[1])[-1] == "[DONE]"


def test_help_and_version_are_printed(tmp_path: Path) -> None:
    for flag, words in (("--help", "--speculative-ddtree-budget"), ("--version", "simulated")):
        with server(tmp_path, flag) as running:
            assert running.ended() == 0
            assert words in running.log
    with server(tmp_path, "--simulate", "[]") as running:
        assert running.ended() == 2
        assert "argument --simulate" in running.log
