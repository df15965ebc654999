"""Which contexts a night measures, and what is said when a person asks for some that the host does not serve."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotuner.errors import UsageError
from autotuner.loadgen.cells import CellPlan
from autotuner.tuner.night import NightPlan, _what_to_measure
from autotuner.tuner.tuner import Budget
from tests import builders as b

SERVED = b.facts().context_served


def plan(tmp_path, **changes):
    values = {
        "host": b.host(),
        "space": b.space(),
        "workloads": (),
        "contexts": (60, 4096),
        "concurrency": (1,),
        "output_tokens": 256,
        "cell_plan": CellPlan(),
        "budget": Budget(trials=1),
        "seconds": None,
        "state": tmp_path,
        "recommendations": tmp_path,
    }
    return NightPlan(**{**values, **changes})


def test_contexts_that_nobody_asked_for_are_left_out_where_they_do_not_fit(tmp_path):
    _, cells = _what_to_measure(plan(tmp_path, contexts=(60, SERVED)), b.facts())
    assert [cell.context for cell in cells] == [60]


def test_a_context_that_was_asked_for_and_does_not_fit_is_named_with_the_limit(tmp_path):
    asked = plan(tmp_path, contexts=(60, 99999999), contexts_asked=True)
    with pytest.raises(UsageError, match=f"--contexts 99999999 with --output-tokens 256 .* serves {SERVED} tokens") as caught:
        _what_to_measure(asked, b.facts())
    assert f"at most {SERVED - 256}," in caught.value.hint
    just = replace(asked, contexts=(60, SERVED - 256))
    assert {cell.context for cell in _what_to_measure(just, b.facts())[1]} == {60, SERVED - 256}


@pytest.mark.parametrize("contexts_asked", [True, False])
def test_an_answer_that_does_not_fit_is_blamed_on_the_answer(tmp_path, contexts_asked):
    asked = plan(tmp_path, output_tokens=999999999, contexts_asked=contexts_asked)
    with pytest.raises(UsageError, match=f"--output-tokens 999999999 does not fit: lab serves {SERVED} tokens"):
        _what_to_measure(asked, b.facts())
