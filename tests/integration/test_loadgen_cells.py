from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotuner.engines.base import Counters
from autotuner.errors import Interrupted, RetryTrial, TransportError
from autotuner.loadgen.calibration import PROBES, calibrate
from autotuner.loadgen.cells import CellPlan
from autotuner.loadgen.control import ControlClient
from autotuner.loadgen.fleet import fleet
from autotuner.loadgen.prompts import PromptSource
from autotuner.loadgen.validity import relaxed
from autotuner.model.workload import Sampling
from tests.scripted_server import CHARS_PER_TOKEN, OVERHEAD, PATH, ScriptedServer, measure, wait_until


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    made = ScriptedServer()
    yield made
    made.close()


@pytest.fixture(autouse=True, scope="module")
def _rested_fleet() -> Iterator[None]:
    yield
    fleet().close()


def test_tokens_rates_and_acceptance_are_those_that_the_server_sent(server: ScriptedServer) -> None:
    found = measure(server, "plain", counters=server.counters)
    result = found.result
    assert result.failed == 0
    assert result.errors == {}
    complete = [record for record in found.records if record.valid]
    assert len(complete) >= 4
    for record in complete:
        assert record.completion_tokens == record.chunks[-1][1]
        assert [tokens for _, tokens in record.chunks[:3]] == [3, 6, 9]
        assert record.finish_reason == "length"
    assert {record.completion_tokens for record in complete} <= {32, 36, 48}
    assert result.metrics["acceptance_length"] == pytest.approx(3, rel=0.05)
    assert result.prompt_tokens_p50 == 60
    # One lane decodes three tokens a step; the step cannot be shorter than the script says.
    assert 0 < result.metrics["user_tok_s"] <= 3 / server.step_s
    assert result.metrics["output_tok_s"] <= 4 * 3 / server.step_s
    assert result.metrics["output_tok_s"] > result.metrics["user_tok_s"]


@pytest.mark.alone
def test_the_rate_in_the_window_is_the_servers_own_in_the_same_time(server: ScriptedServer) -> None:
    found = measure(server, "plain", concurrency=8, output_tokens=480)
    last = max(at for record in found.records for at, _ in record.chunks)
    first = min(at for record in found.records for at, _ in record.chunks)
    sent = sum(tokens for _, tokens in server.sent)
    span = server.sent[-1][0] - server.sent[0][0]
    assert last > first
    assert found.result.metrics["output_tok_s"] == pytest.approx(sent / span, rel=0.25)


def test_requests_ask_for_counted_tokens_greedy_sampling_and_a_natural_end(server: ScriptedServer) -> None:
    measure(server, "plain", concurrency=2)
    body = server.requests[0]
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert body["temperature"] == 0
    assert "ignore_eos" not in body
    texts = [str(request["messages"][0]["content"]) for request in server.requests]  # type: ignore[index]
    assert len({text[:12] for text in texts}) == len(texts)


def test_one_lane_is_measured_from_the_end_of_an_answer_to_the_end_of_an_answer(server: ScriptedServer) -> None:
    found = measure(server, "plain", concurrency=1, output_tokens=60)
    complete = [record for record in found.records if record.valid and record.completion_tokens == 60]
    assert len(complete) >= 2
    tokens = sum(record.completion_tokens or 0 for record in complete)
    # Whole answers only: the tokens of the window are a multiple of an answer's.
    whole = found.result.metrics["output_tok_s"] * found.result.window_s / 60
    assert whole == pytest.approx(round(whole), abs=0.02)
    assert tokens >= round(whole) * 60
    # The warm-up's last answer, at whose end the window begins, is no part of it.
    assert found.result.requests == round(whole)


@pytest.mark.parametrize("script", ["http-500", "in-band", "malformed", "truncated", "no-finish", "no-done", "no-usage"])
def test_every_way_to_fail_is_counted_under_its_own_name(server: ScriptedServer, script: str) -> None:
    result = measure(server, script).result
    assert result.requests == 0
    assert result.failed > 0
    assert set(result.errors) == {script}


