"""Refusals, memory, start-up logs: from a command line to what the engine would print, and what the engine's own reader makes of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.engines.sglang import SglangEngine
from autotuner.engines.simulated.crash import SIGQUIT, refusal, scheduler_exception
from autotuner.engines.simulated.flags import build_parser
from autotuner.engines.simulated.memory import default_mem_fraction, kv_bytes_per_token, plan_memory, weights_gib
from autotuner.engines.simulated.profile import load_profile
from autotuner.engines.simulated.resolve import Resolved, resolve
from autotuner.engines.simulated.serving import Serving
from autotuner.engines.simulated.setting import Setting, parse_setting
from autotuner.engines.simulated.startup import RANK, Beat, Ending, captured_batches, startup
from autotuner.model.outcome import Consequence, Stage

CT200, B300 = load_profile("ct200"), load_profile("b300")
DFLASH = "--speculative-algorithm DFLASH --speculative-draft-model-path d"
DDTREE = "--speculative-algorithm DDTREE --speculative-draft-model-path d"


def setting(profile: str = "ct200", **more: object) -> Setting:
    hardware = {"ct200": {"memory_gib": 96.0, "sm": 120, "link": "pcie"}, "b300": {"memory_gib": 275.0, "sm": 103, "link": "nvlink"}}
    gpu = {"name": "simulated", "count": 8, **hardware[profile]}
    return parse_setting(json.dumps({"profile": profile, "gpu": gpu, **more}), launch="candidate-1")


def resolved(line: str, profile: str = "ct200") -> Resolved:
    args = build_parser().parse_args(["--model-path", "m", *("--tp-size 8" if "--tp-size" not in line else "").split(), *line.split()])
    return resolve(args, setting(profile))


def log_of(line: str, profile: str = "ct200") -> str:
    """What a launch with these arguments prints up to the HTTP server or its end."""
    found = resolved(line, profile)
    if found.rejection and found.rejection.stage == "resolve":
        return refusal(found.rejection)
    printed = []
    for beat in startup(found, setting(profile)):
        if isinstance(beat, Ending):
            printed += [f"[2026-11-29 12:00:00 {RANK}] {scheduler_exception(beat.stage, beat.message, beat.source)}", SIGQUIT]
        else:
            printed += [f"[2026-11-29 12:00:00{' ' + beat.rank if beat.rank else ''}] {text}" for text in beat.lines]
    return "\n".join(printed)


REFUSED = {
    "--pp-size 2 --tp-size 4 " + DFLASH: "Currently DFLASH speculative decoding only supports pp_size == 1.",
    "--speculative-algorithm DDTREE": "DDTREE speculative decoding requires setting --speculative-draft-model-path.",
    "--speculative-algorithm TREE --speculative-draft-model-path d": "Unknown speculative algorithm name: TREE",
    f"{DFLASH} --speculative-dflash-block-size 8 --speculative-num-draft-tokens 16": "are set but they differ. For DFLASH they must match.",
    f"{DFLASH} --speculative-dflash-block-size 0": "DFLASH requires --speculative-dflash-block-size to be positive, got 0.",
    f"{DFLASH} --speculative-draft-window-size 4": "(block_size). window_size=4, block_size=8.",
    f"{DFLASH} --speculative-draft-window-size -1": "--speculative-draft-window-size must be positive, got -1.",
    f"{DDTREE} --speculative-dflash-block-size 16 --speculative-draft-window-size 12": "window_size=12, block_size=16.",
    f"{DDTREE} --page-size 64": "DDTREE currently supports only page_size == 1. Got page_size=64.",
    f"{DDTREE} --speculative-ddtree-budget 0": "--speculative-ddtree-budget must be positive, got 0.",
    "--page-size 64 --chunked-prefill-size 1000": "AssertionError: chunked_prefill_size must be divisible by page_size",
    "--context-length 300000": "User-specified context_length (300000) is greater than the derived context_length (262144)",
    "--ep-size 3": "assert self.tp_size % self.ep_size == 0",
    "--mem-fraction-static 1.2": "mem_fraction_static must be between 0 and 1, got 1.2.",
}


@pytest.mark.parametrize(("line", "words"), REFUSED.items(), ids=list(REFUSED))
def test_refused_at_argument_resolution(line: str, words: str) -> None:
    log = log_of(line)
    assert words in log
    failure = SglangEngine().classify(log, exit_code=1, stage=Stage.PARSE)
    assert failure.consequence is Consequence.INFEASIBLE


FAILING = {
    "--tp-size 16": (Stage.DIST_INIT, "invalid device ordinal"),
    "--tp-size 3": (Stage.LOAD, "assert self.total_num_heads % tp_size == 0"),
    "--tp-size 4": (Stage.LOAD, "CUDA out of memory"),
    "--mem-fraction-static 0.7": (Stage.KV_SIZING, "Raise --mem-fraction-static above 0.75"),
    "--mem-fraction-static 0.9 --max-running-requests 256 --speculative-ddtree-budget 32 " + DDTREE: (
        Stage.GRAPH_CAPTURE,
        "Capture cuda graph failed: CUDA out of memory",
    ),
}


@pytest.mark.parametrize(("line", "stage", "words"), [(line, *rest) for line, rest in FAILING.items()], ids=list(FAILING))
def test_fails_while_starting(line: str, stage: Stage, words: str) -> None:
    log = log_of(line)
    assert words in log
    failure = SglangEngine().classify(log, exit_code=-9, stage=Stage.START)
    assert (failure.stage, failure.consequence) == (stage, Consequence.INFEASIBLE)
    assert "Uvicorn" not in log


def test_the_least_fraction_that_is_printed_is_the_least_that_starts() -> None:
    failure = SglangEngine().classify(log_of("--mem-fraction-static 0.7"), exit_code=-9, stage=Stage.START)
    least = float(failure.facts["min_mem_fraction"])
    assert resolved(f"--mem-fraction-static {least - 0.002}").memory.shortage is not None
    assert resolved(f"--mem-fraction-static {least + 0.002}").memory.shortage is None


def test_fractions_fail_at_both_ends_and_graphs_need_room_that_eager_does_not() -> None:
    deep = f"{DDTREE} --speculative-dflash-block-size 16 --speculative-ddtree-budget 32 --max-running-requests 128"
    stages = {}
    for fraction in (0.72, 0.84, 0.95):
        shortage = resolved(f"{deep} --mem-fraction-static {fraction}").memory.shortage
        stages[fraction] = shortage.stage if shortage else None
    assert stages == {0.72: "kv-sizing", 0.84: None, 0.95: "graph-capture"}
    assert resolved(f"{deep} --mem-fraction-static 0.95 --disable-cuda-graph").memory.shortage is None


def test_a_pool_of_a_few_tokens_is_not_enough() -> None:
    assert "Not enough memory. Please try to increase --mem-fraction-static" in log_of("--mem-fraction-static 0.84 --max-total-tokens 100")


@given(st.floats(0.76, 0.95), st.integers(1, 64))
def test_more_of_the_memory_is_more_cache_and_less_room(fraction: float, budget: int) -> None:
    serving = Serving(ep=8, spec="ddtree", budget=budget, max_running=48, graph_max_batch=48)
    less = plan_memory(CT200, serving, total_gib=96, mem_fraction=fraction)
    more = plan_memory(CT200, serving, total_gib=96, mem_fraction=fraction + 0.01)
    assert less.kv_tokens <= more.kv_tokens
    assert less.free_gib >= more.free_gib
    wider = plan_memory(CT200, Serving(ep=8, spec="ddtree", budget=budget + 1, max_running=48), total_gib=96, mem_fraction=fraction)
    assert wider.graph_gib > less.graph_gib


def test_sizes_are_those_of_the_model() -> None:
    assert weights_gib(CT200, Serving()) == 72
    assert weights_gib(CT200, Serving(tp=1, pp=8)) == 72
    assert weights_gib(CT200, Serving(tp=4)) > 136
    assert kv_bytes_per_token(CT200, Serving()) == (512 + 64) * 61 * 2
    assert kv_bytes_per_token(CT200, Serving(), kv_bytes=1) == (512 + 64) * 61
    assert kv_bytes_per_token(CT200, Serving(spec="dflash")) - kv_bytes_per_token(CT200, Serving()) == 1 * 256 * 6 * 2
    assert plan_memory(CT200, Serving(spec="dflash"), total_gib=96).drafter_gib == pytest.approx(6.5e9 / 2**30 / 8, rel=0.01)
    assert plan_memory(B300, Serving(tp=4), total_gib=275).shortage is None


def test_the_fraction_that_the_engine_chooses_starts_on_both_hosts() -> None:
    for profile, total in ((CT200, 96.0), (B300, 275.0)):
        assert 0.8 < default_mem_fraction(total_gib=total, serving=Serving()) < 0.95
        assert plan_memory(profile, Serving(), total_gib=total).shortage is None


def test_running_requests_are_48_with_speculation_and_what_the_cache_holds_otherwise() -> None:
    engine = SglangEngine()
    silent = resolved(DFLASH)
    assert silent.serving.max_running == 48
    assert any("max_running" in notice for notice in engine.launch_facts(log_of(DFLASH), {}).warnings)
    assert resolved(f"{DFLASH} --max-running-requests 128").serving.max_running == 128
    assert resolved(f"{DFLASH} --max-running-requests 128").notices == ()
    short = "--mem-fraction-static 0.78 --max-running-requests 256"
    held = resolved(short).serving.max_running
    assert held < 256
    assert f"max_running_requests was reduced from the requested 256 to {held} (per dp worker)" in log_of(short)


def test_defaults_are_the_drafters_block_and_a_tree_no_deeper() -> None:
    serving = resolved(DDTREE).serving
    assert (serving.block, serving.budget, serving.topk, serving.window) == (8, 7, 4, None)
    assert serving.verify_tokens == 8
    assert resolved(f"{DFLASH} --speculative-num-draft-tokens 6").serving.block == 6
    other = resolved(f"{DFLASH} --speculative-dflash-block-size 12").notices
    assert any("block size mismatch: using speculative_num_draft_tokens=12 but draft config block_size=8" in line for line in other)


@pytest.mark.parametrize(
    ("profile", "line", "crashes"),
    [
        ("ct200", DFLASH, "NoneType"),
        ("ct200", f"{DFLASH} --disable-cuda-graph", None),
        ("ct200", f"{DDTREE} --speculative-ddtree-budget 32", None),
        ("b300", DFLASH, None),
        ("b300", f"{DDTREE} --speculative-ddtree-budget 8", None),
        ("b300", f"{DDTREE} --speculative-ddtree-budget 9", "illegal memory access"),
        ("b300", f"{DDTREE} --speculative-ddtree-budget 9 --disable-cuda-graph", None),
    ],
)
def test_graph_bugs_of_the_two_builds(profile: str, line: str, crashes: str | None) -> None:
    crash = resolved(line, profile).crash
    assert (crash is None) == (crashes is None)
    if crash is not None:
        assert crashes in crash.message
        log = f"[2026-11-29 12:00:00 TP0] {scheduler_exception('serve', crash.message, crash.source)}\n{SIGQUIT}"
        failure = SglangEngine().classify(log, exit_code=-9, stage=Stage.WARMUP)
        assert failure.kind == {"ct200": "dflash-graph-none", "b300": "illegal-mem"}[profile]
        assert failure.consequence is Consequence.INFEASIBLE


@pytest.mark.parametrize("line", ["", DFLASH, f"{DDTREE} --disable-cuda-graph", "--tp-size 1 --pp-size 8"])
def test_a_launch_passes_all_stages_in_order_and_says_what_it_holds(line: str) -> None:
    engine, log = SglangEngine(), log_of(line)
    stages = [stage for text in log.splitlines() if (stage := engine.stage_of(text))]
    order = list(dict.fromkeys(stages))
    wanted = [Stage.RESOLVE, Stage.DIST_INIT, Stage.LOAD, Stage.KV_SIZING]
    assert order == (wanted if "--disable" in line else [*wanted, Stage.GRAPH_CAPTURE])
    facts, memory = engine.launch_facts(log, {}), resolved(line).memory
    assert facts.weights_gib == pytest.approx(memory.weights_gib + memory.drafter_gib, abs=0.02)
    assert facts.kv_tokens == memory.kv_tokens
    assert facts.max_running == resolved(line).serving.max_running
    assert facts.free_gib == pytest.approx(memory.free_gib, abs=0.01)


def test_the_launch_is_spread_over_its_beats_and_leaves_some_for_warming_up() -> None:
    beats = [beat for beat in startup(resolved(DFLASH), setting()) if isinstance(beat, Beat)]
    assert 0.5 < sum(beat.share for beat in beats) <= 0.9 + 1e-9
    assert all("api_key" not in line for beat in beats for line in beat.lines)


def test_graphs_are_captured_up_to_the_largest_batch_that_can_run() -> None:
    assert captured_batches(Serving(max_running=48, graph_max_batch=512, spec="dflash"))[-1] == 48
    assert captured_batches(Serving(max_running=4096, graph_max_batch=24)) == (1, 2, 4, 8, 12, 16, 24)
    assert captured_batches(Serving(max_running=1)) == (1,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "an object is expected"),
        ("{", "line 1"),
        ('{"profile": "h200"}', "ct200"),
        ('{"profile": "ct200"}', "gpu"),
        ('{"profile": "ct200", "gpu": {"count": 8, "memory_gib": 96}, "faults": [{"kind": "die", "x": 1}]}', "x"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_setting(text)


def test_faults_belong_to_launches_and_requests() -> None:
    fault = {"kind": "http-500", "after_requests": 2, "requests": 3}
    (here,) = setting(faults=[fault]).faults
    assert [here.strikes(request) for request in range(6)] == [False, False, True, True, True, False]
    assert setting(faults=[{**fault, "launch": "candidate-2"}]).faults == ()
    assert len(setting(faults=[{**fault, "launch": "candidate-1"}]).faults) == 1
    (always,) = setting(faults=[{**fault, "requests": None}]).faults
    assert always.strikes(1000)


def test_unknown_flags_and_values_are_refused_by_the_parser(capsys: pytest.CaptureFixture[str]) -> None:
    for line, words in (
        ("--speculative-ddtree-bugdet 8", "unrecognized arguments: --speculative-ddtree-bugdet 8"),
        ("--kv-cache-dtype fp4", "argument --kv-cache-dtype: invalid choice: 'fp4'"),
        ("--tp-size eight", "argument --tensor-parallel-size/--tp-size: invalid int value: 'eight'"),
        ("--cuda-graph 8", "ambiguous option: --cuda-graph could match"),
    ):
        with pytest.raises(SystemExit) as ended:
            build_parser().parse_args(["--model-path", "m", *line.split()])
        said = capsys.readouterr().err
        assert ended.value.code == 2
        assert f"sglang serve: error: {words}" in said
        assert SglangEngine().classify(said, exit_code=2, stage=Stage.START).consequence is Consequence.INFEASIBLE
