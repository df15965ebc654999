from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from autotuner.documents.satisfiability import Search
from autotuner.model.expressions import Expression
from autotuner.model.legality import canonical, points, violations
from autotuner.model.space import SearchSpace

NAMES = ("tp", "pp", "block", "budget")


def _space(parameters: dict, constraints: tuple[str, ...] = (), fixed: dict | None = None) -> SearchSpace:
    head = {"apiVersion": "autotuner/v1", "kind": "SearchSpace", "metadata": {"name": "x"}, "engine": "sglang"}
    return SearchSpace.model_validate({**head, "parameters": parameters, "constraints": constraints, "fixed": fixed or {}})


def _search(space: SearchSpace) -> Search:
    return Search(space, [Expression.parse(item.require) for item in space.requirements()])


_operands = st.sampled_from([*NAMES, "gpus", "1", "3", "5"])
_comparisons = st.builds(
    lambda left, sign, right, compare, last: f"{left} {sign} {right} {compare} {last}",
    _operands,
    st.sampled_from(["+", "*", "%", "-"]),
    _operands,
    st.sampled_from(["==", "<", ">=", "!="]),
    _operands,
)
_domains = st.lists(st.integers(0, 6), min_size=1, max_size=3, unique=True)


@st.composite
def _spaces(draw: st.DrawFn) -> SearchSpace:
    parameters = {}
    for index, name in enumerate(NAMES):
        parameters[name] = {"type": "categorical", "choices": tuple(draw(_domains))}
        if index and draw(st.booleans()):
            parameters[name]["when"] = f"{NAMES[index - 1]} > {draw(st.integers(0, 3))}"
    return _space(parameters, tuple(draw(st.lists(_comparisons, max_size=3))))


def _legal_points(space: SearchSpace) -> list[dict]:
    """Every legal configuration, by trying all."""
    grids = [points(space.parameters[name]) for name in NAMES]
    configs = [canonical(space, dict(zip(NAMES, values, strict=True)), {}) for values in itertools.product(*grids)]
    return [dict(config) for config in configs if not violations(space, config, {})]


@settings(max_examples=300, deadline=None)
@given(_spaces())
def test_the_search_agrees_with_trying_every_configuration(space: SearchSpace) -> None:
    search, legal = _search(space), _legal_points(space)
    assert search.possible(range(len(space.constraints))) is bool(legal)
    assert bool(search.contradictions()) is not bool(legal)
    used = {(name, value) for config in legal for name, value in config.items()}
    assert all((dead.parameter, dead.choice) not in used for dead in search.dead_choices())


@settings(max_examples=100, deadline=None)
@given(_spaces())
def test_a_contradiction_needs_every_constraint_that_it_names(space: SearchSpace) -> None:
    search = _search(space)
    for found in search.contradictions():
        for left_out in found.constraints:
            assert search.possible([index for index in found.constraints if index != left_out]) is True


def test_unknown_facts_rule_nothing_out() -> None:
    space = _space({"tp": {"type": "int", "low": 1, "high": 8, "when": "nvlink"}}, ("tp * 2 == gpus", "tp > heads"))
    search = _search(space)
    assert search.contradictions() == ()
    assert search.can_be_active("tp")


def test_fixed_concepts_take_part() -> None:
    search = _search(_space({"tp": {"type": "int", "low": 1, "high": 8}}, ("ep <= 8", "ep == 3"), {"ep": 4}))
    assert [found.constraints for found in search.contradictions()] == [(1,)]


def test_a_condition_on_an_inactive_parameter_never_holds() -> None:
    space = _space(
        {
            "spec": {"type": "categorical", "choices": ("off",)},
            "block": {"type": "int", "low": 4, "high": 16, "when": "spec == 'dflash'"},
            "window": {"type": "int", "low": 1, "high": 9, "when": "block > 4"},
        }
    )
    search = _search(space)
    assert [name for name in space.parameters if search.can_be_active(name)] == ["spec"]


def test_hopeless_spaces_are_given_up_undecided() -> None:
    names = ("tp", "pp", "ep", "attn_dp", "nodes", "block", "budget", "topk")
    space = _space({name: {"type": "int", "low": 1, "high": 1000} for name in names}, (" + ".join(names) + " == 1 + 8000 - 0.5",))
    search = _search(space)
    assert search.contradictions() == ()
    assert search.possible([0]) is None


def test_numbers_of_the_constraints_are_tried_where_a_grid_would_miss_them() -> None:
    space = _space({"mem_fraction": {"type": "float", "low": 0.0, "high": 1.0}}, ("mem_fraction == 0.123",))
    assert _search(space).contradictions() == ()
    space = _space({"max_running": {"type": "int", "low": 1, "high": 100_000}}, ("max_running == 777", "max_running > 776"))
    assert _search(space).contradictions() == ()
