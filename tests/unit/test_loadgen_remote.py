"""What travels between the tuner and its load workers on hosts, and the decisions about it."""

from __future__ import annotations

import ast
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner import loadgen
from autotuner.loadgen.answers import ReadLog
from autotuner.loadgen.frames import FrameReader, frame, packed_body, packed_exchanges, unpacked_body, unpacked_exchanges
from autotuner.loadgen.hosttime import FRESH_S, TOLERANCE_NS, ClockSample, HostClock, moved, quickest
from autotuner.loadgen.lanes import Exchange
from autotuner.loadgen.remote import MODULES, OLDEST_PYTHON, program
from autotuner.loadgen.supply import DEEPEST, QUEUE_BYTES, SHALLOWEST, Supply, queue_depth

S = 1_000_000_000
MS = 1_000_000


@pytest.mark.parametrize("name", MODULES)
def test_what_travels_needs_nothing_but_an_old_python(name: str) -> None:
    source = Path(loadgen.__path__[0], f"{name}.py").read_text()
    tree = ast.parse(source, feature_version=OLDEST_PYTHON)
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    own = {f"autotuner.loadgen.{other}" for other in MODULES[: MODULES.index(name)]}
    assert {module for module in imported - own if module.split(".")[0] not in sys.stdlib_module_names} == set()
    # asyncio.timeout, TaskGroup and Runner came with 3.11.
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "asyncio"}
    assert used & {"timeout", "timeout_at", "TaskGroup", "Runner"} == set()


def test_the_program_says_how_long_it_is() -> None:
    line, _, code = program().partition(b"\n")
    assert int(line) == len(code)
    compile(code, "program", "exec")


@given(
    frames=st.lists(st.tuples(st.dictionaries(st.text(), st.integers() | st.text()), st.binary()), max_size=5),
    size=st.integers(min_value=1, max_value=40),
)
def test_frames_come_out_as_they_went_in_however_they_are_cut(frames: list[tuple[dict[str, object], bytes]], size: int) -> None:
    stream = b"".join(frame(header, payload) for header, payload in frames)
    reader = FrameReader()
    assert [found for at in range(0, len(stream), size) for found in reader.feed(stream[at : at + size])] == frames


def test_what_is_no_frame_is_an_error_not_silence() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        FrameReader().feed(b"\0\0\0\5\0\0\0\0Last ")


@given(st.binary())
def test_bodies_survive_their_packing(body: bytes) -> None:
    [(header, payload)] = FrameReader().feed(packed_body(7, body))
    assert header == {"body": 7}
    assert unpacked_body(payload) == body


def test_exchanges_survive_their_packing() -> None:
    whole = Exchange(3, 1, ReadLog(sent_ns=5 * S, reads=[(6 * S, b"HTTP/1.1 200"), (7 * S, b"\0\xff")], user_stamps=1, end_ns=7 * S))
    running = Exchange(4, 2, ReadLog(sent_ns=8 * S, reads=[]))
    failed = Exchange(5, 3, ReadLog(), "connection", "h:1: refused – ß", 9 * S)
    [(header, payload)] = FrameReader().feed(packed_exchanges([whole, running, failed]))
    assert unpacked_exchanges(header["exchanges"], payload) == [whole, running, failed]


def test_event_streams_shrink_on_their_way() -> None:
    chunk = b'data: {"choices":[{"delta":{"content":"word"}}],"usage":{"completion_tokens":%d}}\n\n'
    log = ReadLog(sent_ns=S, reads=[(S + number * 10 * MS + number**3, chunk % number) for number in range(500)])
    assert len(packed_exchanges([Exchange(0, 0, log)])) < sum(len(data) for _, data in log.reads) / 3


def test_a_queue_lasts_until_the_next_requests_can_be_there() -> None:
    slow = queue_depth(answers_per_s=0.2, rtt_s=0.02, body_bytes=400, lanes=32)
    fast = queue_depth(answers_per_s=30, rtt_s=0.02, body_bytes=400, lanes=1)
    far = queue_depth(answers_per_s=30, rtt_s=0.3, body_bytes=400, lanes=1)
    assert slow == SHALLOWEST < fast < far <= DEEPEST
    assert fast >= 30 * 0.5


def test_long_prompts_do_not_fill_the_memory_of_the_host() -> None:
    depth = queue_depth(answers_per_s=100, rtt_s=1, body_bytes=500_000, lanes=32)
    assert depth == 2
    assert queue_depth(answers_per_s=100, rtt_s=1, body_bytes=100_000, lanes=32) * 32 * 100_000 <= QUEUE_BYTES


def test_the_shortest_queue_is_filled_first_and_no_turn_is_left_out_or_given_twice() -> None:
    supply = Supply((3, 7), rtt_s=0.01, body_bytes=100)
    first = list(supply.due([0, 0], 0))
    assert sorted(first) == [(lane, turn) for lane in (3, 7) for turn in range(SHALLOWEST)]
    assert first[:2] == [(3, 0), (7, 0)]
    assert list(supply.due([0, 0], 1)) == []
    assert next(supply.due([1, 4], 2)) == (7, SHALLOWEST)  # and the rest of it must wait
    later = list(supply.due([1, 4], 3))
    for lane, first_turn in ((3, SHALLOWEST), (7, SHALLOWEST + 1)):
        turns = [turn for found, turn in later if found == lane]
        assert turns == list(range(first_turn, first_turn + len(turns)))
        assert turns


def test_a_lane_with_short_answers_gets_a_deeper_queue_as_it_shows() -> None:
    supply = Supply((0,), rtt_s=0.05, body_bytes=100)
    list(supply.due([0], 0))
    list(supply.due([1], 0.1))
    assert len(list(supply.due([6], 0.3))) > SHALLOWEST


def test_the_quickest_ping_knows_best() -> None:
    true_ns = 123 * S
    pings = [(0, 2, 60), (100, 1, 4), (200, 30, 31)]  # asked at, milliseconds there, milliseconds in all
    samples = [ClockSample.of(at * MS, at * MS + there * MS + true_ns, (at + total) * MS) for at, there, total in pings]
    best = quickest(samples)
    assert best.rtt_ns == 4 * MS
    assert abs(best.offset_ns - true_ns) <= best.rtt_ns / 2


def test_old_pings_are_forgotten_but_for_the_last() -> None:
    clock = HostClock()
    assert not clock.known(0)
    clock.add(ClockSample(at_ns=0, offset_ns=1, rtt_ns=1))
    clock.add(ClockSample(at_ns=S, offset_ns=2, rtt_ns=9))
    assert clock.best(S).offset_ns == 1
    late = S + round(FRESH_S * S)
    assert clock.best(late).offset_ns == 2
    assert not clock.known(late + 1)
    assert clock.best(late + 1).offset_ns == 2
    assert clock.since(S) == [ClockSample(at_ns=S, offset_ns=2, rtt_ns=9)]


def test_only_a_move_that_the_way_cannot_explain_is_one() -> None:
    before = ClockSample(at_ns=0, offset_ns=50 * S, rtt_ns=MS)
    assert moved(before, ClockSample(at_ns=1, offset_ns=50 * S + TOLERANCE_NS, rtt_ns=MS)) is None
    assert moved(before, ClockSample(at_ns=1, offset_ns=50 * S - 6 * MS, rtt_ns=MS)) == -6 * MS
    assert moved(before, ClockSample(at_ns=1, offset_ns=50 * S - 6 * MS, rtt_ns=20 * MS)) is None


def test_a_broken_payload_is_an_error() -> None:
    with pytest.raises(zlib.error):
        unpacked_body(b"no zlib")
