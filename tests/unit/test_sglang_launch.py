from __future__ import annotations

import dataclasses
import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.engines.sglang import SglangEngine, dialect
from autotuner.engines.sglang.help import parse_help
from autotuner.errors import InfeasibleConfig, UsageError
from autotuner.model.configuration import Configuration
from autotuner.model.document import Scalar
from autotuner.model.facts import EngineBuild, HostFacts, ModelFacts
from autotuner.model.host import Host
from autotuner.model.outcome import Consequence, Stage
from autotuner.model.space import SearchSpace

ENGINE = SglangEngine()
PAGES = Path(__file__).parents[1] / "data" / "help"
VERSIONS = ("0.5.12", "0.5.15", "0.5.17", "0.5.20", "0.5.23")
FLAGS = {version: parse_help(gzip.decompress((PAGES / f"sglang-{version}.txt.gz").read_bytes()).decode()) for version in VERSIONS}
FLAGS["ddtree"] = {**FLAGS["0.5.12"], "--speculative-ddtree-budget": (), "--speculative-ddtree-topk": ()}


def host(*args: str, drafter: str | None = "/models/drafter", **model: Any) -> Host:
    return Host.model_validate(
        {
            "apiVersion": "autotuner/v1",
            "kind": "Host",
            "metadata": {"name": "b300"},
            "transport": {"type": "local"},
            "engine": {"name": "sglang", "python": "/venv/bin/python", "cwd": "/srv", "env": {"NCCL_ALGO": "Ring"}, "args": args},
            "model": {"path": "/models/k2", "drafter": drafter, **model},
            "secrets": {"HF_TOKEN": "env:HF_TOKEN"},
            "endpoint": {"address": "127.0.0.1", "port": 31000},
        }
    )


def facts(build: str = "0.5.17") -> HostFacts:
    return HostFacts(
        gpus=(),
        driver="580.1.2",
        link="nvlink",
        cpus=8,
        memory_gib=64,
        disk_free_gib=100,
        model=ModelFacts(path="/models/k2"),
        drafter=None,
        build=EngineBuild(engine="sglang", version=build, digest="d", flags=FLAGS[build]),
    )


def space(**spec: Any) -> SearchSpace:
    return SearchSpace.model_validate(
        {
            "apiVersion": "autotuner/v1",
            "kind": "SearchSpace",
            "metadata": {"name": "dflash"},
            "engine": "sglang",
            "parameters": {"tp": {"type": "int", "low": 1, "high": 8}},
            **spec,
        }
    )


def argv(
    values: Mapping[str, Scalar], *, build: str = "0.5.17", on: Host | None = None, extra: tuple[str, ...] = (), **more: Any
) -> list[str]:
    config = Configuration.of(values, extra)
    given_space = space(**more) if more else None
    return list(ENGINE.launch(config, space=given_space, host=on or host(), facts=facts(build), name="candidate-1").argv)


def refused(values: Mapping[str, Scalar], **more: Any) -> InfeasibleConfig:
    with pytest.raises(InfeasibleConfig) as caught:
        argv(values, **more)
    failure = caught.value.failure
    assert (failure.stage, failure.consequence) == (Stage.RENDER, Consequence.INFEASIBLE)
    return caught.value


def test_a_launch_carries_address_environment_folder_secrets_and_measuring_flags() -> None:
    spec = ENGINE.launch(
        Configuration.of({"tp": 8}), space=None, host=host(served_name="k2", context_length=8192), facts=facts(), name="candidate-7"
    )
    assert spec.argv == (
        *("/venv/bin/python", "-m", "sglang.launch_server", "--model-path", "/models/k2", "--host", "127.0.0.1", "--port", "31000"),
        *("--served-model-name", "k2", "--context-length", "8192", "--tp-size", "8", "--enable-metrics", "--enable-cache-report"),
    )
    assert (spec.name, spec.cwd, spec.env, spec.secrets) == ("candidate-7", "/srv", {"NCCL_ALGO": "Ring"}, {"HF_TOKEN": "env:HF_TOKEN"})


