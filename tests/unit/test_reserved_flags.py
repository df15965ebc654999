"""What people write as flags may not override the tuner or a concept, and must be known to the build."""

from __future__ import annotations

import dataclasses

import pytest
import yaml

from autotuner.discover.flags import check_flags
from autotuner.documents import parse_document
from autotuner.engines.sglang import SglangEngine, reserved
from autotuner.errors import InfeasibleConfig, InvalidDocument
from autotuner.model.configuration import Configuration
from autotuner.model.facts import EngineBuild
from autotuner.model.host import EngineInstall
from tests import builders

KNOWN = ("--model-path", "--host", "--port", "--mem-fraction-static", "--max-running-requests", "--stream-interval", *reserved.MEASURING)
BUILD = EngineBuild(engine="sglang", version="0.5.17", digest="d", flags=dict.fromkeys(KNOWN, ()) | {"--sampling-backend": ("pytorch",)})


def document(**changes: object) -> str:
    return yaml.safe_dump(builders.space(**changes).model_dump(mode="json", by_alias=True, exclude_defaults=True))


@pytest.mark.parametrize(
    ("name", "value", "says", "hint"),
    [
        ("port", 80, "--port is set by the tuner, from endpoint.port of the host", "write endpoint.port"),
        ("--host", "::1", "endpoint.address", "endpoint.address"),
        ("model", "/m", "model.path", "model.path"),
        ("--served-model-name", "x", "model.served_name", "model.served_name"),
        ("context-length", 4096, "model.context_length", "model.context_length"),
        ("speculative-draft-model", "/d", "model.drafter", "model.drafter"),
        ("enable-metrics", True, "set by the tuner on every launch", "remove it"),
        ("enable-cache-report", False, "set by the tuner on every launch", "remove it"),
        ("max-running-requests", 5, "--max-running-requests is what the concept max_running stands for", "write max_running under fixed:"),
        ("tp", 2, "concept tp", "tp"),
        ("--tensor-parallel-size=2", True, "concept tp", "tp"),
        ("mem-frac", 0.5, "concept mem_fraction", "mem_fraction"),
        ("speculative-ddtree-budget", 8, "concept budget", "budget"),
        ("disable-decode-cuda-graph", True, "concept graphs", "graphs"),
        ("log-level", "--port=80", "--port is set by the tuner", "endpoint.port"),
        ("stream-interval 4", True, "is not one flag", "behind the colon"),
    ],
)
def test_raw_overrides_nothing(name: str, value: object, says: str, hint: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        parse_document(document(raw={name: value}))
    (problem,) = caught.value.problems
    assert says in problem.message
    assert hint in (problem.hint or "")
    assert problem.line > 1


def test_what_no_concept_stands_for_may_stand_under_raw() -> None:
    plain = {"parameters": {"tp": {"type": "int", "low": 1, "high": 8}}, "constraints": (), "baseline": {}, "seeds": ()}
    raw = {"stream-interval": 4, "trust-remote-code": True, "cuda-graph-config": "x"}
    assert parse_document(document(raw={"stream-interval": 4}))
    assert parse_document(yaml.safe_dump({**yaml.safe_load(document()), **plain, "constraints": [], "seeds": [], "raw": raw}))


@pytest.mark.parametrize("word", ["--port", "--port=80", "--model", "--served-model-name", "--speculative-draft-model-path"])
def test_the_hosts_own_arguments_do_not_set_what_its_other_keys_say(word: str) -> None:
    host = builders.host(engine=EngineInstall(name="sglang", args=("--attention-backend", "triton", word)))
    with pytest.raises(InvalidDocument) as caught:
        parse_document(yaml.safe_dump(host.model_dump(mode="json", by_alias=True, exclude_defaults=True)))
    (problem,) = caught.value.problems
    assert word in problem.message


def test_every_wrong_flag_is_found_before_a_launch() -> None:
    host = builders.host(engine=EngineInstall(name="sglang", args=("--stream-intervall", "4", "--prt", "80")))
    raw = {"mem-fraction-statc": 0.8, "sampling-backend": "pytorc", "max-running": 5}
    found = check_flags(host, BUILD, builders.space(raw=raw))
    assert {(check.name, check.status) for check in found} == {("flags", "fail")}
    details = [check.detail for check in found]
    assert details[0].startswith("raw of search space one-gpu: --max-running-requests is what the concept max_running stands for")
    assert "has no flag --stream-intervall (engine.args of host lab), did you mean --stream-interval?" in details[1]
    assert "has no flag --prt (engine.args of host lab), did you mean --port?" in details[2]
    assert "has no flag --mem-fraction-statc (raw of search space one-gpu), did you mean --mem-fraction-static?" in details[3]
    assert "does not take 'pytorc' (raw of search space one-gpu), did you mean pytorch?" in details[4]
    assert len(details) == 5
    assert all(check.hint for check in found)


def test_right_flags_pass_and_nothing_is_said_where_the_build_is_not_known() -> None:
    found = check_flags(builders.host(), BUILD, builders.space(raw={"stream-interval": 4}))
    assert [check.status for check in found] == ["pass"]
    assert check_flags(builders.host(), dataclasses.replace(BUILD, flags={}), builders.space(raw={"nope": 1})) == ()


def test_a_dialect_that_is_not_there_is_found_before_a_launch() -> None:
    (check,) = check_flags(builders.host(), BUILD, builders.space(dialect="klingon"))
    assert (check.status, check.detail) == ("fail", "no dialect is called 'klingon'")


def test_the_cause_of_a_refused_configuration_names_the_near_miss() -> None:
    config = Configuration.of({}, ("--mem-fraction-statc", "0.8"))
    with pytest.raises(InfeasibleConfig, match="did you mean --mem-fraction-static"):
        SglangEngine().launch(config, space=None, host=builders.host(), facts=builders.facts(build=BUILD), name="x")
