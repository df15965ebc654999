"""Discovery and preflight against this machine; the GPUs' driver, which is not here, answers from recorded output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotuner.deploy.gpu_memory import GpuMemory
from autotuner.discover import discover, examine
from autotuner.engines.sglang.engine import SglangEngine
from autotuner.errors import Refused, StopStudy, UsageError
from autotuner.model.facts import EngineBuild
from autotuner.model.host import Host
from autotuner.transports.base import Transport
from autotuner.transports.local import LocalTransport

DATA = Path(__file__).parents[2] / "data" / "discover"


class Engine(SglangEngine):
    """SGLang that is not installed here."""

    def probe(self, transport: Transport, host: Host) -> EngineBuild:
        return EngineBuild(engine="sglang", version="0.5.17", digest="d", flags={})


@pytest.fixture
def here(stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A host document of this machine with a model, a drafter and two GPUs."""
    for name, config in (("model", "config-gqa.json"), ("drafter", "config-drafter.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text((DATA / config).read_text())
        (tmp_path / name / "model.safetensors").write_bytes(b"x" * 1024)
    smi(tmp_path, monkeypatch, gpus="gpus-2-rtxpro6000.csv", topo="topo-2-bridge.txt")

    def document(**changes: object) -> Host:
        base = {**stage.host_document, "model": {"path": str(tmp_path / "model"), "drafter": str(tmp_path / "drafter")}}
        del base["simulate"]
        return Host.model_validate_json(json.dumps({**base, **changes}))

    return document


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, *, gpus: str, topo: str, apps: str = "") -> Path:
    """Put an nvidia-smi on the path that prints recorded answers."""
    binary = folder / "bin" / "nvidia-smi"
    binary.parent.mkdir(exist_ok=True)
    (folder / "apps").write_text(apps)
    (folder / "used").write_text("GPU-0, 500\n")
    binary.write_text(
        f'#!/bin/sh\ncase "$*" in\n*compute_cap*) cat {DATA / gpus} ;;\n*topo*) cat {DATA / topo} ;;\n'
        f"*compute-apps*) cat {folder / 'apps'} ;;\n*memory.used*) cat {folder / 'used'} ;;\nesac\n"
    )
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")
    return binary


def test_discover(here, tmp_path: Path) -> None:
    facts = discover(here(), Engine(), LocalTransport())
    assert (len(facts.gpus), facts.link, facts.driver) == (2, "nvlink", "575.57.08")
    assert (facts.model.heads, facts.model.path) == (9, str(tmp_path / "model"))
    assert facts.drafter is not None
    assert facts.drafter.block_size == 8
    assert facts.cpus > 0
    assert facts.memory_gib > 0
    assert facts.disk_free_gib > 0
    assert not facts.simulated


def test_only_visible_gpus_count(here) -> None:
    engine = {"name": "sglang", "python": sys.executable, "env": {"CUDA_VISIBLE_DEVICES": "1"}}
    facts = discover(here(engine=engine), Engine(), LocalTransport())
    assert [gpu.index for gpu in facts.gpus] == [1]
    assert facts.link == "single"


def test_a_model_that_is_not_there_is_named_with_what_is(here, tmp_path: Path) -> None:
    with pytest.raises(StopStudy, match=rf"model {tmp_path}/modle is not there; {tmp_path} holds model, "):
        discover(here(model={"path": str(tmp_path / "modle")}), Engine(), LocalTransport())
    with pytest.raises(StopStudy, match=rf"drafter {tmp_path}/no/such is not there; {tmp_path} holds"):
        discover(here(model={"path": str(tmp_path / "model"), "drafter": str(tmp_path / "no/such")}), Engine(), LocalTransport())


def test_a_folder_without_config_and_a_damaged_one(here, tmp_path: Path) -> None:
    with pytest.raises(StopStudy, match=r"has no config.json; it holds nvidia-smi"):
        discover(here(model={"path": str(tmp_path / "bin")}), Engine(), LocalTransport())
    (tmp_path / "model" / "config.json").write_text("{")
    with pytest.raises(StopStudy, match=r"model/config.json: Expecting"):
        discover(here(), Engine(), LocalTransport())


def test_expectations(here) -> None:
    discover(here(expect={"gpus": 2, "sm": 120, "nvlink": True, "gpu_memory_gib": 96.0, "link": "nvlink"}), Engine(), LocalTransport())
    with pytest.raises(Refused, match=r"gpus: expected 8, found 2; nvlink: expected False, found True"):
        discover(here(expect={"gpus": 8, "nvlink": False}), Engine(), LocalTransport())
    with pytest.raises(UsageError, match="expect: gpu_count is not a fact"):
        discover(here(expect={"gpu_count": 8}), Engine(), LocalTransport())


def test_a_failing_driver_is_said(here, tmp_path: Path) -> None:
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    with pytest.raises(StopStudy, match="nvidia-smi failed: Failed to initialize NVML"):
        discover(here(), Engine(), LocalTransport())


@pytest.fixture
def look(here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Preflight of a host, as {name: (status, detail)}; its state stays in the test's folder."""
    monkeypatch.setattr("autotuner.services.hostside.STATE", str(tmp_path / "state"))

    def checks(host: Host) -> dict[str, tuple[str, str]]:
        _, found = examine(host, Engine(), LocalTransport())
        assert all(check.hint for check in found if check.status != "pass")
        return {check.name: (check.status, check.detail) for check in found}

    return checks


def test_preflight_of_a_sound_host(here, look) -> None:
    found = look(here(limits={"disk_free_gib": 0.001}))
    for name in ("state-folder", "disk", "port", "gpus", "gpu-processes", "drafter"):
        assert found[name][0] == "pass", (name, found[name])
    assert found["python-headers"][0] in {"pass", "warning"}


def test_preflight_names_everything_at_once(here, look, stage, tmp_path: Path) -> None:
    foreign = stage.start_foreign()
    (tmp_path / "apps").write_text(f"{foreign.pid}, python3, 4096, GPU-0\n")
    config = json.loads((tmp_path / "drafter" / "config.json").read_text())
    (tmp_path / "drafter" / "config.json").write_text(json.dumps({**config, "num_target_layers": 61}))
    found = look(here(limits={"disk_free_gib": 1e6}))
    assert found["port"] == ("fail", found["port"][1])
    assert f"(pid {foreign.pid})" in found["port"][1]
    assert found["disk"][0] == "fail"
    assert found["gpu-processes"][0] == "fail"
    assert f"python3 (pid {foreign.pid}, 4096 MiB)" in found["gpu-processes"][1]
    assert found["drafter"][0] == "fail"
    assert foreign.poll() is None


def test_production_and_its_gpu_memory_are_no_trouble(here, look, stage, tmp_path: Path) -> None:
    production = stage.produce()
    (tmp_path / "apps").write_text(f"{production.pid}, python3, 4096, GPU-0\n")
    found = look(here(limits={"disk_free_gib": 0.001}))
    assert found["port"][0] == "pass"
    assert found["gpu-processes"][0] == "pass"


def test_production_none_and_a_server_do_not_go_together(here, look, stage) -> None:
    stage.produce()
    assert look(here(service={"production": "none"}))["port"][0] == "fail"


def test_a_state_folder_of_somebody_else_is_refused(here, look, tmp_path: Path) -> None:
    folder = tmp_path / f"state-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    found = look(here())
    assert found["state-folder"][0] == "fail"
    assert "is not a private folder" in found["state-folder"][1]


def test_gpu_memory_that_does_not_come_back_names_its_holder(here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotuner.deploy.gpu_memory.SETTLE_S", 2.0)
    uuid = (DATA / "gpus-2-rtxpro6000.csv").read_text().split(", ")[5].splitlines()[0]
    (tmp_path / "used").write_text(f"{uuid}, 500\n")
    memory = GpuMemory(here(), LocalTransport())
    memory.settle()
    (tmp_path / "used").write_text(f"{uuid}, 700\n")
    memory.settle()
    (tmp_path / "used").write_text(f"{uuid}, 9000\n")
    (tmp_path / "apps").write_text(f"77, leaky, 8500, {uuid}\n")
    with pytest.raises(StopStudy, match=r"1 GPUs hold up to 8500 MiB more than when idle.*leaky \(pid 77\)"):
        memory.settle()


def test_the_launch_command_is_found_above_the_listener_and_below_the_shell(stage, tmp_path: Path) -> None:
    """A launcher whose child listens, started by a shell that waits for it: as scripts do."""
    launcher = tmp_path / "sglang_launcher.py"
    launcher.write_text("import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])\n")
    line = " ".join(["true;", stage.python, str(launcher), *stage.command()[1:], "; true"])
    shell = subprocess.Popen(["sh", "-c", line], start_new_session=True)
    stage.started.append(shell)
    stage.until(lambda: stage.serving() is not None, "the server")
    owner = stage.side.call("inspect", {"port": stage.port})["owner"]
    assert owner["argv"][:2] == [stage.python, str(launcher)]
    assert owner["pid"] != owner["listener"]
    assert set(owner["tree"]) == {owner["pid"], owner["listener"]}
    assert owner["problems"] == []
