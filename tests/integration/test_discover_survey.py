"""The survey's script in a real shell on this machine; NVIDIA's tools, which are not here, answer from recorded output."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from autotuner.discover.survey import Section, look_over, machine_of
from autotuner.model.host import Host
from autotuner.model.machine import MigDevice
from autotuner.transports.local import LocalTransport

DATA = Path(__file__).parents[1] / "data" / "discover"
PLAIN = {
    "compute_cap": "gpus-2-h200.csv",
    "persistence_mode": "states-2-h200.csv",
    "clocks_event_reasons": "reasons-2-h200.csv",
    "compute-apps": "apps-header.csv",
    "topo": "topo-2-h200.txt",
    "-L": "mig-list.txt",
}


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The survey's sections of a host document with changes to it."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def looked(*, env: Mapping[str, str] | None = None, drafter: str | None = None) -> dict[str, Section]:
        host = Host.model_validate(
            {
                "apiVersion": "autotuner/v1",
                "kind": "Host",
                "metadata": {"name": "here"},
                "transport": {"type": "local"},
                "engine": {"name": "sglang", "env": {"CUDA_HOME": "/nonexistent", **(env or {})}},
                "model": {"path": str(tmp_path / "no" / "such model"), "drafter": drafter},
            }
        )
        return look_over(host, LocalTransport())

    return looked


def tool(folder: Path, answers: Mapping[str, str], *, otherwise: str = "smi-2-h200.txt", refuse: str = "no such question") -> None:
    """Put an nvidia-smi on the path: a word of the question → file; questions with ``refuse`` fail as an old driver's do."""
    cases = "".join(f"*{word}*) cat '{DATA / name}' ;;\n" for word, name in answers.items())
    script = folder / "bin" / "nvidia-smi"
    script.parent.mkdir(exist_ok=True)
    script.write_text(
        f"#!/bin/sh\ncase \"$*\" in\n*'{refuse}'*) echo 'Field is not a valid field to query.'; exit 2 ;;\n"
        f"{cases}*) cat '{DATA / otherwise}' ;;\nesac\n"
    )
    script.chmod(0o755)


def test_every_question_has_an_answer_or_says_why_not(look, tmp_path: Path) -> None:
    tool(tmp_path, PLAIN)
    sections = look()
    assert {name for name, section in sections.items() if section.returncode is None} == set()
    found = machine_of(sections)
    assert [state.sm_max_mhz for state in found.gpus] == [1980, 1980]
    assert found.clock_reasons == {0: ("idle",), 1: ("idle",)}
    assert (found.links[0, 1], found.affinities[1].numa, found.driver_cuda) == ("NV18", "0", (13, 0))
    assert (found.uid, found.kernel) == (os.getuid(), os.uname().release)
    assert found.memory.total > 0
    assert found.processors.count > 0
    assert set(found.limits) == {"nofile", "memlock"}
    assert "mig" not in sections, "only asked where the document names such devices"


def test_a_folder_that_is_not_there_yet_is_on_the_disk_of_the_one_above(look, tmp_path: Path) -> None:
    sections = look(env={"XDG_CACHE_HOME": str(tmp_path / "a b" / "later")}, drafter="")
    disks = machine_of(sections).disks
    assert disks["caches"].path == str(tmp_path / "a b" / "later")
    assert disks["model"].path == str(tmp_path / "no" / "such model")
    assert disks["caches"].size_gib == disks["model"].size_gib > 0


def test_a_machine_without_nvidias_tools(look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    sections = look()
    assert sections["gpus"].returncode == 127
    assert "topology" not in sections, "the other questions would say no more"
    assert machine_of(sections).gpus == ()


def test_a_driver_in_trouble_is_asked_once(look, tmp_path: Path) -> None:
    tool(tmp_path, PLAIN, refuse="compute_cap")
    sections = look()
    assert (sections["gpus"].returncode, sections["gpus"].text.strip()) == (2, "Field is not a valid field to query.")
    assert "states" not in sections


def test_an_old_driver_is_asked_by_the_old_name(look, tmp_path: Path) -> None:
    tool(tmp_path, {**PLAIN, "clocks_throttle_reasons": "reasons-2-h200.csv"}, refuse="clocks_event_reasons")
    sections = look()
    assert "not a valid field" in sections["reasons"].text
    assert machine_of(sections).clock_reasons == {0: ("idle",), 1: ("idle",)}


def test_mig_devices_are_listed_where_they_are_named(look, tmp_path: Path) -> None:
    from autotuner.discover.gpus import parse_mig_devices

    tool(tmp_path, PLAIN)
    sections = look(env={"CUDA_VISIBLE_DEVICES": "MIG-7089d0f3"})
    assert parse_mig_devices(sections["mig"].text)[0] == MigDevice(
        uuid="MIG-7089d0f3-293f-58c9-8f8c-5ea666eedbde", profile="3g.40gb", parent=0
    )


def test_a_process_on_a_gpu_that_is_seen_here_is_told_from_one_that_is_not(look, tmp_path: Path) -> None:
    tool(tmp_path, {**PLAIN, "compute-apps": "apps-three.csv"})
    apps = tmp_path / "apps"
    apps.write_text(f"{os.getpid()}, python3, 4096, GPU-0\n4194305, elsewhere, 1, GPU-0\n[N/A], x, 1, GPU-0\n")
    script = tmp_path / "bin" / "nvidia-smi"
    script.write_text(script.read_text().replace(str(DATA / "apps-three.csv"), str(apps)))
    found = machine_of(look())
    assert [process.pid for process in found.processes] == [os.getpid(), 4194305]
    assert set(found.process_units) == {os.getpid()}


def test_the_toolkit_of_the_engines_environment_comes_first(look, tmp_path: Path) -> None:
    tool(tmp_path, PLAIN)
    for name in ("first", "second"):
        compiler = tmp_path / name / "bin" / "nvcc"
        compiler.parent.mkdir(parents=True)
        compiler.write_text(f"#!/bin/sh\ncat '{DATA / 'nvcc-13.0.txt'}'\n")
        compiler.chmod(0o755)
    by_home = machine_of(look(env={"CUDA_HOME": str(tmp_path / "first"), "PATH": f"{tmp_path}/second/bin"})).toolkit
    assert by_home is not None
    assert (by_home.version, by_home.where) == ((13, 0), str(tmp_path / "first"))
    by_path = machine_of(look(env={"CUDA_HOME": "", "PATH": f"{tmp_path}/second/bin:/usr/bin:/bin"})).toolkit
    assert by_path is not None
    assert by_path.where == str(tmp_path / "second")
    (tmp_path / "third").mkdir()
    (tmp_path / "third" / "version.json").write_text((DATA / "cuda-version.json").read_text())
    bare = machine_of(look(env={"CUDA_HOME": str(tmp_path / "third")})).toolkit
    assert bare is not None
    assert (bare.version, bare.compiler) == ((12, 8), False)
