"""``doctor`` on a simulated host: the real discovery and the real checks, without a GPU."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotuner.cli.main import run

SPACE = str(Path(__file__).parents[2] / "search_spaces" / "sglang-kimi-k26.yaml")
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


@pytest.mark.parametrize(
    ("key", "says", "hint"),
    [
        ("engine: {name: sglang, cwd: /nope}", "/nope: No such file or directory", "correct `engine.cwd` of the host document"),
        (
            'secrets: {HF_TOKEN: "file:/nope/token"}',
            "secret HF_TOKEN: /nope/token: No such file or directory",
            "put it there on the host, readable by this user, or correct `HF_TOKEN` under `secrets:`",
        ),
        (
            'secrets: {HF_TOKEN: "env:NO_SUCH_VARIABLE"}',
            "secret HF_TOKEN: the variable NO_SUCH_VARIABLE is not set on the host",
            "export NO_SUCH_VARIABLE=… before starting autotuner",
        ),
    ],
)
def test_what_no_server_could_be_started_with_is_told_before_anything_is_stopped(
    host: Path, capsys: pytest.CaptureFixture[str], key: str, says: str, hint: str
) -> None:
    text = host.read_text().replace("engine: {name: sglang}", key) if key.startswith("engine") else f"{host.read_text()}{key}\n"
    host.write_text(text)

    assert run(["doctor", str(host), "--json"]) == 1

    (failed,) = (check for check in json.loads(capsys.readouterr().out)["checks"] if check["status"] == "fail")
    assert (failed["name"], failed["detail"]) == ("launch", says)
    assert failed["hint"].startswith(hint)
    assert run(["tune", str(host), "--space", SPACE, "--trials", "1"]) == 4
    assert f"error: sim cannot be tuned as it is: {says}\nhint: {hint}" in capsys.readouterr().err


def test_program_folder_and_secrets_that_are_there_are_told_without_the_secret(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SET_HERE", "s3cret")
    (tmp_path / "token").write_text("s3cret")
    host.write_text(f'{host.read_text()}secrets: {{A_TOKEN: "env:SET_HERE", B_TOKEN: "file:{tmp_path}/token"}}\n')

    assert run(["doctor", str(host), "--json"]) == 0

    said = capsys.readouterr()
    assert "s3cret" not in said.out + said.err
    (launch,) = (check for check in json.loads(said.out)["checks"] if check["name"] == "launch")
    assert launch["detail"] == "program, folder and 2 secrets are there for a server"
