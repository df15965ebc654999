from __future__ import annotations

from pathlib import Path

import pytest

import autotuner
from autotuner.documents import check_file, find, names, scaffold, scaffold_files
from autotuner.documents.finding import shipped
from autotuner.errors import AutotunerError, UsageError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_path_wins_over_a_name(folder: Path) -> None:
    (folder / "hosts").mkdir()
    (folder / "hosts" / "b300.yaml").write_text("")
    (folder / "b300").write_text("")
    assert find("hosts", "b300") == Path("b300")
    assert find("hosts", str(folder / "b300")) == folder / "b300"


def test_the_users_own_folder_wins_over_what_is_shipped(folder: Path) -> None:
    assert find("hosts", "b300") == shipped("hosts") / "b300.yaml"
    (folder / "hosts").mkdir()
    (folder / "hosts" / "b300.yaml").write_text("")
    assert find("hosts", "b300") == Path("hosts/b300.yaml")


def test_a_folder_of_the_same_name_is_no_document(folder: Path) -> None:
    (folder / "b300").mkdir()
    assert find("hosts", "b300") == shipped("hosts") / "b300.yaml"


def test_home_is_expanded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    (folder / "x.yaml").write_text("")
    assert find("hosts", "~/x.yaml") == folder / "x.yaml"


@pytest.mark.parametrize(
    ("kind", "name", "message", "hint"),
    [
        ("hosts", "b30", "there is no host 'b30', neither in ./hosts/ nor among the shipped ones", "did you mean 'b300'?"),
        ("search_spaces", "sglang-kimi", "there is no search space 'sglang-kimi'", "did you mean 'sglang-kimi-k26'?"),
        ("workloads", "zzz", "there is no workload 'zzz'", "known are: chatbot"),
        (
            "hosts",
            "hosts/b300.yaml",
            "there is no file hosts/b300.yaml",
            "known by name are: b300, ct200, h200-lab, simulated-b300, simulated-ct200",
        ),
        ("hosts", "../b300", "there is no file ../b300", "known by name are: "),
    ],
)
def test_what_is_not_there_is_named_with_a_hint(kind: str, name: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        find(kind, name)
    assert caught.value.message.startswith(message)
    assert caught.value.hint.startswith(hint)


def test_a_misspelt_path_names_its_neighbour(folder: Path) -> None:
    (folder / "mine.yaml").write_text("")
    with pytest.raises(UsageError) as caught:
        find("hosts", "mien.yaml")
    assert caught.value.hint == "did you mean 'mine.yaml'?"


def test_names_are_the_users_and_the_shipped_ones(folder: Path) -> None:
    (folder / "workloads").mkdir()
    (folder / "workloads" / "agents.yaml").write_text("")
    assert names("workloads") == ("agents", "chatbot")


def test_an_installed_package_finds_its_own_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder / "site-packages" / "autotuner"
    (package / "data" / "hosts").mkdir(parents=True)
    (package / "data" / "hosts" / "wheel.yaml").write_text("")
    monkeypatch.setattr(autotuner, "__file__", str(package / "__init__.py"))
    assert find("hosts", "wheel") == package / "data" / "hosts" / "wheel.yaml"


def test_scaffolding_lays_out_valid_documents(folder: Path) -> None:
    written = scaffold(folder / "new")
    assert {path.parent.name for path in written} == {"hosts", "search_spaces", "workloads", "recommendations", "schemas"}
    documents = [path for path in written if path.suffix == ".yaml"]
    assert len(documents) == 10
    assert [problem for path in documents for problem in check_file(path)] == []


def test_schema_lines_lead_to_schemas_that_are_there(folder: Path) -> None:
    for path in scaffold(folder):
        if path.suffix == ".yaml":
            schema = path.read_text().splitlines()[0].split("$schema=")[1]
            assert (path.parent / schema).is_file(), path


def test_scaffolding_never_overwrites(folder: Path) -> None:
    (folder / "hosts").mkdir()
    mine = folder / "hosts" / "b300.yaml"
    mine.write_text("mine")
    (folder / "hosts" / "ct200.yaml").symlink_to(folder / "nowhere")
    written = scaffold(folder)
    assert mine.read_text() == "mine"
    assert not (folder / "nowhere").exists()
    assert set(scaffold_files(folder)) - set(written) == {mine, folder / "hosts" / "ct200.yaml"}
    assert scaffold(folder) == []


def test_scaffolding_into_a_file_is_explained(folder: Path) -> None:
    (folder / "file").write_text("")
    with pytest.raises(AutotunerError, match="Not a directory"):
        scaffold(folder / "file")


def test_the_schemas_of_this_repository_are_those_of_the_models() -> None:
    root = Path(__file__).parents[2]
    laid_out = {path.name: text for path, text in scaffold_files(root).items() if path.parent.name == "schemas"}
    there = {path.name: path.read_text(encoding="utf-8") for path in (root / "schemas").iterdir()}
    assert there == laid_out, "write them anew: rm -r schemas && autotuner init ."


@pytest.mark.parametrize("name", ["x" * 300, "hosts/" + "x" * 300 + ".yaml"])
def test_a_name_that_no_file_can_have_is_one_error(name: str) -> None:
    with pytest.raises(UsageError, match=r"File name too long|there is no") as caught:
        find("hosts", name)
    assert "simulated-b300" in (caught.value.hint or "")


def test_a_home_folder_of_nobody_is_one_error() -> None:
    with pytest.raises(UsageError, match=r"there can be no host '~nobody-of-this-name/x\.yaml'"):
        find("hosts", "~nobody-of-this-name/x.yaml")
