from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.engines.base import Counters, Gauges
from autotuner.engines.prometheus import parse_prometheus, total
from autotuner.engines.sglang import SglangEngine
from autotuner.model.configuration import Configuration

DATA = Path(__file__).parents[1] / "data" / "sglang"
ENGINE = SglangEngine()


def text(name: str) -> str:
    return gzip.decompress((DATA / f"{name}.gz").read_bytes()).decode()


def info(**changes: Any) -> dict[str, Any]:
    """A real answer, with fields of the answer and of its scheduler's state changed alike."""
    answer: dict[str, Any] = json.loads(text("server_info_ar.json"))
    answer.update(changes)
    answer["internal_states"][0].update(changes)
    return answer


def test_a_real_answer_in_concepts() -> None:
    assert ENGINE.effective(info()) == {
        "attention_backend": "triton",
        "chunked_prefill": 8192,
        "ep": 1,
        "graph_max_bs": 256,
        "graphs": True,
        "kv_dtype": "auto",
        "max_running": 4096,
        "mem_fraction": 0.3,
        "nodes": 1,
        "pp": 1,
        "prefix_caching": True,
        "spec": "off",
        "tp": 1,
    }


def test_speculation_is_read_back_as_it_was_resolved() -> None:
    found = ENGINE.effective(
        info(
            speculative_algorithm="DFLASH",
            speculative_num_draft_tokens=8,
            speculative_draft_window_size=512,
            effective_max_running_requests_per_dp=48,
        )
    )
    assert {name: found[name] for name in ("spec", "block", "window", "max_running")} == {
        "spec": "dflash",
        "block": 8,
        "window": 512,
        "max_running": 48,
    }
    assert "budget" not in found


def test_a_tree_has_a_budget_and_no_window_is_none() -> None:
    found = ENGINE.effective(
        info(speculative_algorithm="DDTREE", speculative_dflash_block_size=8, speculative_ddtree_budget=16, speculative_ddtree_topk=4)
    )
    assert (found["spec"], found["block"], found["budget"], found["topk"], found["window"]) == ("ddtree", 8, 16, 4, "none")


@pytest.mark.parametrize(
    ("changes", "graphs"),
    [
        ({"cuda_graph_config": {"decode": {"backend": "disabled", "max_bs": 256}}, "disable_cuda_graph": False}, False),
        ({"cuda_graph_config": None, "disable_cuda_graph": True}, False),
        ({"cuda_graph_config": None, "disable_decode_cuda_graph": True}, False),
        ({"cuda_graph_config": None, "cuda_graph_max_bs": 64}, True),
    ],
)
def test_graphs_are_read_from_whatever_the_build_says(changes: dict[str, Any], *, graphs: bool) -> None:
    found = ENGINE.effective(info(**changes))
    assert found["graphs"] is graphs
    assert ("graph_max_bs" in found) is graphs


def test_replicas_of_attention_share_the_running_requests() -> None:
    old = info(tp_size=8, dp_size=4, enable_dp_attention=True, effective_max_running_requests_per_dp=32)
    new = info(tp_size=8, attn_dp_size=4, effective_max_running_requests_per_dp=32)
    for answer in (old, new):
        found = ENGINE.effective(answer)
        assert (found["attn_dp"], found["max_running"]) == (4, 128)


def test_an_answer_that_says_little_yields_little() -> None:
    assert ENGINE.effective({}) == {"spec": "off"}
    assert ENGINE.effective({"internal_states": [], "tp_size": 2, "disable_cuda_graph": True}) == {"spec": "off", "tp": 2, "graphs": False}


def test_rewrites_name_what_runs_instead() -> None:
    asked = Configuration.of({"max_running": 128, "graphs": True, "kv_dtype": "auto", "mem_fraction": 0.3, "window": 512, "block": 8})
    runs = {"max_running": 48, "graphs": False, "kv_dtype": "bf16", "mem_fraction": 0.30000001, "block": 8}
    assert ENGINE.rewrites(asked, runs) == ("graphs: on was asked for, off runs", "max_running: 128 was asked for, 48 runs")


