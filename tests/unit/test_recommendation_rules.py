"""An edited recommendation is found out where the file itself contradicts the edit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotuner.documents import check_file

SHIPPED = sorted((Path(__file__).parents[2] / "recommendations").glob("*/*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_is_shipped_agrees_with_itself(path: Path) -> None:
    assert check_file(path) == ()


def _put(*path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def edit(document: dict[str, Any]) -> None:
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = value

    return edit


def _objective(**values: object) -> Callable[[dict[str, Any]], None]:
    """A verdict with numbers that fit each other, but for what is given."""

    def edit(document: dict[str, Any]) -> None:
        document["evidence"]["verdict"] = values.pop("verdict", "improved")
        fitting = {"direction": "higher", "baseline": 100.0, "measured": 110.0, "change_percent": 10.0, "ci95_percent": [5.0, 15.0]}
        document["evidence"]["objective"].update({**fitting, "repeats": 4, "pairs": 4, **values})

    return edit


def _check(tmp_path: Path, edit: Callable[[dict[str, Any]], None]) -> list[tuple[str, str | None]]:
    document = yaml.safe_load(SHIPPED[0].read_text())
    edit(document)
    path = tmp_path / "edited.yaml"
    path.write_text(yaml.safe_dump(document))
    return [(problem.message, problem.hint) for problem in check_file(path)]


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda document: document["spec"]["argv"].append("--enable-x"), "spec.unit is not the unit of spec.argv and spec.env"),
        (
            _put("spec", "env", "HF_HUB_OFFLINE", value="0"),
            "it says `Environment=HF_HUB_OFFLINE=1` where they say",
        ),
        (_put("spec", "unit", value="[Unit]\n"), "spec.unit is not the unit"),
        (_put("spec", "argv", value=[]), "cannot be written as a unit"),
        (_put("spec", "argv", value=["a\x01"]), "cannot be written as a unit"),
        (_put("evidence", "simulated", value=True), "'simulated' is not what"),
        (_put("evidence", "verdict", value="improved"), "which needs an interval of the change"),
        (_objective(ci95_percent=[-1.0, 15.0]), "which needs an interval of the change"),
        (_objective(ci95_percent=[15.0, 5.0]), "ends before it begins"),
        (_objective(direction="lower"), "which needs an interval of the change"),
        (_objective(repeats=1), "which needs two launches or more"),
        (_objective(pairs=0), "which needs interleaved pairs of launches"),
        (_objective(change_percent=11.0), "the change is 11 %, but from 100 to 110 it is 10.00 %"),
        (_objective(baseline=None), "no baseline"),
        (_objective(verdict="no significant change"), "the interval says that it is better"),
    ],
)
def test_an_edit_is_found_out(tmp_path: Path, edit: Callable[[dict[str, Any]], None], says: str) -> None:
    found = _check(tmp_path, edit)
    assert any(says in message for message, _ in found), found
    assert {hint for _, hint in found} == {"edit the search, not the evidence: run tune or recommend again"}


@pytest.mark.parametrize(
    "edit",
    [
        _objective(),
        _objective(direction="lower", measured=90.0, change_percent=-10.0, ci95_percent=[-15.0, -5.0]),
        _objective(baseline=0.003, measured=0.004, change_percent=29.0),
        _put("spec", "unit", value=""),
        _put("metadata", "description", value="mine"),
    ],
)
def test_what_agrees_with_itself_is_left_alone(tmp_path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    assert _check(tmp_path, edit) == []
