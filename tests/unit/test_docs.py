"""The documents say what the code does."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from autotuner.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
DOCS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture
def renderer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render_cli", ROOT / "docs" / "render_cli.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_line_is_documented_as_it_is(renderer: ModuleType) -> None:
    assert (ROOT / "docs" / "cli.md").read_text() == renderer.render(), "run `make docs`"


def test_an_outdated_document_is_seen(
    renderer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(renderer, "TARGET", tmp_path / "cli.md")

    assert renderer.main(["--check"]) == 1
    assert "hint: `make docs`" in capsys.readouterr().err
    assert renderer.main([]) == 0
    assert renderer.main(["--check"]) == 0


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_its_section(name: str) -> None:
    assert f"\n## autotuner {name}\n" in (ROOT / "docs" / "cli.md").read_text()


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]+)", path.read_text())

    assert [link for link in links if not (path.parent / link).exists()] == []


def test_every_room_stands_in_the_architecture() -> None:
    rows = set(re.findall(r"^\| `(\w+)/?` \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE))
    rooms = {path.stem for path in (ROOT / "autotuner").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}

    assert rooms - {"__init__"} <= rows
