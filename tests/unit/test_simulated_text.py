"""Text, facts and the engine around the simulated server."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.documents import load_host, load_space
from autotuner.engines.registry import engine_for
from autotuner.engines.simulated import tokens
from autotuner.engines.simulated.completions import UnusableRequestError, parse_ask
from autotuner.engines.simulated.engine import SimulatedEngine
from autotuner.engines.simulated.facts import simulated_facts
from autotuner.engines.simulated.profile import load_profile
from autotuner.engines.simulated.setting import parse_setting
from autotuner.errors import InfeasibleConfig, UsageError
from autotuner.loadgen.prompts import PromptSource
from autotuner.model.configuration import Configuration
from autotuner.model.host import Simulate, SimulatedFault, SimulatedGpu

PROFILE = load_profile("ct200")
SETTING = parse_setting(
    json.dumps(
        {
            "profile": "ct200",
            "gpu": {"count": 8, "memory_gib": 32},
            "answers": [
                {"asked": "capital of France", "answer": "Lyon", "launch": "candidate-1"},
                {"asked": "capital of France", "answer": "Paris, of course."},
                {"asked": "of France", "answer": "Nobody knows."},
            ],
        }
    )
)
KINDS = ("code", "explanation", "arithmetic", "poem", "json", "prose", "rag")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("context", [60, 1024])
@pytest.mark.parametrize("held", ["searched", "held out"])
def test_prompts_are_recognised(kind: str, context: int, held: str) -> None:
    source = PromptSource(domains=(kind,), holdout=held == "held out")
    seen = [tokens.domain_of(source.prompt(context, index).text) for index in range(12)]
    assert seen.count(kind) >= 10


@given(st.text(max_size=400), st.text(max_size=400))
def test_tokens_are_counted_the_same_every_time_and_grow_with_the_text(one: str, other: str) -> None:
    assert tokens.count(one) == tokens.count(one) >= 1
    assert tokens.count(one) <= tokens.count(one + other) <= tokens.count(one) + tokens.count(other)


@given(st.integers(0, 2**32), st.integers(0, 300), st.integers(0, 300), st.integers(0, 300))
def test_an_answer_is_the_same_however_it_is_cut(key: int, one: int, two: int, three: int) -> None:
    first, middle, last = sorted((one, two, three))
    assert tokens.words(key, first, middle) + tokens.words(key, middle, last) == tokens.words(key, first, last)
    assert len(tokens.words(key, first, last).split()) == last - first


def test_answers_have_lengths_of_their_kind() -> None:
    def mean(kind: str) -> float:
        lengths = [tokens.answer_tokens(PROFILE, f"prompt {index}", domain=kind, seed=1) for index in range(300)]
        return sum(lengths) / len(lengths)

    assert mean("arithmetic") == pytest.approx(36, rel=0.15)
    assert mean("explanation") == pytest.approx(600, rel=0.15)
    assert tokens.answer_tokens(PROFILE, "a", domain="code", seed=1) == tokens.answer_tokens(PROFILE, "a", domain="code", seed=1)


def test_the_prefix_cache_holds_what_two_prompts_share_and_nothing_else() -> None:
    cache, shared = tokens.PrefixCache(), "once upon a time " * 100
    assert cache.use(f"{shared} A") == 0
    assert cache.use(f"{shared} B") == pytest.approx(len(shared) / 4, abs=64)
    assert cache.use(f"[nonce] {shared}") == 0
    cache.flush()
    assert cache.use(f"{shared} A") == 0


def ask(**body: object):
    return parse_ask(json.dumps(body).encode(), chat="messages" in body, setting=SETTING, context_length=1000, served="m")


def test_a_request_says_how_long_its_answer_may_be() -> None:
    hello = [{"role": "user", "content": "What is 2+2?"}]
    assert ask(messages=hello, max_tokens=400).finish_reason == "stop"
    assert (ask(messages=hello, max_tokens=5).answer_tokens, ask(messages=hello, max_tokens=5).finish_reason) == (5, "length")
    forced = ask(messages=hello, max_completion_tokens=400, ignore_eos=True)
    assert (forced.answer_tokens, forced.finish_reason) == (400, "length")
    assert ask(prompt="x" * 40).answer_tokens <= 16
    assert ask(prompt=[1, 2, 3], max_tokens=1).prompt_tokens == 3
    parts = [{"role": "user", "content": [{"type": "text", "text": "What is 2+2?"}]}]
    assert ask(messages=parts).prompt_tokens == ask(messages=hello).prompt_tokens == 3 + tokens.MESSAGE_TOKENS


def test_certain_prompts_get_the_answer_of_the_script() -> None:
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    whole = ask(messages=asked)

    assert whole.words(0, whole.answer_tokens) == "Paris, of course.", "the first that fits, and none of another launch"
    assert whole.words(0, 2) + whole.words(2, whole.answer_tokens) == "Paris, of course."
    assert (whole.answer_tokens, whole.finish_reason) == (tokens.count("Paris, of course."), "stop")
    cut = ask(messages=asked, max_tokens=1, ignore_eos=True)
    assert (cut.words(0, cut.answer_tokens), cut.finish_reason) == ("Pari", "length")
    assert ask(prompt="The king of France").scripted == "Nobody knows."
    assert ask(prompt="The king of Spain").scripted is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not JSON"),
        (b"[]", "must be objects"),
        (b'{"messages": [], "stream_options": 3}', "must be objects"),
        (b'{"messages": []}', "at least one message"),
        (b'{"messages": ["x"]}', "at least one message"),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}', "max_tokens must be at least 1, got 0"),
        (b'{"messages": [{"role": "user", "content": "x"}], "n": 2}', "n=1"),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 2000}', "maximum context length of 1000 tokens"),
        (b'{"messages": [{"role": "user", "content": "' + b"x" * 4000 + b'"}]}', "longer than the model's context length (1000 tokens)"),
    ],
)
def test_what_the_engine_refuses_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(UnusableRequestError) as refused:
        parse_ask(body, chat=True, setting=SETTING, context_length=1000, served="m")
    assert words in str(refused.value)


def simulated(name: str = "simulated-ct200", **changes: object):
    host = load_host(name)
    return host.model_copy(update={"simulate": host.simulate.model_copy(update=changes)}) if changes else host


@pytest.mark.parametrize(("name", "link"), [("simulated-ct200", "pcie"), ("simulated-b300", "nvlink")])
def test_facts_of_the_shipped_hosts(name: str, link: str) -> None:
    host = load_host(name)
    engine = engine_for(host)
    assert isinstance(engine, SimulatedEngine)
    facts = simulated_facts(host, engine.probe(None, host))
    names = facts.names()
    assert facts.simulated
    assert facts.fingerprint.simulated
    assert (facts.link, names["gpus"], names["heads"], names["drafter_block"], names["has_drafter"]) == (link, 8, 64, 8, True)
    assert facts.context_served == host.model.context_length
    assert facts.model.weights_gib == pytest.approx(590e9 / 2**30, rel=0.001)
    assert facts.drafter.target_layer_ids == (1, 12, 24, 35, 47, 58)
    assert facts.drafter.mask_token_id == 163838


def test_a_profile_that_is_not_there_or_of_other_hardware_is_named() -> None:
    engine = SimulatedEngine()
    with pytest.raises(UsageError) as unknown:
        engine.probe(None, simulated(profile="ct20"))
    assert "ct20 is not known" in unknown.value.message
    assert unknown.value.hint == "did you mean 'ct200'?"
    host = simulated()
    other = host.simulate.gpu.model_copy(update={"link": "nvlink"})
    with pytest.raises(UsageError, match=r"simulate\.gpu\.link is nvlink, but profile ct200 was calibrated on pcie"):
        engine.probe(None, simulated(gpu=other))
    with pytest.raises(UsageError, match="no simulate"):
        engine.probe(None, host.model_copy(update={"simulate": None}))


def test_a_launch_carries_the_setting_and_the_concepts() -> None:
    host = simulated(faults=(SimulatedFault(kind="die", after_requests=3, launch="candidate"),))
    engine = engine_for(host)
    facts = simulated_facts(host, engine.probe(None, host))
    values = {"tp": 8, "pp": 1, "ep": 8, "spec": "ddtree", "block": 8, "budget": 8, "topk": 4, "window": 2048, "graphs": False}
    config = Configuration.of({**values, "mem_fraction": 0.84, "max_running": 128, "chunked_prefill": 8192})
    spec = engine.launch(config, space=load_space("sglang-kimi-k26"), host=host, facts=facts, name="candidate-17")
    assert spec.argv[:4] == (sys.executable, "-m", "autotuner.engines.simulated", "--simulate")
    setting = parse_setting(spec.argv[4], launch=spec.name)
    assert (setting.launch, setting.profile.name, setting.gpus) == ("candidate-17", "ct200", 8)
    assert [fault.kind for fault in setting.faults] == ["die"]
    other = engine.launch(config, space=load_space("sglang-kimi-k26"), host=host, facts=facts, name="candidate-18")
    assert (other.argv, other.env) == (spec.argv, spec.env), "a name is no part of what is recommended"
    assert "--enable-metrics" in spec.argv
    again = engine.read_argv(spec.argv, host=host)
    assert dict(again) == dict(config)
    assert again.extra_args == ()


def test_the_build_has_the_trees_and_refuses_what_it_lacks() -> None:
    host = simulated()
    engine = engine_for(host)
    build = engine.probe(None, host)
    assert "--speculative-ddtree-budget" in build.flags
    assert build.flags["--kv-cache-dtype"] == ("auto", "fp8_e5m2", "fp8_e4m3", "bf16", "bfloat16")
    facts = simulated_facts(host, build)
    with pytest.raises(InfeasibleConfig):
        engine.launch(Configuration.of({"kv_dtype": "fp4"}), space=None, host=host, facts=facts, name="candidate-1")


def test_faults_stand_in_a_host_document() -> None:
    gpu = SimulatedGpu(name="x", memory_gib=96.0, sm=120, link="pcie")
    simulate = Simulate(profile="ct200", gpu=gpu, faults=(SimulatedFault(kind="slow-start", seconds=3.0),))
    dumped = simulate.model_dump(mode="json")
    assert Simulate.model_validate_json(json.dumps(dumped)) == simulate
    assert parse_setting(json.dumps(dumped)).faults[0].seconds == 3