def test_launch_facts_from_the_log_alone() -> None:
    facts = ENGINE.launch_facts(text("dflash_b16.log"), {})
    assert (facts.weights_gib, facts.kv_tokens, facts.graph_gib, facts.free_gib) == (0.31, 250000, 9.53, 100.92)
    assert (facts.max_running, facts.context_len) == (48, 8192)
    assert facts.warnings == (
        "max_running was not asked for, and speculation set it to 48",
        "block 16 runs on a drafter that was trained at block 8",
    )


def test_the_engines_own_answer_comes_before_its_log() -> None:
    facts = ENGINE.launch_facts(text("ar.log"), info())
    assert (facts.kv_tokens, facts.graph_gib, facts.free_gib, facts.max_running) == (1930503, 0.621, 101.65, 4096)
    alone = ENGINE.launch_facts("", info())
    assert (alone.weights_gib, alone.free_gib, alone.context_len) == (0.266, 96.424, 8192)


def test_every_rank_logs_the_same_and_is_counted_once() -> None:
    lines = []
    for line in text("dflash_b8.log").splitlines():
        ranks = (0, 1, 2, 3) if line.startswith("[2026") else (None,)
        lines += [line if rank is None else line.replace("] ", f" DP0 TP{rank} EP{rank}] ", 1) for rank in ranks]
    facts = ENGINE.launch_facts("\n".join(lines), {})
    assert (facts.weights_gib, facts.graph_gib) == (0.31, 2.8)


def test_nothing_said_is_nothing_known() -> None:
    facts = ENGINE.launch_facts("", {})
    assert (facts.weights_gib, facts.kv_tokens, facts.graph_gib, facts.free_gib, facts.max_running, facts.context_len) == (None,) * 6


def test_counters_of_a_real_page() -> None:
    page = text("metrics_ar.prom")
    assert ENGINE.counters(page) == Counters(generation_tokens=2744017.0, decoded_tokens=2744018.0, cached_tokens=316321.0)
    assert ENGINE.gauges(page) == Gauges(running=0.0, queued=0.0, kv_usage=0.0)


def test_ranks_are_counted_once_and_replicas_all() -> None:
    name = "sglang:spec_verify_calls_total"
    page = "\n".join(
        [
            f"# TYPE {name} counter",
            *(f'{name}{{dp_rank="{rank // 2}",tp_rank="{rank}",pp_rank="0",pid="{rank}"}} {10 + rank}' for rank in range(4)),
            f'{name}{{dp_rank="1",tp_rank="2",pp_rank="1"}} 99',
            f"{name}_created 1e9",
        ]
    )
    assert ENGINE.counters(page).verify_steps == 10 + 12
    assert ENGINE.counters("sglang:num_retracted_requests_total 3").retractions == 3
    assert ENGINE.counters('sglang:num_retracted_reqs{tp_rank="0"} 3').retractions is None


@pytest.mark.parametrize("line", ["", "# HELP x y", "x{", "x NaN", "x abc", "{} 1", "x{a=b} ", "<html>502</html>"])
def test_what_is_no_number_is_left_out(line: str) -> None:
    assert list(parse_prometheus(line)) == []
    assert ENGINE.counters(line) == Counters()


def test_labels_may_hold_anything() -> None:
    series = next(parse_prometheus(r'x:y_total{path="a} \"b\", c=\"",le="+Inf"} 2.5e3 1700000000000'))
    assert (series.name, series.labels["le"], series.value) == ("x:y_total", "+Inf", 2500.0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1e12)), min_size=1))
def test_the_sum_over_labels_is_the_total(series: list[tuple[str, float]]) -> None:
    page = "\n".join(f'n{{k="{index}{key}"}} {value!r}' for index, (key, value) in enumerate(series))
    assert total(page, "n") == pytest.approx(sum(value for _, value in series))
