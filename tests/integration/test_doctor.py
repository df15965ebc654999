"""``doctor`` on a simulated host: the real discovery and the real checks, without a GPU."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotuner.cli.main import run

HOST = """\
apiVersion: autotuner/v1
kind: Host
metadata: {{name: sim}}
transport: {{type: local}}
engine: {{name: sglang}}
model: {{path: simulated:kimi-k2.6, drafter: simulated:kimi-k2.6-dflash}}
service: {{manager: process, production: none}}
endpoint: {{port: {port}}}
simulate:
  profile: ct200
  gpu: {{name: RTX PRO 6000 Blackwell, count: 8, memory_gib: 96.0, sm: 120, link: pcie}}
"""


@pytest.fixture
def port() -> Iterator[socket.socket]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held


@pytest.fixture
def host(tmp_path: Path, port: socket.socket) -> Path:
    path = tmp_path / "sim.yaml"
    path.write_text(HOST.format(port=port.getsockname()[1]))
    return path


def test_a_healthy_simulated_host(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", str(host), "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["healthy"] is True
    assert told["simulated"] is True
    assert told["facts"]["gpus"] == 8
    assert told["facts"]["sm"] == 120


def test_a_foreign_process_on_the_port_is_named(host: Path, port: socket.socket, capsys: pytest.CaptureFixture[str]) -> None:
    port.listen()

    assert run(["doctor", str(host)]) == 1

    shown = capsys.readouterr().out
    assert "FAIL" in shown
    assert str(os.getpid()) in shown, "the owner of the port is named"
    assert "sim cannot be tuned" in shown


def test_a_host_that_is_not_there_is_a_wrong_argument(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", str(tmp_path / "absent.yaml")]) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "hint: " in captured.err


def test_a_host_that_this_version_cannot_reach_is_a_failed_check(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = host.read_text().split("simulate:\n")[0].replace("simulated:", "/models/")
    host.write_text(real.replace("{type: local}", "{type: ssh, hostname: gpu.example}"))

    assert run(["doctor", str(host)]) == 1
    assert "FAIL" in capsys.readouterr().out
