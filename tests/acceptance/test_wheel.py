"""What is installed from the wheel is whole."""

from __future__ import annotations

import shutil
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import autotuner

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    source = tmp_path_factory.mktemp("source")
    for name in ("autotuner", "hosts", "search_spaces"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    (built,) = WheelBuilder(str(source)).build(directory=str(tmp_path_factory.mktemp("dist")), versions=["standard"])
    return zipfile.ZipFile(built)


def test_the_wheel_holds_every_module_and_data_file(wheel: zipfile.ZipFile) -> None:
    packed = set(wheel.namelist())
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "autotuner").rglob("*") if path.is_file() and "__pycache__" not in path.parts}

    assert wanted - packed == set()


def test_the_wheel_holds_the_shipped_hosts_and_search_spaces(wheel: zipfile.ZipFile) -> None:
    packed = set(wheel.namelist())
    shipped = [path for folder in ("hosts", "search_spaces") for path in (ROOT / folder).glob("*.yaml")]

    assert shipped
    assert {f"autotuner/data/{path.relative_to(ROOT)}" for path in shipped} - packed == set()


def test_the_wheel_names_its_version_its_licence_and_its_command(wheel: zipfile.ZipFile) -> None:
    info = f"autotuner-{autotuner.__version__}.dist-info"
    metadata = HeaderParser().parsestr(wheel.read(f"{info}/METADATA").decode())

    assert metadata["Version"] == autotuner.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert f"{info}/licenses/LICENSE" in wheel.namelist()
    assert b"autotuner = autotuner.cli.main:main" in wheel.read(f"{info}/entry_points.txt")