def test_ep4_is_tp8_ep4_and_the_order_is_that_of_the_dialect() -> None:
    words = argv({"mem_fraction": 0.85, "ep": 4, "tp": 8, "pp": 1})
    assert words[9:] == [
        *("--tp-size", "8", "--pp-size", "1", "--ep-size", "4", "--mem-fraction-static", "0.85"),
        *ENGINE.measuring_flags,
    ]


@pytest.mark.parametrize(
    ("build", "window", "graph_bs", "attn_dp"),
    [
        ("0.5.12", "--speculative-draft-window-size", "--cuda-graph-max-bs", ["--dp-size", "2", "--enable-dp-attention"]),
        ("0.5.17", "--speculative-draft-window-size", "--cuda-graph-max-bs-decode", ["--dp-size", "2", "--enable-dp-attention"]),
        ("0.5.23", "--speculative-draft-window-size", "--cuda-graph-max-bs-decode", ["--attn-dp-size", "2"]),
    ],
)
def test_every_build_is_spoken_to_in_its_own_words(build: str, window: str, graph_bs: str, attn_dp: list[str]) -> None:
    words = argv({"spec": "dflash", "block": 8, "window": 512, "graph_max_bs": 64, "attn_dp": 2}, build=build)
    text = " ".join(words)
    assert f"{window} 512" in text
    assert f"{graph_bs} 64" in text
    assert " ".join(attn_dp) in text
    assert "--speculative-algorithm DFLASH --speculative-draft-model-path /models/drafter --speculative-dflash-block-size 8" in text


def test_an_older_name_is_used_where_only_it_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = dict(FLAGS["0.5.17"])
    flags["--speculative-dflash-draft-window-size"] = flags.pop("--speculative-draft-window-size")
    monkeypatch.setitem(FLAGS, "older", flags)
    assert "--speculative-dflash-draft-window-size" in argv({"spec": "dflash", "window": 512}, build="older")
    del flags["--disable-cuda-graph"]
    assert "--cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled" in " ".join(argv({"graphs": False}, build="older"))


def test_trees_need_a_build_that_has_them() -> None:
    tree: dict[str, Scalar] = {"spec": "ddtree", "block": 8, "budget": 8, "topk": 4, "window": 2048}
    text = " ".join(argv(tree, build="ddtree"))
    assert "--speculative-algorithm DDTREE" in text
    assert text.count("--speculative-ddtree-budget 8 --speculative-ddtree-topk 4") == 1
    error = refused(tree)
    assert "sglang-ddtree" in (error.hint or "")
    assert "'ddtree'" in refused({"spec": "ddtree"}).message


def test_what_means_nothing_without_speculation_is_not_written() -> None:
    assert argv({"spec": "off", "block": 8, "window": 512, "graphs": True}) == argv({})


def test_no_window_graphs_on_and_no_speculation_are_written_as_nothing() -> None:
    assert "--speculative-draft-window-size" not in argv({"spec": "dflash", "window": "none"})
    assert argv({"graphs": False}) == [*argv({})[:-2], "--disable-cuda-graph", *ENGINE.measuring_flags]
    assert argv({"prefix_caching": True}) == argv({})
    assert "--disable-radix-cache" in argv({"prefix_caching": False})


def test_a_drafter_must_be_named() -> None:
    error = refused({"spec": "dflash", "block": 8}, on=host(drafter=None))
    assert error.failure.kind == "no-drafter"
    assert "model.drafter" in (error.hint or "")
    argv({"spec": "off"}, on=host(drafter=None))


