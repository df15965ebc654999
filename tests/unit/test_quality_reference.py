"""The reference on a disk that does not take it: it is held, counts all the same, and is written as soon as it can be."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from autotuner import disk
from autotuner.errors import Refused
from autotuner.quality.asking import Answer
from autotuner.quality.reference import Reference, References

KEPT = Reference(
    digest="d", model="m", trial=0, greedy=(Answer(text="sky"),), agreement=1.0, canary=Answer(text="Paris"), rounds=({"gcd": "solved"},)
)


def test_a_full_disk_costs_no_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    references = References(tmp_path / "quality")
    with monkeypatch.context() as patched:
        patched.setattr(disk, "replace", full)
        references.save(KEPT)
        assert references.load(digest="d", model="m") == KEPT
        assert "No space left on device" in references.trouble
        assert References(tmp_path / "quality").load(digest="d", model="m") is None

    assert references.load(digest="d", model="m") == KEPT
    assert references.trouble == ""
    assert References(tmp_path / "quality").load(digest="d", model="m") == KEPT


def test_answers_to_other_questions_are_no_reference(tmp_path: Path) -> None:
    References(tmp_path).save(KEPT)

    assert References(tmp_path).load(digest="other", model="m") is None
    assert References(tmp_path).load(digest="d", model="other") is None


def test_a_place_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "quality").symlink_to(tmp_path)

    with pytest.raises(Refused):
        References(tmp_path / "quality").save(KEPT)