def test_an_answer_to_another_question_is_counted_under_its_own_name(server: ScriptedServer) -> None:
    longer = measure(server, "plain", context=200).result
    assert set(longer.errors) == {"prompt-length"}
    cached = measure(server, "cached").result
    assert set(cached.errors) == {"cached-prompt"}
    stopped = measure(server, "stops", sampling=Sampling(ignore_eos=True)).result
    assert set(stopped.errors) == {"early-stop"}
    assert measure(server, "stops").result.errors == {}


def test_a_port_where_nobody_listens_is_a_result_and_soon(server: ScriptedServer) -> None:
    server.die()
    begun = time.monotonic()
    result = measure(server, "plain", plan=CellPlan()).result
    assert result.requests == 0
    assert set(result.errors) == {"connection"}
    assert result.failed <= 4 * 4
    assert time.monotonic() - begun < 10
    assert any("every lane failed" in warning for warning in result.warnings)


def test_a_hung_request_is_recorded_and_loses_no_other(server: ScriptedServer) -> None:
    plan = relaxed(CellPlan(window_s=1.5, warmup_s=0.3, max_window_s=3, max_warmup_s=0.6, settle_s=0.3, request_timeout_s=1.2))
    found = measure(server, "hang-one", plan=plan)
    assert found.result.errors == {"stalled": 1}
    assert found.result.requests > 8
    assert sum(record.error == "stalled" for record in found.records) == 1


def test_a_request_that_hangs_through_the_window_is_said_to_wait(server: ScriptedServer) -> None:
    result = measure(server, "hang-one").result
    assert result.failed == 0
    assert any("waited through the whole window" in warning for warning in result.warnings)


def test_a_server_that_dies_in_a_cell_ends_the_cell_and_keeps_what_was_there(server: ScriptedServer) -> None:
    plan = relaxed(CellPlan(window_s=20, warmup_s=0.3, max_window_s=30, settle_s=0.3))
    threading.Timer(1.5, server.die).start()
    found = measure(server, "plain", plan=plan)
    assert found.result.window_s < 15
    assert found.result.requests > 0
    assert found.result.errors["connection"] >= 4
    assert any("cut short" in warning for warning in found.result.warnings)


@pytest.mark.alone
def test_a_stop_interrupts_within_a_second_and_no_connection_is_left(server: ScriptedServer) -> None:
    measure(server, "plain")  # workers are there
    stop_at = time.monotonic() + 0.8
    with pytest.raises(Interrupted):
        measure(server, "plain", plan=relaxed(CellPlan(window_s=60, max_window_s=60)), should_stop=lambda: time.monotonic() > stop_at)
    assert time.monotonic() - stop_at < 1.5
    assert wait_until(lambda: server.open == 0)


def test_abandoned_requests_count_for_tokens_and_not_as_failures(server: ScriptedServer) -> None:
    found = measure(server, "plain", output_tokens=3000, plan=relaxed(CellPlan(window_s=0.5, warmup_s=0.3, max_window_s=0.5, settle_s=0.3)))
    abandoned = [record for record in found.records if record.end_s is None]
    assert abandoned
    assert all(record.error is None and record.completion_tokens is None for record in abandoned)
    assert found.result.metrics["output_tok_s"] > 0
    assert found.result.failed == 0
    assert found.result.requests > 0


def test_totals_are_spread_over_chunks_with_a_warning_where_chunks_are_not_counted(server: ScriptedServer) -> None:
    found = measure(server, "final-usage")
    assert found.result.failed == 0
    assert any("chunk by chunk" in warning for warning in found.result.warnings)
    for record in found.records:
        if record.valid:
            assert record.chunks[-1][1] == record.completion_tokens
    assert found.result.metrics["user_tok_s"] <= 3 / server.step_s * 1.05


