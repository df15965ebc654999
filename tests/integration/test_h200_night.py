"""The recommendations of a real night follow from its records: the same study writes the same bytes, on any machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotuner.cli.main import run

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("workload", ["latency", "long-context", "throughput"])
def test_a_recommendation_is_derived_again_from_the_records(workload, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    code = run(["--state-dir", "docs/h200-lab", "recommend", "h200-lab", "--workload", workload, "--write", str(tmp_path)])
    assert code == 0
    assert (tmp_path / "h200-lab" / f"{workload}.yaml").read_text() == (
        ROOT / "recommendations" / "h200-lab" / f"{workload}.yaml"
    ).read_text()


def test_reading_a_study_leaves_its_folder_as_it_is(monkeypatch):
    monkeypatch.chdir(ROOT)
    folder = ROOT / "docs" / "h200-lab"
    before = sorted(folder.rglob("*"))
    for command in (["status", "--paths"], ["trials", "h200-lab"], ["trials", "h200-lab", "--json"]):
        assert run(["--state-dir", "docs/h200-lab", *command]) == 0
    assert sorted(folder.rglob("*")) == before
