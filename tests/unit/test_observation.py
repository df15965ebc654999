from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from autotuner.engines.base import Counters, Gauges
from autotuner.engines.vllm import metrics
from autotuner.errors import TransportError
from autotuner.loadgen.observation import Look, PageReader, ServerWatch, summarize
from autotuner.model.measurement import GpuReport, ServerReport

S = 1_000_000_000


def look(at_s: float, *, running: float | None = None, kv: float | None = None, **counted: float) -> Look:
    return Look(int(at_s * S), Counters(**counted), Gauges(running=running, queued=0.0, kv_usage=kv))


def test_counters_are_taken_at_the_edges_of_the_window_between_looks() -> None:
    looks = [look(0, decoded_tokens=0), look(2, decoded_tokens=200), look(4, decoded_tokens=600), look(6, decoded_tokens=800)]
    assert summarize(looks, 1 * S, 5 * S).generation_tokens == 700 - 100
    assert summarize(looks, 2 * S, 4 * S).generation_tokens == 400


def test_tokens_counted_as_they_are_made_are_preferred_to_those_of_ended_requests() -> None:
    both = [look(0, generation_tokens=0, decoded_tokens=10), look(1, generation_tokens=0, decoded_tokens=60)]
    assert summarize(both, 0, S).generation_tokens == 50
    assert summarize([look(0, generation_tokens=5), look(1, generation_tokens=9)], 0, S).generation_tokens == 4


def test_gauges_are_those_inside_of_the_window() -> None:
    looks = [look(0, running=99, kv=0.9), look(2, running=4, kv=0.2), look(3, running=8, kv=0.4), look(9, running=99, kv=0.9)]
    found = summarize(looks, 1 * S, 4 * S)
    assert (found.running_mean, found.running_max, found.kv_usage_max, found.samples) == (6, 8, 0.4, 2)


def test_what_is_not_exported_is_not_known() -> None:
    assert summarize([], 0, S) == ServerReport()
    found = summarize([look(0, running=1), look(1, running=1)], 0, S)
    assert (found.generation_tokens, found.retractions, found.cached_tokens, found.kv_usage_max) == (None,) * 4


def test_one_look_alone_is_no_change() -> None:
    assert summarize([look(0.5, decoded_tokens=7)], 0, S).generation_tokens is None


def test_a_counter_that_falls_says_so_and_is_left_out() -> None:
    found = summarize([look(0, decoded_tokens=900), look(1, decoded_tokens=3)], 0, S)
    assert found.generation_tokens is None
    assert found.warnings == ("the server's count of decoded tokens fell from 900 to 3: did it start anew?",)


@dataclass
class Server:
    """A page that counts how often it was asked for."""

    asked: int = 0
    broken: str = ""
    slow: threading.Event | None = None

    def page(self) -> str:
        self.asked += 1
        if self.slow is not None:
            self.slow.wait(5)
        if self.broken:
            raise TransportError(self.broken)
        return f'vllm:generation_tokens_total{{engine="0"}} {self.asked}\nvllm:num_requests_running{{engine="0"}} 3\n'

    def reader(self) -> PageReader:
        return PageReader(self.page, metrics.counters, metrics.gauges)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_window_is_watched_from_its_begin_to_its_end() -> None:
    server = Server()
    with ServerWatch(server.reader(), period_s=0.02) as watch:
        watch.tick()
        until(lambda: server.asked >= 3)
        watch.begin(time.monotonic_ns())
        before = server.asked
        until(lambda: server.asked >= before + 4)
        found = watch.end()
    assert found.samples >= 3
    assert found.running_mean == 3
    assert found.generation_tokens is not None
    assert 3 <= found.generation_tokens <= server.asked - before + 1
    assert found.warnings == ()


def test_even_a_short_window_is_looked_at() -> None:
    server = Server()
    with ServerWatch(server.reader(), period_s=60) as watch:
        watch.begin(time.monotonic_ns())
        until(lambda: server.asked >= 1)
        found = watch.end()
    assert found.generation_tokens is not None
    assert server.asked == 2


def test_a_window_that_begins_anew_forgets_what_was_before() -> None:
    server = Server()
    with ServerWatch(server.reader(), period_s=0.02) as watch:
        watch.begin(time.monotonic_ns())
        until(lambda: server.asked >= 20)
        watch.begin(time.monotonic_ns())
        found = watch.end()
    assert found.samples < 10
    assert found.generation_tokens is not None
    assert found.generation_tokens < 10


def test_a_page_that_fails_costs_a_warning_with_the_reason() -> None:
    server = Server(broken="GET /metrics: HTTP 404")
    with ServerWatch(server.reader(), period_s=60) as watch:
        watch.begin(time.monotonic_ns())
        found = watch.end()
    assert found.generation_tokens is None
    assert len(found.warnings) == 1
    assert found.warnings[0].endswith("looks at the server's metrics page had no answer: GET /metrics: HTTP 404")


def test_a_look_that_a_busy_server_misses_is_not_told() -> None:
    server = Server()
    with ServerWatch(server.reader(), period_s=0.01) as watch:
        watch.begin(time.monotonic_ns())
        until(lambda: server.asked >= 20)
        server.broken = "timed out"
        asked = server.asked
        until(lambda: server.asked > asked)
        server.broken = ""
        until(lambda: server.asked > asked + 20)
        found = watch.end()
    assert found.samples >= 20
    assert found.warnings == ()


def test_the_load_never_waits_for_a_page_that_does_not_come() -> None:
    server = Server(slow=threading.Event())
    with ServerWatch(server.reader(), period_s=0.02) as watch:
        watch.tick()
        until(lambda: server.asked == 1)
        for _ in range(100):
            watch.tick()
        watch.begin(time.monotonic_ns())
        assert server.asked == 1, "one question at a time"
        server.slow.set()
        until(lambda: server.asked >= 2)


def test_a_window_that_never_began_says_nothing_and_another_attempt_may_follow() -> None:
    server = Server()
    with ServerWatch(server.reader(), period_s=0.02) as watch:
        watch.tick()
        assert watch.end() == ServerReport()
        before = server.asked
        watch.begin(time.monotonic_ns())
        until(lambda: server.asked > before)
        assert watch.end().generation_tokens is not None


def test_nothing_runs_on_when_the_watch_is_left() -> None:
    server = Server()
    with ServerWatch(server.reader(), period_s=0.01) as watch:
        watch.tick()
        until(lambda: server.asked >= 1)
    assert all(thread.name != "server-watch" for thread in threading.enumerate())


class Gpus:
    def report(self, begin_ns: int, end_ns: int) -> tuple[tuple[GpuReport, ...], tuple[str, ...]]:
        assert begin_ns < end_ns
        return (GpuReport(index=0, power_w=300.0),), ("GPU 0 was too hot",)


def test_a_server_without_a_page_may_have_gpus() -> None:
    with ServerWatch(None, gpus=Gpus()) as watch:
        watch.tick()
        watch.begin(time.monotonic_ns())
        assert watch.end() == ServerReport(gpus=(GpuReport(index=0, power_w=300.0),), warnings=("GPU 0 was too hot",))
