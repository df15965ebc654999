"""What ``doctor`` says about a host that was looked over, and about the folder for records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotuner.cli.doctor import Examination, as_json_text, as_text, check_state_dir
from autotuner.model.facts import EngineBuild, Gpu, HostFacts, ModelFacts
from autotuner.model.host import Host
from autotuner.model.recommendation import Check

GPUS = tuple(Gpu(index=index, name="H200", memory_gib=140.4, sm=90) for index in range(2))
FACTS = HostFacts(
    gpus=GPUS,
    driver="580.159.03",
    link="nvlink",
    cpus=16,
    memory_gib=128,
    disk_free_gib=64,
    model=ModelFacts(path="/models/m", architecture="Qwen3ForCausalLM", digest="sha256:1"),
    drafter=None,
    build=EngineBuild(engine="sglang", version="0.5.17", digest="sha256:2", flags={"--tp-size": ()}),
)
CHECKS = (
    Check(name="port", status="fail", detail="port 30000 is held by nginx (pid 7)", hint="stop it, or set endpoint.port"),
    Check(name="disk", status="pass", detail="64 GiB free", hint="never shown"),
    Check(name="drafter", status="warning", detail="block 16 is searched, trained at 8", hint="narrow the space"),
)


def host(*, simulated: bool = False) -> Host:
    simulate = {"profile": "ct200", "gpu": {"name": "RTX", "memory_gib": 96.0, "sm": 120, "link": "pcie"}}
    return Host.model_validate(
        {
            "apiVersion": "autotuner/v1",
            "kind": "Host",
            "metadata": {"name": "lab"},
            "transport": {"type": "local"},
            "engine": {"name": "sglang"},
            "model": {"path": "/models/m"},
        }
        | ({"simulate": simulate} if simulated else {})
    )


def examination(*checks: Check, facts: HostFacts | None = FACTS, simulated: bool = False) -> Examination:
    return Examination(host=host(simulated=simulated), facts=facts, checks=checks)


def test_all_problems_are_told_at_once_with_hints_and_the_worst_last() -> None:
    lines = as_text(examination(*CHECKS)).splitlines()

    told = lines[lines.index("") + 1 :]
    plain = [line.replace("\x1b[32m", "").replace("\x1b[33m", "").replace("\x1b[31m", "").replace("\x1b[0m", "") for line in told]
    assert plain == [
        "ok      disk: 64 GiB free",
        "warning drafter: block 16 is searched, trained at 8",
        "        hint: narrow the space",
        "FAIL    port: port 30000 is held by nginx (pid 7)",
        "        hint: stop it, or set endpoint.port",
        "",
        "lab cannot be tuned: 1 of 3 checks failed, 1 warned",
    ]


def test_the_facts_are_those_that_a_person_compares() -> None:
    text = as_text(examination(*CHECKS[1:]))

    assert text.startswith("lab\n")
    assert "2 × H200, 140 GiB each, nvlink, driver 580.159.03" in text
    assert "sglang 0.5.17, 1 flags" in text
    assert "/models/m (Qwen3ForCausalLM)" in text
    assert FACTS.fingerprint.digest in text
    assert text.endswith("lab can be tuned: 2 checks, 1 warned")


def test_json_holds_facts_checks_and_the_verdict() -> None:
    told = json.loads(as_json_text(examination(*CHECKS)))

    assert told["healthy"] is False
    assert told["simulated"] is False
    assert told["facts"]["gpus"] == 2
    assert told["fingerprint"]["digest"] == FACTS.fingerprint.digest
    assert [check["status"] for check in told["checks"]] == ["fail", "pass", "warning"]


def test_a_host_out_of_reach_is_told_without_facts() -> None:
    found = examination(CHECKS[0], facts=None)

    assert "fingerprint" not in as_text(found)
    assert json.loads(as_json_text(found))["facts"] is None


def test_a_simulated_host_is_marked() -> None:
    found = examination(CHECKS[1], simulated=True)

    assert as_text(found).startswith("lab (simulated)\n")
    assert json.loads(as_json_text(found))["simulated"] is True


@pytest.mark.parametrize(("free", "status"), [(0.99, "fail"), (1.0, "pass")])
def test_records_need_room(tmp_path: Path, free: float, status: str) -> None:
    check = check_state_dir(tmp_path / "not" / "yet", free_gib=lambda _path: free)

    assert check.status == status
    assert not (tmp_path / "not").exists()


def test_a_file_in_the_place_of_the_folder_fails(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")

    check = check_state_dir(tmp_path / "state" / "deeper")

    assert check.status == "fail"
    assert "is not a folder" in check.detail
    assert check.hint is not None
    assert "--state-dir" in check.hint


def test_a_folder_that_cannot_be_written_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda _path, _mode: False)  # root may write everywhere

    check = check_state_dir(tmp_path)

    assert check.status == "fail"
    assert "cannot be written" in check.detail
