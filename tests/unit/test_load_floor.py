from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from autotuner.bench.floor import FILE, Floor, FloorPoint, read_floor, write_floor
from autotuner.bench.selftest import steps_to
from autotuner.cli.floor_text import floor_check, floor_lines, floor_object


def point(concurrency: int, *invalid: str, lag: float | None = 0.25) -> FloorPoint:
    return FloorPoint(
        concurrency=concurrency,
        chunks_s=1800.4,
        lag_p50_ms=0.05,
        lag_p99_ms=lag,
        lag_max_ms=1.5,
        cpu=0.07,
        cpu_us_per_chunk=38.6,
        coalesced=0.0,
        invalid=invalid,
    )


def floor(*points: FloorPoint, wanted: int = 64) -> Floor:
    return Floor(machine="bench1", cpus=8, at="2026-03-04T05:06:07+00:00", tool="0.1.0", clock="kernel", wanted=wanted, points=points)


GOOD = floor(point(1), point(4), point(16), point(64))
BAD = floor(point(1), point(4), point(16, "answers waited 9.1 ms to be read (99th percentile), 5 ms are allowed"))


def test_concurrencies_grow_to_the_wanted_one() -> None:
    assert steps_to(1) == (1,)
    assert steps_to(64) == (1, 4, 16, 64)
    assert steps_to(100) == (1, 4, 16, 64, 100)


def test_the_highest_valid_concurrency_is_the_last_before_the_first_that_is_not() -> None:
    assert (GOOD.highest_valid, GOOD.holds) == (64, True)
    assert (BAD.highest_valid, BAD.holds) == (4, False)
    gap = floor(point(1), point(4, "x"), point(64))
    assert (gap.highest_valid, gap.holds) == (1, False)
    assert floor(point(1, "x")).highest_valid is None


def test_evidence_is_one_sentence() -> None:
    assert GOOD.sentence == (
        "self-test of 2026-03-04 on bench1: valid up to 64 concurrent requests "
        "(read lag p99 0.25 ms, 39 µs of CPU per chunk, 1800 chunks/s)"
    )
    assert BAD.sentence.endswith("; not at 64")
    assert "no kernel stamps" in floor(point(64, lag=None)).sentence
    assert floor(point(1, "x")).sentence == "self-test of 2026-03-04 on bench1: the load generator is not valid at any concurrency"


def test_the_verdict_is_a_check_with_the_reason_and_what_to_do() -> None:
    assert floor_check(GOOD).status == "pass"
    failed = floor_check(BAD)
    assert failed.status == "fail"
    assert "At 16: answers waited 9.1 ms to be read" in failed.detail
    assert failed.hint


def test_the_table_has_a_row_for_each_concurrency() -> None:
    head, *table = floor_lines(BAD)
    assert head == f"load generator on bench1, 8 CPUs, kernel stamps; kept in {FILE} of the state folder"
    assert table == [
        " C  chunks/s  lag p50   p99  max (ms)  CPU/chunk",
        " 1      1800     0.05  0.25      1.50      39 µs      valid",
        " 4      1800     0.05  0.25      1.50      39 µs      valid",
        "16      1800     0.05  0.25      1.50      39 µs  NOT VALID",
    ]
    assert "–" in floor_lines(floor(dataclasses.replace(point(1, lag=None), cpu_us_per_chunk=None)))[2]
    assert json.loads(json.dumps(floor_object(BAD)))["highest_valid"] == 4


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert read_floor(folder) is None
    write_floor(folder, BAD)
    assert read_floor(folder) == BAD


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"machine": 3}'])
def test_a_file_that_is_none_of_ours_is_no_evidence(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert read_floor(tmp_path) is None


def test_a_file_of_a_newer_version_is_not_read_as_one_of_this(tmp_path: Path) -> None:
    write_floor(tmp_path, dataclasses.replace(GOOD, schema=99))
    assert read_floor(tmp_path) is None
