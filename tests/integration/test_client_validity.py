"""Whether the load generator notices that it was not good enough, and what becomes of the cell then."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotuner.loadgen.answers import ReadLog
from autotuner.loadgen.cells import THROWN_AWAY, CellPlan
from autotuner.loadgen.chat import request_body
from autotuner.loadgen.fleet import Fleet, Worker, fleet
from autotuner.loadgen.validity import relaxed
from autotuner.loadgen.wire import Connection, realtime_offset_ns
from autotuner.model.workload import Sampling
from tests.halt import Halt
from tests.integration.certificates import certificate
from tests.scripted_server import PLAN, ScriptedServer, measure


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    made = ScriptedServer()
    yield made
    made.close()


@pytest.fixture(autouse=True, scope="module")
def _rested_fleet() -> Iterator[None]:
    yield
    fleet().close()


def test_times_come_from_the_kernel(server: ScriptedServer) -> None:
    result = measure(server, "plain").result
    assert not any("kernel" in warning for warning in result.warnings)
    client = result.client
    assert client is not None
    assert client.clock == "kernel"
    assert client.reads >= 12 * result.window_s / server.step_s / 12
    assert client.lag_p50_ms is not None
    assert 0 <= client.lag_p50_ms <= (client.lag_p99_ms or 0) <= (client.lag_max_ms or 0)
    assert 0 < client.cpu < 1
    assert client.gc_pause_max_ms == 0, "the garbage collector must be off while lanes run"


def test_a_cell_whose_client_was_held_up_is_measured_again_and_says_so(server: ScriptedServer) -> None:
    measure(server, "plain")
    halt = Halt(fleet()._idle[0].pid, 0.3)
    flushes: list[int] = []
    # Only halts: what else this machine is busy with is not to be seen here.
    plan = replace(relaxed(CellPlan(window_s=1.0, warmup_s=0.3, max_window_s=4, settle_s=0.3, min_answers=1)), coalesced_share=0.06)
    found = measure(server, "plain", concurrency=1, output_tokens=240, plan=plan, observe=halt, before_attempt=lambda: flushes.append(1))
    thrown = [warning for warning in found.result.warnings if warning.startswith(THROWN_AWAY)]
    assert "1 of 2" in thrown[0]
    assert "while the load generator stood still" in thrown[0]
    assert found.result.client is not None
    assert found.result.client.valid
    assert len(flushes) == halt.attempts == len(thrown) + 1
    assert found.result.server is not None
    assert found.result.server.samples == halt.attempts


def test_a_cell_that_the_client_spoils_every_time_comes_back_as_invalid(server: ScriptedServer) -> None:
    found = measure(server, "plain", plan=replace(PLAN, cpu_share=0.0, repeats=1))
    assert found.result.client is not None
    assert [why for why in found.result.client.invalid if "of a core" in why]
    assert found.result.requests > 0
    assert sum(warning.startswith(THROWN_AWAY) for warning in found.result.warnings) == 1


def test_attempts_ask_other_questions_than_the_ones_before(server: ScriptedServer) -> None:
    measure(server, "plain", concurrency=1, plan=replace(PLAN, cpu_share=0.0, repeats=1))
    texts = [str(request["messages"][0]["content"]) for request in server.requests]  # type: ignore[index]
    assert len({text[:14] for text in texts}) == len(texts)
    assert len({text[15:] for text in texts}) < len(texts)


def test_behind_tls_times_are_the_clients_own_and_the_cell_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(chain))
    workers = Fleet(Worker, lambda: 1)
    server = ScriptedServer(tls=context)
    try:
        found = measure(server, "plain", workers=workers)
        assert (found.result.errors, found.result.failed) == ({}, 0)
        complete = [record for record in found.records if record.valid]
        assert all([tokens for _, tokens in record.chunks[:3]] == [3, 6, 9] for record in complete)
        assert any("the client's own" in warning for warning in found.result.warnings)
        client = found.result.client
        assert client is not None
        assert (client.clock, client.lag_p99_ms) == ("user", None)
        assert client.reads > 0
        broken = measure(server, "truncated", workers=workers)
        assert broken.result.requests == 0
        assert set(broken.result.errors) <= {"malformed", "truncated", "connection"}
    finally:
        workers.close()
        server.close()


@pytest.mark.parametrize("shift_s", [86400, -86400, 0.5])
def test_stamps_of_another_time_than_the_processes_own_are_not_used(shift_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    offset_ns = realtime_offset_ns()
    monkeypatch.setattr("autotuner.loadgen.wire.realtime_offset_ns", lambda: offset_ns + round(shift_s * 1e9))
    server = ScriptedServer()
    log = ReadLog()

    async def ask() -> None:
        body = request_body(model="plain", prompt="hello", sampling=Sampling())[:-1] + b',"max_tokens":9}'
        connection = await Connection.open("127.0.0.1", server.port, timeout_s=5)
        await connection.exchange(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body), log, stall_s=5)

    try:
        begin_ns = time.monotonic_ns()
        asyncio.run(ask())
        end_ns = time.monotonic_ns()
    finally:
        server.close()
    assert log.clock == "user"
    assert all(begin_ns <= stamp <= end_ns for stamp, _ in log.reads)
