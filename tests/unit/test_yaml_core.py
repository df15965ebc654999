from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.documents.source import Mark
from autotuner.documents.yaml_core import parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("n", "n"),
        ("true", True),
        ("False", False),
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        (".5", 0.5),
        ("-7", -7),
        ("+7", 7),
        ("0", 0),
        ("0.5", 0.5),
        ("0x1F", 31),
        ("0o17", 15),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("2026-01-31", "2026-01-31"),
        ("~", None),
        ("", None),
        ("null", None),
        ("'010'", "010"),
        ('"1"', "1"),
        ("!!str 8", "8"),
        ("0b1", "0b1"),
        ("=", "="),
    ],
)
def test_scalars_follow_the_core_schema_of_yaml_1_2(text: str, value: object) -> None:
    source = parse(f"key: {text}\n")
    assert source.problems == []
    found = source.value["key"]
    assert (found, type(found)) == (value, type(value))


def test_every_value_and_key_keeps_its_place() -> None:
    source = parse("a:\n  b: [1, 'x']\n# comment\nc: d\n")
    assert source.mark(("a", "b", 1)) == Mark(2, 10)
    assert source.mark(("a", "b"), key=True) == Mark(2, 3)
    assert source.mark(("c",)) == Mark(4, 4)
    assert source.text_offset["a", "b", 1] == 1
    assert source.mark(("a", "missing")) == Mark(1, 1)


def test_a_byte_order_mark_is_no_part_of_the_document() -> None:
    assert parse("\ufeffa: 1\n").value == {"a": 1}


def test_aliases_within_bounds_are_written_out() -> None:
    assert parse("a: &x [1, 2]\nb: *x\n").value == {"a": [1, 2], "b": [1, 2]}


@given(st.text(max_size=200))
def test_no_text_crashes_the_reader(text: str) -> None:
    source = parse(text.encode("utf-8", "replace").decode())
    assert source.problems or source.value is not None or text.strip() in {"", "~", "null", "Null", "NULL"} or source.value is None


@given(st.text(alphabet="ab:&*!|>-[]{}'\"#%@\t\n ?,1<", max_size=60))
def test_no_mixture_of_signs_crashes_the_reader(text: str) -> None:
    source = parse(text)
    assert all(problem.line >= 1 and problem.column >= 1 and problem.message for problem in source.problems)
