"""The import contracts hold, and each of them can fail: a planted violation is seen."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PLANTED = [
    ("model/host.py", "import autotuner.errors\nimport autotuner.decide", "Rooms: imports point down"),
    ("telemetry.py", "import autotuner.records", "Rooms: imports point down"),
    ("model/host.py", "import pathlib", "Purity: model does no input or output and reads no clock"),
    ("decide/__init__.py", "import time", "Purity: decide does no input or output and reads no clock"),
    ("transports/base.py", "import paramiko", "Door: paramiko only in transports.ssh"),
    ("cli/lines.py", "import httpx", "Door: httpx only in loadgen"),
    ("cli/lines.py", "import optuna", "Door: optuna only in study"),
    ("decide/__init__.py", "import sklearn", "Door: scikit-learn only in decide.surrogate"),
    ("cli/lines.py", "import scipy", "Door: numpy and scipy only in decide"),
    ("cli/lines.py", "import yaml", "Door: yaml only in documents"),
    ("telemetry.py", "import rich", "Door: click and rich only in cli"),
    ("records.py", "import structlog", "Door: structlog only in telemetry"),
    ("engines/base.py", "import autotuner.engines.registry", "Extension point: engines"),
    ("services/base.py", "import autotuner.services.registry", "Extension point: services"),
    ("transports/base.py", "import autotuner.transports.registry", "Extension point: transports"),
]
MADE = ("engines/registry.py", "services/registry.py", "transports/registry.py", "records.py")
"""Modules that a plant needs, where the tree lacks them."""


def lint_imports(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-cache", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "autotuner", folder / "autotuner", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in MADE:
        (folder / "autotuner" / name).touch()
    return folder


def broken(report: str) -> set[str]:
    return {line.split(" BROKEN")[0] for line in report.splitlines() if " BROKEN" in line}


@pytest.fixture(scope="module")
def broken_before(tree: Path) -> set[str]:
    return broken(lint_imports(tree).stdout)


def test_the_contracts_hold() -> None:
    done = lint_imports(ROOT)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("module", "line", "contract"), PLANTED)
def test_a_planted_import_breaks_its_contract(tree: Path, broken_before: set[str], module: str, line: str, contract: str) -> None:
    path = tree / "autotuner" / module
    before = path.read_text()
    path.write_text(f"{before}\n{line}\n")
    try:
        done = lint_imports(tree)
    finally:
        path.write_text(before)

    assert contract in broken(done.stdout) - broken_before, done.stdout + done.stderr


def test_a_module_without_a_room_is_seen(tree: Path) -> None:
    stray = tree / "autotuner" / "utils.py"
    stray.write_text("")
    try:
        done = lint_imports(tree)
    finally:
        stray.unlink()

    assert done.returncode != 0
    assert "utils" in done.stdout + done.stderr


def test_no_module_is_longer_than_500_lines() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for folder in ("autotuner", "tests", "benchmarks", "docs")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (count := len(path.read_text().splitlines())) > 500
    }

    assert long == {}