@pytest.mark.parametrize(
    ("values", "more", "kind", "says", "hints"),
    [
        ({"max_batched_tokens": 8192}, {}, "no-word-for-concept", "max_batched_tokens", "raw:"),
        ({"kv_dtyp": "auto"}, {}, "no-word-for-concept", "kv_dtyp", "did you mean kv_dtype?"),
        ({"kv_dtype": "fp8_e4m"}, {}, "unknown-choice", "'fp8_e4m'", "did you mean fp8_e4m3?"),
        ({"attention_backend": "trtllm_mla2"}, {}, "unknown-choice", "--attention-backend", "trtllm_mla"),
        ({"block": "eight", "spec": "dflash"}, {}, "unknown-choice", "block", "a whole number"),
        ({"tp": True}, {}, "unknown-choice", "tp", "a whole number"),
        ({"spec": "medusa"}, {}, "unknown-choice", "'medusa'", "off, dflash"),
        (
            {},
            {"extra": ("--cuda-graph-max-bs", "8"), "build": "0.5.23"},
            "unknown-flag",
            "--cuda-graph-max-bs",
            "--cuda-graph-max-bs-decode",
        ),
        ({}, {"extra": ("--enforce-eager",)}, "unknown-flag", "--enforce-eager", "--disable-cuda-graph"),
        ({}, {"raw": {"--stream-intervall": 2}}, "unknown-flag", "raw of search space dflash", "did you mean --stream-interval"),
        ({}, {"raw": {"--sampling-backend": "nope"}}, "unknown-choice", "'nope'", "flashinfer"),
    ],
)
def test_refused_before_any_launch(values: Mapping[str, Scalar], more: Mapping[str, Any], kind: str, says: str, hints: str) -> None:
    error = refused(values, **more)
    assert error.failure.kind == kind
    assert says in error.message
    assert hints in (error.hint or "")


def test_a_wrong_flag_of_the_host_is_blamed_on_the_host() -> None:
    assert "engine.args of host b300" in refused({}, on=host("--no-such-flag")).message


def test_raw_flags_are_passed_on_and_the_live_services_own_win() -> None:
    raw = {"--stream-interval": 4, "trust-remote-code": True, "--enable-mixed-chunk": False}
    assert argv({}, raw=raw)[9:12] == ["--stream-interval", "4", "--trust-remote-code"]
    assert argv({}, raw=raw, extra=("--stream-interval=8",))[9:11] == ["--trust-remote-code", "--stream-interval=8"]


def test_what_is_searched_wins_over_the_hosts_own_arguments() -> None:
    words = argv({"mem_fraction": 0.9}, on=host("--mem-fraction-static", "0.3"))
    assert words.index("0.3") < words.index("0.9")
    assert argv({}, on=host("--enable-metrics")).count("--enable-metrics") == 1


def test_the_dialect_can_be_named_and_must_exist() -> None:
    assert "--tp-size" in argv({"tp": 2}, dialect="sglang")
    with pytest.raises(UsageError, match="no dialect") as caught:
        argv({"tp": 2}, dialect="klingon")
    assert "sglang-ddtree" in (caught.value.hint or "")


@pytest.mark.parametrize("name", dialect.names())
def test_dialects_stand_on_flags_that_builds_have(name: str) -> None:
    known = {flag for flags in FLAGS.values() for flag in flags} | {"--speculative-dflash-draft-window-size"}
    for word in dialect.load(name).words.values():
        assert word.forms or word.values, word.concept
        for form in [*word.forms, *(form for _, forms in word.values for form in forms)]:
            assert {group.flag for group in form} <= known, word.concept


# --- reading ---------------------------------------------------------------------------------------------------------------------


def read(*words: str, on: Host | None = None) -> tuple[dict[str, Scalar], tuple[str, ...]]:
    config = ENGINE.read_argv(words, host=on or host())
    return dict(config), config.extra_args


SERVER = ("/usr/bin/python3", "-m", "sglang.launch_server", "--model-path", "/models/k2")


def test_a_live_command_line_becomes_concepts_and_the_rest_stays_verbatim() -> None:
    values, rest = read(
        *SERVER,
        *("--host=0.0.0.0", "--port", "30000", "--tp", "8", "--ep=8", "--speculative-algorithm", "DDTREE", "--mem-fraction-static=0.82"),
        *("--speculative-draft-model-path", "/other/drafter", "--speculative-ddtree-budget", "8", "--speculative-ddtree-topk", "4"),
        *("--speculative-dflash-block-size", "8", "--speculative-dflash-draft-window-size", "2048", "--cuda-graph-bs", "1", "2", "4"),
        *("--trust-remote-code", "--tool-call-parser=kimi_k2", "--json-model-override-args", '{"a": -1}', "--chunked-prefill-size", "-1"),
        *("--enable-metrics", "--api-key", "hunter2"),
    )
    assert values == {
        "tp": 8,
        "ep": 8,
        "spec": "ddtree",
        "budget": 8,
        "topk": 4,
        "block": 8,
        "window": 2048,
        "mem_fraction": 0.82,
        "chunked_prefill": -1,
        "graphs": True,
    }
    assert rest == (
        *("--cuda-graph-bs", "1", "2", "4", "--trust-remote-code", "--tool-call-parser=kimi_k2"),
        *("--json-model-override-args", '{"a": -1}'),
    )


