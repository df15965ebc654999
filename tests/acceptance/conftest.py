"""Labs for the acceptance tests, and one finished night that all of them may read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.lab import Done, Lab

MATRIX = ("--contexts", "60,1024", "--concurrency", "1,8", "--output-tokens", "16", "--window", "0.2", "--warmup", "0.1")


@dataclass(frozen=True)
class Finished:
    """A whole night; read only. ``arguments`` are those of its ``tune``."""

    lab: Lab
    arguments: list[str]
    done: Done
    documents: dict[str, bytes]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A lab in which nothing happened yet."""
    made = Lab(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """The search space that ships for Kimi K2.6, searched and confirmed on a simulated b300."""
    lab = Lab(tmp_path_factory.mktemp("finished"))
    arguments = lab.tune_arguments("--space", "sglang-kimi-k26", *MATRIX, trials=3, rounds=1)
    done = lab.run(*arguments)
    assert done.code == 0, done.err
    yield Finished(lab, arguments, done, lab.documents())
    lab.close()


@pytest.fixture
def copy(finished: Finished, tmp_path: Path) -> Iterator[Lab]:
    """A lab with a copy of the finished night's study, for tests that add to it or spoil it."""
    shutil.copytree(finished.lab.state, tmp_path / "state")
    made = Lab(tmp_path)
    yield made
    made.close()
