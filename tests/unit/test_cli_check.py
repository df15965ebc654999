from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from autotuner.cli.main import cli

DATA = Path(__file__).parent.parent / "data" / "documents"


def test_valid_files_exit_with_0_and_say_so() -> None:
    result = CliRunner().invoke(cli, ["check", str(DATA / "valid-aliases.yaml")])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "1 file checked: no problems\n", "")


def test_problems_go_to_stderr_and_exit_with_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        cli, ["check", str(DATA / "yaml-tab.yaml"), str(tmp_path / "missing.yaml"), str(DATA / "space-dead-choice.yaml")]
    )
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"{DATA / 'yaml-tab.yaml'}:8:1: error: a tab stands where YAML allows only spaces\nhint: indent with spaces\n" in result.stderr
    assert "missing.yaml:1:1: error: there is no such file" in result.stderr
    assert result.stderr.endswith("3 files checked: 2 errors, 1 warning\n")


def test_warnings_alone_are_valid() -> None:
    result = CliRunner().invoke(cli, ["check", str(DATA / "space-dead-choice.yaml")])
    assert result.exit_code == 0
    assert result.stdout == "1 file checked: 1 warning\n"
    assert "warning: no legal configuration uses tp: 2" in result.stderr


@pytest.mark.parametrize(("name", "code", "count"), [("yaml-tab", 2, 1), ("valid-aliases", 0, 0), ("space-dead-choice", 0, 1)])
def test_json_goes_to_stdout(name: str, code: int, count: int) -> None:
    file = str(DATA / f"{name}.yaml")
    result = CliRunner().invoke(cli, ["check", "--json", file])
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["valid"], answer["files"], len(answer["problems"])) == (code, code == 0, [file], count)
    assert all(set(problem) == {"file", "line", "column", "message", "hint", "severity"} for problem in answer["problems"])
    assert result.stderr == ""


def test_a_file_is_checked_once() -> None:
    file = str(DATA / "yaml-tab.yaml")
    assert CliRunner().invoke(cli, ["check", file, file]).stderr.endswith("1 file checked: 1 error\n")


@pytest.mark.parametrize("kind", ["Host", "searchspace", "WORKLOAD", "Recommendation"])
def test_schema_prints_json(kind: str) -> None:
    result = CliRunner().invoke(cli, ["schema", kind])
    assert json.loads(result.stdout)["title"].lower() == f"autotuner {kind.lower()}"


def test_an_unknown_kind_is_a_usage_error() -> None:
    assert CliRunner().invoke(cli, ["schema", "Hots"]).exit_code == 2


def test_init_writes_once_and_keeps_after(tmp_path: Path) -> None:
    first = CliRunner().invoke(cli, ["init", str(tmp_path / "here")])
    assert first.exit_code == 0
    assert f"wrote    {tmp_path / 'here' / 'hosts' / 'b300.yaml'}\n" in first.stdout
    assert "15 files written, 0 kept\n" in first.stderr
    second = CliRunner().invoke(cli, ["init", str(tmp_path / "here")])
    assert f"kept     {tmp_path / 'here' / 'hosts' / 'b300.yaml'} (it was there already)\n" in second.stdout
    assert second.stderr == "0 files written, 15 kept\n"


@pytest.mark.parametrize("name", [".", "a folder"])
def test_what_init_says_to_do_next_works_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    next_line = CliRunner().invoke(cli, ["init", name]).stderr.splitlines()[-1].removeprefix("next: ")
    bin_folder = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-c", next_line],
        env={**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "baseline" in done.stdout) == (0, True), done.stderr


def test_the_commands_load_nothing_heavy_until_they_run() -> None:
    code = "import sys, autotuner.cli.check; print(sorted({'pydantic', 'yaml', 'optuna', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
