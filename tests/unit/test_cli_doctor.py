"""What ``doctor`` says about a host that was looked over, and about the folder for records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotuner.cli.doctor import Examination, as_json_text, as_text, check_state_dir
from autotuner.model.facts import EngineBuild, Gpu, HostFacts, ModelFacts, Weights
from autotuner.model.host import Host
from autotuner.model.machine import Affinity, Disk, GpuProcess, GpuState, Machine, Memory, Processors, Toolkit
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


MACHINE = Machine(
    user="root",
    kernel="6.8.0",
    os="Ubuntu 24.04.3 LTS",
    virtualization="none",
    systemd=255,
    booted_by_systemd=True,
    cgroups=2,
    processors=Processors(count=208, model="Xeon 8480C", sockets=2, numa_nodes=2),
    governors={"performance": 208},
    memory=Memory(total=2015.6, available=1900.0, swap=8.0, swap_used=0.5),
    disks={"state": Disk(path="/var/lib/autotuner", kind="ext4", size_gib=500, free_gib=64.4, mount="/")},
    limits={"nofile": (1024, 524288), "memlock": (8 << 20, None)},
    driver_cuda=(13, 0),
    toolkit=Toolkit(version=(12, 8), where="/usr/local/cuda"),
    gpus=tuple(GpuState(index=index, bus=f"0000:0{index}:00.0", sm_mhz=345, sm_max_mhz=1980, temperature_c=31) for index in range(2)),
    clock_reasons={0: ("idle",)},
    links={(0, 1): "NV18", (1, 0): "NV18"},
    affinities={0: Affinity(cpus="0-51", numa="0"), 1: Affinity(cpus="52-103", numa="1")},
    processes=(GpuProcess(pid=7, name="python3", memory_mib=812, gpu="GPU-1"),),
    process_units={7: "sglang.service"},
)


def test_the_machine_is_one_row_a_subject() -> None:
    text = as_text(Examination(host=host(), facts=FACTS, checks=(), machine=MACHINE))

    rows = dict(line.strip().split(None, 1) for line in text.splitlines() if line.startswith("  "))
    assert rows["system"] == "Ubuntu 24.04.3 LTS, kernel 6.8.0, systemd 255, cgroup v2, user root"
    assert rows["processors"] == "Xeon 8480C, 208 in 2 sockets, 2 NUMA nodes, governor performance"
    assert rows["memory"] == "1900 of 2016 GiB available, 0.5 of 8 GiB swap used"
    assert rows["limits"] == "open files 1024 (at most 524288), locked memory 8192 KiB (at most unlimited)"
    assert rows["CUDA"] == "driver runs CUDA up to 13.0, toolkit 12.8 at /usr/local/cuda"
    assert rows["links"] == "NV18 × 1; NUMA 0: GPU 0; NUMA 1: GPU 1"
    assert "0: 345/1980 MHz 31 °C (idle); 1: 345/1980 MHz 31 °C" in text


def test_a_machine_is_told_even_where_the_facts_are_not_complete() -> None:
    text = as_text(Examination(host=host(), facts=None, checks=CHECKS, machine=MACHINE))

    assert "kernel 6.8.0" in text
    assert "fingerprint" not in text


def test_json_tells_the_machine_with_each_gpu_in_one_place() -> None:
    told = json.loads(as_json_text(Examination(host=host(), facts=FACTS, checks=(), machine=MACHINE)))["machine"]

    assert told["links"] == {"0-1": "NV18"}
    assert told["processes"] == [{"pid": 7, "name": "python3", "memory_mib": 812, "gpu": "GPU-1", "unit": "sglang.service"}]
    first, second = told["gpus"]
    assert (first["name"], first["bus"], first["clock_reasons"], first["numa"]) == ("H200", "0000:00:00.0", ["idle"], "0")
    assert (second["clock_reasons"], second["cpus"]) == ([], "52-103")
    assert told["limits"]["memlock"] == [8 << 20, None]


def test_weights_are_told_by_type() -> None:
    weights = Weights(files=2, bytes=6, elements={"F8_E4M3": 1_500_000_000, "BF16": 500_000_000})
    facts = replace(FACTS, model=replace(FACTS.model, weights=weights))

    assert "(Qwen3ForCausalLM, 2.00 G elements in 2 files: F8_E4M3 75%, BF16 25%)" in as_text(examination(facts=facts))
    told = json.loads(as_json_text(examination(facts=facts)))["model"]
    assert told["elements"] == {"F8_E4M3": 1_500_000_000, "BF16": 500_000_000}
    assert (told["files"], told["bytes"], told["problems"]) == (2, 6, [])


def test_the_fingerprint_is_blind_to_the_state_of_the_machine() -> None:
    assert replace(FACTS, machine=MACHINE, cpus=1, disk_free_gib=0.1).fingerprint == FACTS.fingerprint


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
