"""Command lines mean the same to every login shell that people have."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotuner.transports.ssh.quoting import quoted

SHELLS = [["dash"], ["bash"], ["bash", "--posix"], ["zsh"], ["tcsh"], ["fish"], ["busybox", "sh"]]
HOSTILE = "x'; touch here; $(touch here) `touch here`\n\\ \\\\ \" !! !x %s %b é \udcff \t\\n\\0101 * ~ {a,b} \n\n"
CODE = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['V'], os.getcwd(), sys.stdin.read()]))"


@pytest.fixture(params=SHELLS, ids=" ".join)
def shell(request: pytest.FixtureRequest) -> list[str]:
    if shutil.which(request.param[0]) is None:
        pytest.skip(f"{request.param[0]} is not installed")
    return request.param


def said(shell: list[str], text: str, folder: Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C.UTF-8"}
    return subprocess.run([*shell, "-c", text], capture_output=True, input=stdin, env=environment, cwd=folder, timeout=60, check=False)


def test_hostile_arguments_environment_folder_and_input_come_through(shell, tmp_path: Path) -> None:
    folder = tmp_path / "it's a $HOME!"
    folder.mkdir()
    argv = [sys.executable, "-c", CODE, HOSTILE, "", "-n", "a=b", HOSTILE[::-1]]
    done = said(shell, quoted(argv, env={"V": HOSTILE}, cwd=str(folder)).text, tmp_path, b"in\n")
    assert json.loads(done.stdout) == [argv[3:], HOSTILE, str(folder), "in\n"], done.stderr
    assert not list(tmp_path.rglob("here"))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(argv=st.lists(st.text(alphabet="'\"\\$`!()*\n\r\t =+-%é\x01\x7f", max_size=12), max_size=5))
def test_any_arguments_come_through(shell, tmp_path: Path, argv) -> None:
    done = said(shell, quoted(["printf", "%s\\0", "first", *argv]).text, tmp_path)
    assert [word.decode() for word in done.stdout.split(b"\0")][1:-1] == argv, done.stderr


def test_return_codes_are_those_of_a_shell(shell, tmp_path: Path) -> None:
    codes = {
        ("true",): 0,
        ("no-such-program",): 127,
        ("/",): 126,
        ("sh", "-c", "exit 7"): 7,
        ("sh", "-c", "kill -9 $$"): 137,
    }
    assert {argv: said(shell, quoted(argv).text, tmp_path).returncode for argv in codes} == codes
    done = said(shell, quoted(["true"], cwd="/no/such").text, tmp_path)
    assert (done.returncode, done.stderr) == (126, b"/no/such: no such folder")