def test_silence_is_read_where_a_value_is_written_by_writing_nothing() -> None:
    assert read(*SERVER) == ({"spec": "off", "graphs": True}, ())
    assert read(*SERVER, "--speculative-algorithm", "dflash")[0] == {"spec": "dflash", "window": "none", "graphs": True}


@pytest.mark.parametrize(
    "flags", [("--cuda-graph-backend-decode", "breakable"), ("--disable-decode-cuda-graph",), ("--cuda-graph-config", "{}")]
)
def test_silence_says_nothing_where_another_flag_decides(flags: tuple[str, ...]) -> None:
    assert read(*SERVER, *flags) == ({"spec": "off"}, flags)


def test_an_algorithm_that_no_dialect_knows_is_not_read_as_off() -> None:
    assert read(*SERVER, "--speculative-algorithm", "UNO") == ({"graphs": True}, ("--speculative-algorithm", "UNO"))


def test_a_drafter_is_left_out_only_where_a_launch_brings_one() -> None:
    path = ("--speculative-draft-model-path", "/other")
    assert read(*SERVER, *path)[1] == ()
    assert read(*SERVER, "--speculative-algorithm", "EAGLE3", *path)[1] == ()
    assert read(*SERVER, "--speculative-algorithm", "NEXTN", *path)[1] == path
    assert read(*SERVER, *path, "--speculative-algorithm=UNO")[1] == (*path, "--speculative-algorithm=UNO")


def test_draft_tokens_are_the_block_of_dflash() -> None:
    values, _ = read(*SERVER, "--speculative-algorithm", "DFLASH", "--speculative-num-draft-tokens", "16")
    assert values["block"] == 16
    values, _ = read(*SERVER, "--speculative-algorithm", "EAGLE", "--speculative-num-draft-tokens", "16")
    assert values["draft_tokens"] == 16
    assert "block" not in values


def test_the_last_of_two_wins_and_values_that_do_not_fit_stay_verbatim() -> None:
    assert read(*SERVER, "--tp-size", "4", "--tp-size", "8")[0]["tp"] == 8
    values, rest = read(*SERVER, "--max-running-requests", "many")
    assert "max_running" not in values
    assert rest == ("--max-running-requests", "many")


@pytest.mark.parametrize(
    "words",
    [
        ("numactl", "--interleave=all", "/v/python", "-u", "-m", "sglang.launch_server", "--tp-size", "2"),
        ("/v/bin/sglang", "serve", "--tp-size", "2"),
        ("python", "/opt/sglang/python/sglang/launch_server.py", "--tp-size", "2"),
        ("sglang::server", "--tp-size", "2"),
    ],
)
def test_whatever_starts_the_server_is_left_out(words: tuple[str, ...]) -> None:
    assert read(*words) == ({"tp": 2, "spec": "off", "graphs": True}, ())


def test_the_hosts_own_arguments_are_left_out_once() -> None:
    own = host("--attention-backend", "triton", "--mem-fraction-static", "0.3", context_length=8192)
    line = (*SERVER, "--attention-backend", "triton", "--mem-fraction-static", "0.3", "--context-length", "8192")
    assert read(*line, on=own) == ({"spec": "off", "graphs": True}, ())
    assert read(*line, "--mem-fraction-static", "0.5", on=own)[0]["mem_fraction"] == 0.5
    assert read(*line)[1] == ("--context-length", "8192")


