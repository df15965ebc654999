"""Constraints that can never hold, or never be decided, are errors; what only a host can decide is not."""

from __future__ import annotations

import pytest
import yaml

from autotuner.documents import parse_document
from autotuner.errors import InvalidDocument
from tests import builders


def _parse(**changes: object) -> object:
    return parse_document(yaml.safe_dump(builders.space(**changes).model_dump(mode="json", by_alias=True, exclude_defaults=True)))


@pytest.mark.parametrize(
    "text", ["block > 100", "block == 'x'", "block in [100, 200]", "min(block, 3) == 9", "spec == 'off' or block > 100"]
)
def test_a_constraint_that_rules_a_parameter_out_is_an_error(text: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        _parse(constraints=("graphs or not graphs", text))
    errors = [problem for problem in caught.value.problems if problem.severity == "error"]
    assert [problem.message for problem in errors] == [
        f"`{text}` holds for no block (4 … 16), so nothing with `spec == 'dflash'` is ever tried"
    ]


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("block / 0 > 1", 0),
        ("block < 'a'", 0),
        ("gpus > 'a'", 0),
        ("graphs < 3", 0),
        ("spec + 1 == 2", 0),
        ("has_drafter > 1", 0),
        ("heads % (block - block) == 0", 0),
        ("nvlink or spec < 3", 10),
    ],
)
def test_a_comparison_that_is_never_decided_is_an_error_at_its_column(text: str, column: int) -> None:
    with pytest.raises(InvalidDocument) as caught:
        _parse(constraints=(text,))
    (problem,) = caught.value.problems
    assert f"a comparison in `{text}` can never be decided" in problem.message
    assert problem.column == 3 + column


def test_a_condition_that_is_never_decided_is_an_error() -> None:
    parameters = {**builders.space().parameters, "budget": {"type": "int", "low": 4, "high": 8, "when": "mem_fraction < 'a'"}}
    with pytest.raises(InvalidDocument, match="can never be decided with mem_fraction"):
        _parse(parameters=parameters)


@pytest.mark.parametrize(
    "text", ["window >= block", "experts % block == 0", "nvlink", "has_drafter or spec == 'off'", "drafter_block >= block", "sm >= 90"]
)
def test_what_a_host_decides_is_left_open(text: str) -> None:
    assert _parse(constraints=(text,))
