"""Shapes of the pure models of speed and acceptance, apart from the numbers that they were fitted to."""

from __future__ import annotations

import statistics
import tomllib
from dataclasses import replace
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.engines.simulated.acceptance import acceptance_length
from autotuner.engines.simulated.performance import draft_ms, noise, prefill_ms, step_ms
from autotuner.engines.simulated.profile import load_profile, parse_profile, profile_names
from autotuner.engines.simulated.serving import Serving
from tests.simulated_speed import decode_tok_s, served_tok_s, ttft_ms

PROFILES = [load_profile(name) for name in profile_names()]
profiles = st.sampled_from(PROFILES)
servings = st.builds(
    Serving,
    ep=st.sampled_from([1, 2, 4, 8]),
    graphs=st.booleans(),
    spec=st.sampled_from(["off", "dflash", "ddtree"]),
    block=st.integers(2, 32),
    budget=st.integers(1, 64),
    topk=st.integers(1, 16),
    window=st.sampled_from([None, 512, 2048]),
)


@given(profiles, servings, st.integers(1, 512), st.floats(1, 100_000))
def test_steps_take_longer_with_more_requests_and_more_context(profile, serving, batch, context) -> None:
    now = step_ms(profile, serving, batch=batch, context=context)
    assert 0 < now <= step_ms(profile, serving, batch=batch + 1, context=context)
    assert now <= step_ms(profile, serving, batch=batch, context=context * 1.5)


@given(profiles, servings, st.integers(1, 256))
def test_graphs_never_slow_a_step_down(profile, serving, batch) -> None:
    eager, graphs = replace(serving, graphs=False), replace(serving, graphs=True)
    assert step_ms(profile, graphs, batch=batch, context=60) <= step_ms(profile, eager, batch=batch, context=60)


@given(profiles, servings, st.floats(1, 100_000))
def test_acceptance_lies_between_one_and_the_draft(profile, serving, context) -> None:
    accepted = acceptance_length(profile, serving, context=context, domain="explanation")
    drafted = min(serving.block - 1, serving.budget) if serving.spec == "ddtree" else serving.block - 1
    assert 1 <= accepted <= 1 + max(0, drafted) * 1.1
    assert (accepted == 1) == (not serving.speculative)


@given(profiles, st.integers(1, 63), st.integers(1, 15))
def test_larger_and_wider_trees_accept_no_less(profile, budget, topk) -> None:
    tree = Serving(spec="ddtree", budget=budget, topk=topk)
    now = acceptance_length(profile, tree, context=500)
    assert now <= acceptance_length(profile, replace(tree, budget=budget + 1), context=500) + 1e-9
    assert now <= acceptance_length(profile, replace(tree, topk=topk + 1), context=500) + 1e-9


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_acceptance_of_a_chain_peaks_at_the_trained_block(profile) -> None:
    at = {block: acceptance_length(profile, Serving(spec="dflash", block=block), context=60) for block in range(2, 17)}
    assert at[4] < at[6] < at[8]
    assert at[16] < 1.15 * at[8]
    assert decode_tok_s(profile, Serving(spec="dflash", block=16), batch=1, context=60) < decode_tok_s(
        profile, Serving(spec="dflash", block=8), batch=1, context=60
    )


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_context_costs_acceptance_and_an_apt_window_gives_some_back(profile) -> None:
    def at(context: int, window: int | None) -> float:
        return acceptance_length(profile, Serving(spec="ddtree", window=window), context=context)

    assert at(60, None) > at(1024, None) > at(4096, None) > at(16_384, None) > 1
    assert at(60, 512) == at(60, None)
    assert at(16_384, 1024) > at(16_384, 64)
    assert at(16_384, 1024) > at(16_384, 8192) > at(16_384, None)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_kinds_of_prompt_differ_as_the_five_did(profile) -> None:
    speed = {
        kind: decode_tok_s(profile, Serving(spec="dflash"), batch=1, context=60, domain=kind)
        for kind in ("explanation", "code", "poem", "json")
    }
    assert speed["explanation"] > speed["code"] > speed["poem"] > speed["json"]
    plain = {kind: decode_tok_s(profile, Serving(), batch=1, context=60, domain=kind) for kind in speed}
    assert len(set(plain.values())) == 1


def test_running_requests_cap_throughput_and_prefills_cost_some() -> None:
    profile = load_profile("b300")
    free, capped = Serving(max_running=256), Serving(max_running=48)
    assert decode_tok_s(profile, capped, batch=128, context=60) == decode_tok_s(profile, free, batch=48, context=60)
    assert served_tok_s(profile, free, concurrency=64, prompt=60, answer=512) < decode_tok_s(profile, free, batch=64, context=316)
    assert served_tok_s(profile, free, concurrency=64, prompt=4096, answer=512) < served_tok_s(
        profile, free, concurrency=64, prompt=60, answer=512
    )


def test_first_tokens_take_longer_after_long_prompts_and_in_many_chunks() -> None:
    profile, serving = load_profile("ct200"), Serving(chunked_prefill=8192)
    assert ttft_ms(profile, serving, prompt=60) < ttft_ms(profile, serving, prompt=4096)
    assert prefill_ms(profile, replace(serving, chunked_prefill=2048), tokens=8192) > prefill_ms(profile, serving, tokens=8192)
    assert prefill_ms(profile, replace(serving, chunked_prefill=-1), tokens=8192) == prefill_ms(profile, serving, tokens=8192)


def test_a_batch_above_the_largest_graph_runs_without_one() -> None:
    profile = load_profile("ct200")
    small = Serving(graph_max_batch=8)
    assert step_ms(profile, small, batch=8, context=60) == step_ms(profile, Serving(), batch=8, context=60)
    assert step_ms(profile, small, batch=9, context=60) == step_ms(profile, Serving(graphs=False), batch=9, context=60)


def test_drafts_cost_nothing_without_a_drafter_and_less_with_a_window() -> None:
    profile = load_profile("ct200")
    assert draft_ms(profile, Serving(), batch=8, context=4096) == 0
    tree = Serving(spec="ddtree")
    assert draft_ms(profile, replace(tree, window=512), batch=1, context=4096) < draft_ms(profile, tree, batch=1, context=4096)


def test_noise_is_repeatable_and_as_wide_as_asked() -> None:
    drawn = [noise(7, "step", index, spread=0.05) for index in range(2000)]
    assert drawn == [noise(7, "step", index, spread=0.05) for index in range(2000)]
    assert statistics.fmean(drawn) == pytest.approx(1, abs=0.01)
    assert statistics.stdev(drawn) == pytest.approx(0.05, rel=0.1)
    assert noise(7, "step", 1, spread=0.05) != noise(8, "step", 1, spread=0.05) != noise(8, "launch", 1, spread=0.05)
    assert noise(7, "step", 1, spread=0.0) == 1


def test_a_profile_lacking_or_misspelling_a_constant_is_refused() -> None:
    text = resources.files("autotuner.engines.simulated").joinpath("profiles/ct200.toml").read_text()
    table = tomllib.loads(text)
    del table["eager"]
    with pytest.raises(ValueError, match="lacks eager"):
        parse_profile(table)
    with pytest.raises(ValueError, match=r"\[step\].*fixed_sm"):
        parse_profile(tomllib.loads(text.replace("fixed_ms = 8.65", "fixed_sm = 8.65")))
    with pytest.raises(KeyError):
        load_profile("h200")
