from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from autotuner.engines.base import Counters, Gauges
from autotuner.engines.exporters import exporter_of
from autotuner.engines.vllm import metrics

DATA = Path(__file__).parents[1] / "data"


def page(name: str) -> str:
    return (DATA / "vllm" / name).read_text()


def test_counters_and_gauges_of_a_page_with_speculation() -> None:
    assert metrics.counters(page("metrics_spec.prom")) == Counters(
        generation_tokens=752,
        decoded_tokens=752,
        verify_steps=300,
        drafted_tokens=1134,
        accepted_tokens=444,
        retractions=0,
        cached_tokens=96,
    )
    assert metrics.gauges(page("metrics_spec.prom")) == Gauges(running=6, queued=2, kv_usage=0.4508602)


def test_a_page_of_a_real_server_after_ngram_speculation() -> None:
    real = gzip.decompress((DATA / "vllm" / "metrics_0.32.0_ngram.prom.gz").read_bytes()).decode()
    assert metrics.counters(real) == Counters(
        generation_tokens=9437,
        decoded_tokens=9437,
        verify_steps=929,
        drafted_tokens=3699,
        accepted_tokens=1922,
        retractions=0,
        cached_tokens=0,
    )
    assert metrics.gauges(real) == Gauges(running=0, queued=0, kv_usage=0)


def test_engines_behind_one_page_are_added_and_the_fullest_cache_counts() -> None:
    found = metrics.counters(page("metrics_spec_dp2.prom"))
    assert (found.generation_tokens, found.verify_steps, found.accepted_tokens, found.retractions) == (752 + 753, 600, 888, 3)
    assert metrics.gauges(page("metrics_spec_dp2.prom")) == Gauges(running=6 + 7, queued=4, kv_usage=0.4508602)


def test_names_of_older_versions_are_read_where_newer_are_missing() -> None:
    old = 'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\nvllm:gpu_prefix_cache_hits_total{model_name="m"} 7\n'
    assert metrics.gauges(old).kv_usage == 0.5
    assert metrics.counters(old).cached_tokens == 7
    both = old + 'vllm:kv_cache_usage_perc{model_name="m"} 0\nvllm:prefix_cache_hits_total{model_name="m"} 0\n'
    assert metrics.gauges(both).kv_usage == 0
    assert metrics.counters(both).cached_tokens == 0


def test_without_speculation_there_are_no_steps() -> None:
    plain = "\n".join(line for line in page("metrics_spec.prom").splitlines() if "spec_decode" not in line)
    assert metrics.counters(plain).verify_steps is None
    assert metrics.counters(plain).generation_tokens == 752


def test_a_foreign_page_is_read_by_the_engine_that_wrote_it() -> None:
    found = exporter_of(page("metrics_spec.prom"))
    assert found is not None
    assert found.engine == "vllm"
    assert found.counters(page("metrics_spec.prom")).generation_tokens == 752
    sglang = exporter_of(gzip.decompress((DATA / "sglang" / "metrics_ar.prom.gz").read_bytes()).decode())
    assert sglang is not None
    assert sglang.engine == "sglang"


@pytest.mark.parametrize("text", ["", "<html>404</html>", "# HELP vllm:x y\nprocess_cpu_seconds_total 3\n", "my_vllm:x 3"])
def test_a_page_of_nobody_known_is_nobodys(text: str) -> None:
    assert exporter_of(text) is None
