"""Files and hosts that cannot be used: one message with its place, the right exit code, and nothing begun."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.acceptance.lab import Done, Lab

DATA = Path(__file__).parents[1] / "data"
LAUNCH_SERVER = """
import gzip, pathlib, sys
sys.argv[1:] == ["--help"] or sys.exit(9)
print(gzip.decompress(pathlib.Path({page!r}).read_bytes()).decode())
"""
NVIDIA_SMI = """#!/bin/sh
case "$*" in
  *query-compute-apps*) ;;
  *query-gpu*) cat {data}/discover/gpus-1-h200.csv ;;
  *topo*) cat {data}/discover/topo-1.txt ;;
esac
"""


def assert_nothing_begun(lab: Lab) -> None:
    assert not (lab.state / "studies").exists()
    assert not lab.recommendations.exists()
    assert not lab.servers()


# --- files ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("tune", "simulated-b30", "--space", "small.yaml"), "'simulated-b30'", "did you mean 'simulated-b300'?"),
        (("tune", "no/such.yaml", "--space", "small.yaml"), "no/such.yaml", ""),
        (("tune", "lab.yaml", "--space", "sglang-kimi-k2"), "'sglang-kimi-k2'", "did you mean 'sglang-kimi-k26'?"),
        (("tune", "lab.yaml", "--space", "small.yaml", "--workload", "latancy"), "'latancy'", ""),
        (("doctor", "simulated-b30"), "'simulated-b30'", "did you mean 'simulated-b300'?"),
        (("recommend", "simulated-b30"), "'simulated-b30'", "did you mean 'simulated-b300'?"),
        (("check", "nothing.yaml"), "nothing.yaml", ""),
    ],
)
def test_a_missing_file_is_named_with_the_nearest_one(lab: Lab, arguments: tuple[str, ...], message: str, hint: str) -> None:
    done = lab.run(*arguments)

    assert done.code == 2
    assert len(done.errors) == 1
    assert message in done.errors[0]
    assert hint in done.hints[0]
    assert_nothing_begun(lab)


def test_a_file_that_cannot_be_read_is_named(lab: Lab) -> None:
    folder = lab.folder / "folder.yaml"
    folder.mkdir()
    binary = lab.folder / "binary.yaml"
    binary.write_bytes(b"kind: \xff\xfe\x00")

    for path in (folder, binary):
        for done in (lab.run("tune", path, "--space", lab.space_file), lab.run("tune", lab.host_file, "--space", path)):
            assert done.code in {1, 2}
            assert len(done.errors) == 1
            assert path.name in done.errors[0]
            assert len(done.hints) == 1
    assert_nothing_begun(lab)


def test_unknown_keys_and_wrong_types_are_told_all_at_once_with_their_places(lab: Lab) -> None:
    text = lab.host_file.read_text().replace("  drafter:", "  draftr:").replace("launch_seconds: 0.2", "launch_seconds: soon")
    lab.host_file.write_text(text)
    lines = text.splitlines()
    key = next(number for number, line in enumerate(lines, 1) if "draftr" in line)
    value = next(number for number, line in enumerate(lines, 1) if "soon" in line)

    for done in (lab.run("check", lab.host_file), lab.tune()):
        assert done.code == 2
        assert f"lab.yaml:{key}:3: error: " in done.err
        assert "hint: did you mean 'drafter'?" in done.err
        assert f"lab.yaml:{value}:{lines[value - 1].index('soon') + 1}: error: " in done.err
        assert len(done.errors) == 2
    assert_nothing_begun(lab)


def test_a_workload_that_the_host_cannot_serve_is_refused(lab: Lab) -> None:
    cells = [{"context": 20000, "concurrency": 1, "output_tokens": 8}]
    document = {"apiVersion": "autotuner/v1", "kind": "Workload", "metadata": {"name": "novel"}, "objective": "user_tok_s", "cells": cells}

    done = lab.tune("--workload", lab.write("novel.yaml", document))

    assert done.code == 2
    assert done.errors == ["error: novel (context 20000, C=1): longer than the 16384 tokens that lab serves"]
    assert "context_length" in done.hints[0]
    assert_nothing_begun(lab)


def test_a_search_space_of_another_engine_is_refused(lab: Lab) -> None:
    done = lab.tune("--space", "vllm")

    assert done.code == 2
    assert done.errors == ["error: space vllm is for vllm, but lab serves with sglang"]
    assert_nothing_begun(lab)


# --- a real host ---------------------------------------------------------------------------------------------------------------


def checkpoint(folder: Path, name: str) -> Path:
    """A checkpoint as it lies on a disk, without its weights."""
    folder.mkdir(parents=True)
    shutil.copy(DATA / "discover" / name, folder / "config.json")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def real(lab: Lab, *, model: Path, drafter: Path | None = None, python: str = sys.executable) -> dict[str, str]:
    """Turn the lab into a real host with a recorded ``nvidia-smi`` and an installed engine that knows its flags; the environment for it."""
    programs, packages = lab.folder / "bin", lab.folder / "packages"
    programs.mkdir()
    (programs / "nvidia-smi").write_text(NVIDIA_SMI.format(data=DATA))
    (programs / "nvidia-smi").chmod(0o755)
    (packages / "sglang").mkdir(parents=True)
    (packages / "sglang" / "__init__.py").touch()
    (packages / "sglang" / "version.py").write_text('__version__ = "0.5.17"\n')
    (packages / "sglang" / "launch_server.py").write_text(LAUNCH_SERVER.format(page=str(DATA / "help" / "sglang-0.5.17.txt.gz")))
    document = {
        "apiVersion": "autotuner/v1",
        "kind": "Host",
        "metadata": {"name": "lab"},
        "transport": {"type": "local"},
        "engine": {"name": "sglang", "python": python, "env": {"PYTHONPATH": str(packages)}},
        "model": {"path": str(model)} | ({"drafter": str(drafter)} if drafter else {}),
        "service": {"production": "none"},
        "endpoint": {"port": lab.port},
        "limits": {"disk_free_gib": 0.1},
    }
    lab.write("lab.yaml", document)
    return {"PATH": f"{programs}:{os.environ['PATH']}"}


def looked_over(lab: Lab, environment: dict[str, str]) -> tuple[dict, Done]:
    """What ``doctor`` says, and how ``tune`` ends."""
    doctor = lab.run("doctor", lab.host_file, "--space", "sglang-dflash-1gpu", "--json", env=environment)
    tune = lab.run(*lab.tune_arguments("--space", "sglang-dflash-1gpu"), env=environment)
    assert doctor.code == (0 if json.loads(doctor.out)["healthy"] else 1)
    assert_nothing_begun(lab)
    return json.loads(doctor.out), tune


def failed(told: dict) -> list[str]:
    return [check["detail"] for check in told["checks"] if check["status"] == "fail"]


def test_a_model_that_is_not_there_is_told_with_what_is(lab: Lab) -> None:
    checkpoint(lab.folder / "models" / "Qwen3-8B", "config-gqa.json")
    environment = real(lab, model=lab.folder / "models" / "Qwen3-9B")

    told, tune = looked_over(lab, environment)

    wanted = f"model {lab.folder}/models/Qwen3-9B is not there; {lab.folder}/models holds Qwen3-8B"
    assert any(wanted in detail for detail in failed(told)), told["checks"]
    assert tune.code == 1
    assert wanted in tune.errors[0]
    assert "correct `model:` of the host document" in tune.hints[0]


def test_a_drafter_of_another_model_is_refused_before_anything_starts(lab: Lab) -> None:
    model = checkpoint(lab.folder / "model", "config-mla-moe.json")
    drafter = checkpoint(lab.folder / "drafter", "config-drafter.json")
    environment = real(lab, model=model, drafter=drafter)

    told, tune = looked_over(lab, environment)

    reasons = [detail for detail in failed(told) if detail.startswith(f"{drafter}: ")]
    assert any("it was made for a model of" in reason for reason in reasons), told["checks"]
    assert tune.code == 4
    assert all(reason in tune.errors[0] for reason in reasons)


def test_an_engine_that_is_not_installed_is_told(lab: Lab) -> None:
    model = checkpoint(lab.folder / "model", "config-gqa.json")
    environment = real(lab, model=model, python=str(lab.folder / "venv" / "bin" / "python"))

    told, tune = looked_over(lab, environment)

    assert any("venv/bin/python" in detail for detail in failed(told))
    assert tune.code == 4
    assert "venv/bin/python" in tune.errors[0]
    assert "model.safetensors" in tune.errors[0], "everything that is wrong is told at once"
    assert len(tune.hints) == 1
