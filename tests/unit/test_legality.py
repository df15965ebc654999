from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.documents import load_space
from autotuner.model.configuration import Configuration
from autotuner.model.legality import active, canonical, contains, points, violations
from autotuner.model.space import Categorical, Constraint, Float, Int, SearchSpace

FACTS = {"gpus": 8, "heads": 64, "experts": 256, "has_drafter": True}


def _space(parameters: dict, **rest) -> SearchSpace:
    head = {"apiVersion": "autotuner/v1", "kind": "SearchSpace", "metadata": {"name": "x"}, "engine": "sglang"}
    return SearchSpace.model_validate({**head, "parameters": parameters, **rest})


SPACE = _space(
    {
        "window": {"type": "categorical", "choices": ("none", 512), "when": "block > 4"},
        "block": {"type": "int", "low": 4, "high": 16, "when": "spec != 'off'"},
        "spec": {"type": "categorical", "choices": ("off", "dflash")},
    },
    constraints=(Constraint(require="block <= limit_of_host", why="the host says so"), "window >= block"),
    fixed={"mem_fraction": 0.3},
)


def test_parameters_exist_in_the_order_of_their_conditions() -> None:
    assert active(SPACE, {"spec": "dflash", "block": 8, "window": 512}, {}) == ("spec", "block", "window")
    assert active(SPACE, {"spec": "dflash", "block": 4}, {}) == ("spec", "block")
    assert active(SPACE, {"spec": "off", "block": 8}, {}) == ("spec",)


def test_a_parameter_under_an_unknown_condition_does_not_exist() -> None:
    space = _space({"ep": {"type": "int", "low": 1, "high": 8, "when": "experts > 1"}})
    assert active(space, {"ep": 2}, {}) == ()
    assert active(space, {"ep": 2}, {"experts": None}) == ()
    assert active(space, {"ep": 2}, {"experts": 8}) == ("ep",)


def test_canonical_drops_what_is_inactive_and_adds_what_is_fixed() -> None:
    config = canonical(SPACE, {"spec": "off", "block": 8, "window": 512}, {}, ("--x",))
    assert dict(config) == {"spec": "off", "mem_fraction": 0.3}
    assert config.extra_args == ("--x",)


def test_canonical_keeps_what_a_live_service_runs() -> None:
    assert dict(canonical(SPACE, {"spec": "off", "attn_dp": 2, "mem_fraction": 0.9}, {})) == {
        "spec": "off",
        "attn_dp": 2,
        "mem_fraction": 0.9,
    }


def test_violations_name_value_limit_and_reason() -> None:
    config = Configuration.of({"spec": "dflash", "block": 32, "window": 512, "mem_fraction": 0.5})
    assert violations(SPACE, config, {"limit_of_host": 10}) == (
        "block is 32, outside of 4 … 16",
        "mem_fraction is 0.5, but the space fixes it at 0.3",
        "block <= limit_of_host does not hold with block=32, limit_of_host=10: the host says so",
    )


def test_what_cannot_be_decided_is_no_violation() -> None:
    assert violations(SPACE, Configuration.of({"spec": "dflash", "block": 8, "window": "none"}), {}) == ()
    assert violations(SPACE, Configuration.of({"spec": "off"}), {"limit_of_host": 1}) == ()


@pytest.mark.parametrize(
    ("values", "broken"),
    [
        ({"tp": 8, "pp": 1, "ep": 1}, ()),
        ({"tp": 8, "pp": 1, "ep": 4}, ()),
        ({"tp": 8, "pp": 1, "ep": 8}, ()),
        ({"tp": 1, "pp": 8, "spec": "off"}, ()),
        ({"tp": 8, "pp": 8}, ("tp * pp == gpus",)),
        ({"tp": 1, "pp": 8, "spec": "dflash"}, ("pp == 1 or spec == 'off'",)),
        ({"tp": 8, "pp": 1, "spec": "ddtree", "budget": 4, "topk": 8}, ("budget >= topk",)),
    ],
)
def test_the_parallelism_of_the_kimi_space(values: dict, broken: tuple[str, ...]) -> None:
    space = load_space("sglang-kimi-k26")
    found = violations(space, canonical(space, values, FACTS), FACTS)
    assert tuple(sentence.split(" does not hold")[0] for sentence in found) == broken


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        (Categorical(type="categorical", choices=(True, "x")), (True, "x")),
        (Int(type="int", low=4, high=13, step=4), (4, 8, 12)),
        (Float(type="float", low=0.76, high=0.84, step=0.02), (0.76, 0.78, 0.8, 0.82, 0.84)),
        (Float(type="float", low=0.5, high=0.5), (0.5,)),
    ],
)
def test_points_of_small_domains_are_all_of_them(parameter, expected: tuple) -> None:
    assert points(parameter) == expected


def test_points_of_large_domains_hold_both_ends() -> None:
    assert points(Int(type="int", low=1, high=10_000), limit=5) == (1, 2501, 5001, 7500, 10_000)
    assert points(Int(type="int", low=1, high=10_000, log=True), limit=5) == (1, 10, 100, 1000, 10_000)
    assert points(Float(type="float", low=0, high=1), limit=3) == (0, 0.5, 1)
    assert points(Float(type="float", low=0.01, high=1, log=True), limit=3) == pytest.approx((0.01, 0.1, 1))


def test_truth_values_are_no_numbers() -> None:
    assert not contains(Categorical(type="categorical", choices=(1,)), True)  # noqa: FBT003
    assert not contains(Int(type="int", low=0, high=1), True)  # noqa: FBT003
    assert not contains(Int(type="int", low=4, high=12, step=4), 6)
    assert not contains(Int(type="int", low=4, high=12), 6.5)
    assert contains(Float(type="float", low=0.76, high=0.92, step=0.02), 0.84)
    assert not contains(Float(type="float", low=0.76, high=0.92, step=0.02), 0.85)


_parameters = st.one_of(
    st.builds(
        lambda low, width, step: Int(type="int", low=low, high=low + width, step=step),
        st.integers(-9, 99),
        st.integers(0, 500),
        st.integers(1, 9),
    ),
    st.builds(lambda low, width: Int(type="int", low=low, high=low + width, log=True), st.integers(1, 99), st.integers(0, 5000)),
    st.builds(lambda low, width: Float(type="float", low=low, high=low + width), st.floats(-9, 9), st.floats(0, 9)),
    st.builds(
        lambda low, width, step: Float(type="float", low=low, high=low + width, step=step),
        st.floats(0, 1),
        st.floats(0.1, 2),
        st.sampled_from((0.01, 0.02, 0.5)),
    ),
)


@given(_parameters, st.integers(2, 70))
def test_every_point_lies_in_the_domain(parameter: Int | Float, limit: int) -> None:
    found = points(parameter, limit)
    assert 1 <= len(found) <= limit
    assert len(set(found)) == len(found)
    assert all(parameter.low <= value <= parameter.high for value in found)
    if parameter.step is None or isinstance(parameter, Int):
        assert all(contains(parameter, value) for value in found)


@given(st.fixed_dictionaries({}, optional={name: st.sampled_from(points(parameter)) for name, parameter in SPACE.parameters.items()}))
def test_canonical_is_idempotent_and_its_verdict_does_not_change(values: dict) -> None:
    once = canonical(SPACE, values, {"limit_of_host": 9})
    twice = canonical(SPACE, once, {"limit_of_host": 9})
    assert once == twice
    assert violations(SPACE, once, {"limit_of_host": 9}) == violations(SPACE, twice, {"limit_of_host": 9})
    assert set(active(SPACE, once, {})) >= set(once) & set(SPACE.parameters)