def test_many_lanes_are_spread_over_processes(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    server.step_s = 0.1
    found = measure(server, "plain", concurrency=64, plan=relaxed(CellPlan(window_s=1, warmup_s=1, max_window_s=4, settle_s=1)))
    assert found.result.failed == 0
    assert {record.lane for record in found.records} == set(range(64))
    assert len(fleet()._idle) >= 2
    assert found.result.metrics["output_tok_s"] <= 64 * 30


def test_workers_are_kept_between_cells_and_end_with_their_input(server: ScriptedServer) -> None:
    measure(server, "plain")
    before = {worker.pid for worker in fleet()._idle}
    measure(server, "plain")
    assert {worker.pid for worker in fleet()._idle} == before
    fleet().close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in before)


def test_a_worker_that_is_killed_is_a_reason_to_try_again(server: ScriptedServer) -> None:
    measure(server, "plain")
    victim = fleet()._idle[0].pid
    killer = threading.Timer(0.5, os.kill, (victim, signal.SIGKILL))
    killer.start()
    with pytest.raises(RetryTrial, match=str(victim)):
        measure(server, "plain", plan=relaxed(CellPlan(window_s=30, max_window_s=30)))
    killer.join()
    assert measure(server, "plain").result.requests > 0


def test_workers_end_when_their_parent_is_killed(server: ScriptedServer) -> None:
    program = f"""
from autotuner.loadgen.cells import CellPlan, measure_cell
from autotuner.loadgen.fleet import fleet
from autotuner.loadgen.prompts import PromptSource
from autotuner.loadgen.validity import relaxed
from autotuner.model.workload import Cell, Sampling
def should_stop():
    return False
with fleet().crew(1) as crew:
    print(crew._workers[0].pid, flush=True)
measure_cell({server.url!r}, model="plain", chat_path={PATH!r}, cell=Cell(context=60, concurrency=2), prompts=PromptSource(("code",)),
             sampling=Sampling(), plan=relaxed(CellPlan(window_s=60, max_window_s=60)), read_counters=None, should_stop=should_stop)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        worker = Path(f"/proc/{parent.stdout.readline().strip()}")
    assert wait_until(lambda: server.open > 0)
    assert worker.exists()
    parent.kill()
    parent.wait()
    assert wait_until(lambda: not _runs(worker))
    assert wait_until(lambda: server.open == 0)


def _runs(process: Path) -> bool:
    try:
        return process.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_counter_page_that_fails_costs_a_warning_only(server: ScriptedServer) -> None:
    def broken() -> Counters:
        raise TransportError("GET /metrics: HTTP 404")

    result = measure(server, "plain", counters=broken).result
    assert result.requests > 0
    assert "acceptance_length" not in result.metrics
    assert sum("no counters" in warning for warning in result.warnings) == 1


def test_calibration_sizes_prompts_to_what_the_server_counts(server: ScriptedServer) -> None:
    with ControlClient(server.url) as control:
        fit = calibrate(control, model="plain", chat_path=PATH, contexts=(60, 1024, 30000))
        assert fit.overhead_tokens == OVERHEAD + round(12 / CHARS_PER_TOKEN)
        source = PromptSource(("code", "explanation", "rag"), seed=3).with_fit(fit)
        for context in (60, 200, 1024, 30000):
            counts = []
            for index in range(9):
                body = {"model": "plain", "messages": [{"role": "user", "content": source.prompt(context, index).text}]}
                counts.append(control.post_json(PATH, body)["usage"]["prompt_tokens"])  # type: ignore[index]
            assert sorted(counts)[4] == pytest.approx(context, rel=0.05)


def test_calibration_asks_for_little_where_only_short_contexts_are_served(server: ScriptedServer) -> None:
    with ControlClient(server.url) as control:
        calibrate(control, model="plain", chat_path=PATH, contexts=(200,), domains=("code",))
    sizes = [len(str(request["messages"][0]["content"])) for request in server.requests]  # type: ignore[index]
    assert len(sizes) == 4 + PROBES
    assert max(sizes) / CHARS_PER_TOKEN + OVERHEAD < 200 * 1.05, "a whole prompt is as long as the context, and the answer has its own room"


def test_calibration_says_what_is_missing(server: ScriptedServer) -> None:
    with ControlClient(server.url) as control, pytest.raises(TransportError, match=r"usage\.prompt_tokens"):
        calibrate(control, model="no-usage", chat_path=PATH, contexts=(60,))
