"""``status``, ``trials`` and ``recommend`` over studies of which one is damaged, or whose host file is elsewhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from autotuner.cli.main import run
from autotuner.documents import dump
from autotuner.model.events import Phase
from autotuner.records import RecordStore
from autotuner.tuner.opening import locate, open_study, study_name
from tests import builders as b


def studied(state: Path, name: str) -> RecordStore:
    """A study of this host with a baseline and a better configuration."""
    host = b.host(name)
    store = locate(state, study_name(host, b.space()))
    open_study(store, host=host, space=b.space(), facts=b.facts(), workloads=b.WORKLOADS, seed=0)
    store.append(b.measured(0, b.config(), (100.0, 50.0, 3000.0), Phase.BASELINE))
    store.append(b.measured(1, b.config(spec="dflash", block=8, window="none"), (150.0, 70.0, 3500.0)))
    return store


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Studies of ``lab`` and ``other``; read only."""
    state = tmp_path_factory.mktemp("sound")
    for name in ("lab", "other"):
        studied(state, name)
    return state


@pytest.fixture
def state(sound: Path, tmp_path: Path) -> Path:
    """The same studies, to be spoiled."""
    return shutil.copytree(sound, tmp_path / "state")


def folder(state: Path, name: str) -> Path:
    (found,) = (state / "studies").glob(f"{name}--*")
    return found


def test_a_broken_study_is_one_line_and_the_others_are_shown(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meta = folder(state, "lab") / "meta.json"
    meta.write_text("{")

    assert run(["--state-dir", str(state), "status", "--json"]) == 0
    captured = capsys.readouterr()
    assert [row["host"] for row in json.loads(captured.out)] == ["other"]
    (line,) = captured.err.splitlines()
    assert line.startswith(f"warning: {meta}: cannot be read: ")
    assert "(hint: restore the file from a backup, or start over with --new-study)" in line

    assert run(["--state-dir", str(state), "trials", "other"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 2
    assert captured.err.splitlines() == [line]


@pytest.mark.parametrize("command", ["status", "trials", "recommend"])
def test_the_broken_study_itself_is_an_error(state: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    meta = folder(state, "lab") / "meta.json"
    meta.write_text("{")

    assert run(["--state-dir", str(state), command, "lab"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {meta}: cannot be read: ")


def test_a_broken_study_is_an_error_by_its_own_name_too(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder(state, "lab") / "meta.json").unlink()

    assert run(["--state-dir", str(state), "trials", folder(state, "lab").name]) == 4
    assert "meta.json is missing" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["status"], ["trials", "lab"], ["recommend", "lab"]])
def test_lines_that_could_not_be_read_are_told_once(state: Path, capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    results = folder(state, "lab") / "results.jsonl"
    results.write_bytes(results.read_bytes().replace(b"\n", b"\ngarbage\n", 1))

    assert run(["--state-dir", str(state), *command]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert told == [f"warning: {results}: 1 line could not be read and count as no launch"]


def test_recommend_needs_the_study_alone(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert run(["--state-dir", str(state), "recommend", "lab", "--workload", "latency"]) == 0
    alone = yaml.safe_load(capsys.readouterr().out)
    assert (alone["metadata"]["host"], alone["metadata"]["model"]) == ("lab", "/models/smol")
    assert "WorkingDirectory=/\n" in alone["spec"]["unit"]

    (tmp_path / "file.yaml").write_text(dump(b.host("lab")))
    assert run(["--state-dir", str(state), "recommend", "file.yaml", "--workload", "latency"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == alone


def test_recommend_from_a_study_that_kept_no_host_takes_the_file(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    meta = folder(state, "lab") / "meta.json"
    kept = json.loads(meta.read_text())
    del kept["host_document"]
    meta.write_text(json.dumps(kept))

    assert run(["--state-dir", str(state), "recommend", "lab"]) == 2
    assert "'lab'" in capsys.readouterr().err

    (tmp_path / "lab.yaml").write_text(dump(b.host("lab")))
    assert run(["--state-dir", str(state), "recommend", "lab.yaml"]) == 0


def test_recommend_refuses_the_study_of_another_host(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--state-dir", str(state), "recommend", "lab", "--study", folder(state, "other").name]) == 2
    assert "is of other, not of lab" in capsys.readouterr().err