WHOLE = st.integers(1, 4096)
COMMON: dict[str, st.SearchStrategy[Scalar]] = {
    "tp": WHOLE,
    "pp": WHOLE,
    "ep": WHOLE,
    "nodes": WHOLE,
    "attn_dp": WHOLE,
    "graph_max_bs": WHOLE,
    "max_running": WHOLE,
    "mem_fraction": st.floats(0.01, 1.0, exclude_max=True),
    "chunked_prefill": st.sampled_from([-1, 2048, 8192]),
    "kv_dtype": st.sampled_from(["auto", "fp8_e5m2", "fp8_e4m3"]),
    "attention_backend": st.sampled_from(["triton", "flashinfer", "fa3"]),
    "prefix_caching": st.just(value=False),
}
BLOCKWISE: dict[str, st.SearchStrategy[Scalar]] = {"block": st.integers(2, 32)}
WINDOW: st.SearchStrategy[Scalar] = st.one_of(st.just("none"), WHOLE)
EXTRA = st.lists(
    st.sampled_from([("--trust-remote-code",), ("--stream-interval=4",), ("--log-requests-level", "2"), ("--numa-node", "0", "1")]),
    unique=True,
)


def configurations(build: str) -> st.SearchStrategy[dict[str, Scalar]]:
    must = {"graphs": st.booleans()}
    off = st.fixed_dictionaries({**must, "spec": st.just("off")}, optional=COMMON)
    dflash = st.fixed_dictionaries({**must, "spec": st.just("dflash"), "window": WINDOW}, optional={**COMMON, **BLOCKWISE})
    tree = {**COMMON, **BLOCKWISE, "topk": WHOLE}
    ddtree = st.fixed_dictionaries({**must, "spec": st.just("ddtree"), "window": WINDOW, "budget": WHOLE}, optional=tree)
    return st.one_of(off, dflash, ddtree) if build == "ddtree" else st.one_of(off, dflash)


@pytest.mark.parametrize("build", FLAGS)
@given(data=st.data())
def test_what_is_launched_is_read_back(build: str, data: st.DataObject) -> None:
    extra = tuple(word for words in data.draw(EXTRA) for word in words)
    config = Configuration.of(data.draw(configurations(build)), extra)
    own = data.draw(st.sampled_from([host(), host("--mem-fraction-static", "0.3", "--disable-overlap-schedule"), host(served_name="m")]))
    spec = ENGINE.launch(config, space=None, host=own, facts=facts(build), name="n")
    assert ENGINE.read_argv(spec.argv, host=own) == config


def test_a_subclass_with_another_command_reads_its_own_command_line() -> None:
    class Other(SglangEngine):
        modules = ("other.server",)

        def command(self, host: Host) -> tuple[str, ...]:
            return (host.engine.python, "-m", "other.server", "--profile", "{}")

    config = Configuration.of({"spec": "off", "graphs": True, "tp": 2})
    spec = Other().launch(config, space=None, host=host(), facts=facts(), name="n")
    assert spec.argv[:5] == ("/venv/bin/python", "-m", "other.server", "--profile", "{}")
    assert Other().read_argv(spec.argv, host=host()) == config
    assert Other().probe_command(host()) == (*spec.argv[:5], "--help")


def test_the_engine_keeps_nothing_between_launches() -> None:
    first = argv({"tp": 2})
    argv({"tp": 4, "spec": "dflash", "block": 8}, build="ddtree")
    assert argv({"tp": 2}) == first
    assert not dataclasses.is_dataclass(ENGINE)
    assert vars(ENGINE) == {}


def test_a_build_without_any_of_a_concepts_flags_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FLAGS, "bare", {flag: choices for flag, choices in FLAGS["0.5.17"].items() if "window" not in flag})
    error = refused({"spec": "dflash", "window": 512}, build="bare")
    assert error.failure.kind == "unknown-flag"
    assert "window: 512 needs --speculative-draft-window-size" in error.message
    assert error.failure.facts == {"flag": "--speculative-draft-window-size"}


def test_a_share_that_is_no_number_stays_verbatim() -> None:
    assert read(*SERVER, "--mem-fraction-static", "most")[1] == ("--mem-fraction-static", "most")
