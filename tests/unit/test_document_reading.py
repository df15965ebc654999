from __future__ import annotations

import copy
import json
import zoneinfo
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotuner.documents import check_file, load_host, load_recommendation, load_space, load_workload, parse_document, schema
from autotuner.documents.finding import shipped
from autotuner.errors import InvalidDocument, UsageError
from autotuner.model.host import ProductionProcess

SHIPPED = sorted(path for kind in ("hosts", "search_spaces", "workloads") for path in shipped(kind).glob("*.yaml"))
HOST = """\
apiVersion: autotuner/v1
kind: Host
metadata: {name: example}
transport: {type: local}
engine: {name: sglang, env: {MODE: on, WHEN: 12:30}, args: [--a, "1"]}
model: {path: /models/m}
service: {production: {argv: [serve]}}
limits: {ready_timeout_s: 1e2}
"""


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_documents_have_no_problems(path: Path) -> None:
    assert check_file(path) == ()
    assert parse_document(path.read_text()).name == path.stem
    assert path.read_text().startswith("# yaml-language-server: $schema=../schemas/")


def test_the_shipped_documents_are_there() -> None:
    assert {path.stem for path in SHIPPED} == {
        *("ct200", "b300", "simulated-ct200", "simulated-b300", "h200-lab"),
        *("sglang-kimi-k26", "sglang-dflash-1gpu", "sglang-no-speculation", "vllm", "chatbot"),
    }


def test_a_host_is_read_with_lists_as_tuples_and_words_as_text(tmp_path: Path) -> None:
    (tmp_path / "example.yaml").write_text(HOST)
    host = load_host(str(tmp_path / "example.yaml"))
    assert host.engine.env == {"MODE": "on", "WHEN": "12:30"}
    assert host.engine.args == ("--a", "1")
    assert host.limits.ready_timeout_s == 100.0
    assert host.service.production == ProductionProcess(argv=("serve",))


def test_a_space_keeps_truth_values_numbers_and_texts_apart() -> None:
    space = load_space("sglang-kimi-k26")
    assert [type(choice) for choice in space.parameters["graphs"].choices] == [bool, bool]
    assert space.parameters["window"].choices == ("none", 512, 1024, 2048, 4096)
    assert space.parameters["spec"].choices == ("off", "dflash", "ddtree")


def test_a_workload_is_found_by_name() -> None:
    assert load_workload("chatbot").cells[0].weight == 2


def test_the_wrong_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "example.yaml").write_text(HOST)
    with pytest.raises(InvalidDocument) as caught:
        load_space(str(tmp_path / "example.yaml"))
    (problem,) = caught.value.problems
    assert problem.message == "a SearchSpace is needed here, but this is a Host"
    assert (problem.line, problem.column) == (2, 7)
    assert caught.value.exit_code == 2


def test_warnings_do_not_keep_a_document_from_loading(tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(HOST.replace("[--a,", "[--api-key,"))
    assert [problem.severity for problem in check_file(path)] == ["warning"]
    assert load_host(str(path)).engine.args[0] == "--api-key"


def test_a_missing_recommendation_is_an_invalid_document(tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument, match="there is no such file"):
        load_recommendation(tmp_path / "latency.yaml")


def test_a_missing_host_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        load_host(str(tmp_path / "example.yaml"))


@pytest.mark.parametrize("kind", ["Host", "SearchSpace", "Workload", "Recommendation", "search_space", "host"])
def test_schemas_are_json_schemas_with_a_title(kind: str) -> None:
    found = schema(kind)
    assert found["$schema"].endswith("2020-12/schema")
    assert found["title"].startswith("autotuner ")
    assert {"apiVersion", "kind", "metadata"} <= set(found["required"])
    assert found["additionalProperties"] is False
    json.dumps(found)


def test_the_host_schema_speaks_of_keys_as_they_are_written() -> None:
    assert set(schema("Host")["$defs"]["Load"]["properties"]) == {"from"}


def test_an_unknown_kind_of_schema_has_a_hint() -> None:
    with pytest.raises(UsageError) as caught:
        schema("Hots")
    assert caught.value.hint == "did you mean 'Host'?"


_odd = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 99)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["off", "tp > ", "x", "", "/", "1"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "path", "unit", "tp", "require", "a"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def _places(value: object, path: tuple = ()) -> list[tuple]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in inner for place in _places(child, (*path, key)))]


def _mutated(document: dict, path: tuple, value: object) -> object:
    changed = copy.deepcopy(document)
    if not path:
        return value
    holder = changed
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    return changed


@pytest.mark.parametrize("shipped_file", SHIPPED, ids=lambda path: path.stem)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_change_of_a_document_is_accepted_or_explained(tmp_path: Path, shipped_file: Path, data: st.DataObject) -> None:
    document = json.loads(json.dumps(yaml.safe_load(shipped_file.read_text())))
    for _ in range(data.draw(st.integers(1, 3))):
        if isinstance(document, dict):
            document = _mutated(document, data.draw(st.sampled_from(_places(document))), data.draw(_odd))
    path = tmp_path / "changed.yaml"
    path.write_text(json.dumps(document))
    problems = check_file(path)
    assert all(problem.message and "Input should" not in problem.message for problem in problems)
    assert all(problem.hint for problem in problems)
    assert len({(problem.line, problem.column, problem.message) for problem in problems}) == len(problems)


def test_a_machine_without_time_zones_says_so_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(HOST + 'window: {start: "22:00", end: "07:00", timezone: Europe/Berlin}\n')
    zoneinfo.reset_tzpath(to=[])
    zoneinfo.ZoneInfo.clear_cache()
    try:
        problems = check_file(path)
    finally:
        zoneinfo.reset_tzpath()
    assert [(problem.severity, problem.hint) for problem in problems] in ([("warning", "install tzdata")], [])
    assert load_host(str(path)).window.timezone == "Europe/Berlin"


def test_a_document_in_a_text_raises_with_its_problems() -> None:
    with pytest.raises(InvalidDocument, match="<text>:1:1: error: the file is empty"):
        parse_document("")
