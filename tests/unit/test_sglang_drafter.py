from __future__ import annotations

from typing import Any

import pytest

from autotuner.engines.sglang.drafter import check_drafter
from autotuner.model.facts import DrafterFacts, ModelFacts
from autotuner.model.space import SearchSpace

MODEL = ModelFacts(path="/models/k2", layers=61, hidden_size=7168, vocab_size=163840)
DRAFTER: dict[str, Any] = {
    "path": "/models/dflash",
    "block_size": 8,
    "hidden_size": 7168,
    "target_layers": 61,
    "target_layer_ids": (1, 12, 24, 35, 47, 58),
    "mask_token_id": 163838,
}


def space(block: tuple[int, int] = (4, 8), spec: tuple[str, ...] = ("off", "dflash"), **more: Any) -> SearchSpace:
    parameters: dict[str, Any] = {"block": {"type": "int", "low": block[0], "high": block[1], "when": "spec != 'off'"}}
    if spec:
        parameters["spec"] = {"type": "categorical", "choices": spec}
    return SearchSpace.model_validate(
        {
            "apiVersion": "autotuner/v1",
            "kind": "SearchSpace",
            "metadata": {"name": "s"},
            "engine": "sglang",
            "parameters": parameters,
            **more,
        }
    )


def test_a_drafter_that_fits() -> None:
    checks = check_drafter(DrafterFacts(**DRAFTER), MODEL, space())
    assert [check.status for check in checks] == ["pass"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mask_token_id": 163840}, "mask token 163840 is outside the model's vocabulary of 163840"),
        ({"target_layer_ids": (1, 61, 70)}, "reads layers 61, 70, but the model has 61"),
        ({"target_layers": 36}, "made for a model of 36 layers"),
        ({"hidden_size": 4096}, "hidden size is 4096, the model's is 7168"),
    ],
)
def test_a_drafter_of_another_model(change: dict[str, Any], says: str) -> None:
    checks = check_drafter(DrafterFacts(**{**DRAFTER, **change}), MODEL, space())
    assert [check.status for check in checks] == ["fail"]
    assert says in checks[0].detail
    assert checks[0].hint


def test_all_problems_at_once() -> None:
    drafter = DrafterFacts(**{**DRAFTER, "mask_token_id": 999999, "target_layers": 36, "hidden_size": 1})
    assert [check.status for check in check_drafter(drafter, MODEL, space(block=(4, 16)))] == ["fail", "fail", "fail", "warning"]


def test_a_block_beyond_what_was_trained_is_a_warning() -> None:
    checks = check_drafter(DrafterFacts(**DRAFTER), MODEL, space(block=(4, 16)))
    assert [(check.name, check.status) for check in checks] == [("drafter-block", "warning")]
    assert "block 16" in checks[0].detail
    assert "block 8" in checks[0].detail


def test_what_is_not_known_is_not_judged() -> None:
    checks = check_drafter(DrafterFacts(path="/d"), ModelFacts(path="/m"), space(block=(4, 64)))
    assert [check.status for check in checks] == ["pass"]


def test_a_space_that_drafts_needs_a_drafter() -> None:
    (check,) = check_drafter(None, MODEL, space(spec=("off", "dflash", "ddtree")))
    assert check.status == "fail"
    assert "dflash, ddtree" in check.detail
    fixed = space(spec=(), fixed={"spec": "ddtree"})
    assert check_drafter(None, MODEL, fixed)[0].status == "fail"


def test_a_space_without_speculation_asks_for_none() -> None:
    assert check_drafter(None, MODEL, space(spec=("off", "ngram"))) == ()
