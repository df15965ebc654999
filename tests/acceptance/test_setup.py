"""Set-up on a fresh machine: the interpreter that is chosen, the versions that are pinned."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SHELL_TOOLS = ("bash", "cat", "mktemp", "rm", "sed")

OLD = 'case "$2" in *%d*) echo 3.9 ;; *) exit 1 ;; esac'
WITHOUT_VENV = 'case "$2" in *%d*) echo 3.12 ;; *venv*) exit 1 ;; esac'
USABLE = f'exec {sys.executable} "$@"'


def make(folder: Path, target: str, pythons: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the real Makefile in ``folder`` with nothing on the path but a shell and these interpreters."""
    path = folder / "bin"
    path.mkdir()
    for tool in SHELL_TOOLS:
        (path / tool).symlink_to(str(shutil.which(tool)))
    for name, body in pythons.items():
        (path / name).write_text(f"#!/bin/bash\n{body}\n")
        (path / name).chmod(0o755)
    shutil.copy(ROOT / "Makefile", folder)
    program = shutil.which("make")
    assert program is not None
    return subprocess.run(
        [program, target], cwd=folder, env={"PATH": str(path), "HOME": str(folder)}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("pythons", "seen"),
    [
        ({}, "was found\n"),
        ({"python3": OLD}, "was found: python3 is 3.9\n"),
        ({"python3.12": WITHOUT_VENV, "python3": OLD}, "was found: python3.12 has no venv module, python3 is 3.9\n"),
    ],
)
def test_without_a_usable_python_it_says_what_it_saw_and_what_to_install(tmp_path: Path, pythons: dict[str, str], seen: str) -> None:
    done = make(tmp_path, ".venv/bin/python", pythons)

    assert done.returncode == 2
    assert "error: no Python 3.11 or newer with its venv module " + seen in done.stderr
    assert "hint: install one (Debian 12: apt-get install python3 python3-venv)" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_an_unusable_python_does_not_hide_a_usable_one(tmp_path: Path) -> None:
    done = make(tmp_path, ".venv/bin/python", {"python3.13": WITHOUT_VENV, "python3.12": OLD, "python3.11": USABLE})

    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".venv" / "bin" / "python").exists()


def test_every_requirement_is_pinned_to_a_version_that_it_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pinned = {canonicalize_name(name): version for name, version in pins.items()}

    wanted = [Requirement(text) for text in [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]]

    wrong = [str(need) for need in wanted if not need.specifier.contains(pinned.get(canonicalize_name(need.name), "0"))]
    assert wrong == []


def test_every_target_that_ci_and_the_help_name_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"^#   make ([a-z-]+)", makefile, re.MULTILINE)) | set(
        re.findall(r"^make ([a-z-]+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    )

    assert {"demo", "test"} <= named <= targets


def test_the_script_of_ci_is_executable_and_parses() -> None:
    script = ROOT / ".ci" / "run"

    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
