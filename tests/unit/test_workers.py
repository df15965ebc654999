"""Tests side by side: what must be alone is, a hung test ends, and no two workers have a port in common."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
SUITE = """
    import contextlib, pathlib, time

    import pytest

    UNDER_WAY = pathlib.Path({folder!r})

    @contextlib.contextmanager
    def under_way(name):
        mark = UNDER_WAY / (__name__ + name)
        mark.touch()
        yield
        time.sleep(0.05)
        mark.unlink()

    @pytest.mark.parametrize("number", range(4))
    def test_that_does_not_care(number):
        with under_way(f"{{number}}"):
            pass

    @pytest.mark.alone
    @pytest.mark.parametrize("number", range(2))
    def test_that_measures(number):
        for _ in range(5):
            assert not list(UNDER_WAY.iterdir())
            time.sleep(0.02)
        with under_way("alone"):
            pass
"""
INI = f"[pytest]\nmarkers = alone: measures\npythonpath = {ROOT}\n"
ARGUMENTS = ("-p", "tests.workers", "-p", "no:cacheprovider", "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeini(INI)
    return pytester


def test_no_other_test_runs_while_one_measures(suite: pytest.Pytester, tmp_path: Path) -> None:
    folder = tmp_path / "under-way"
    folder.mkdir()
    text = SUITE.format(folder=str(folder))
    suite.makepyfile(test_one=text, test_two=text, test_three=text)

    suite.runpytest_subprocess(*ARGUMENTS).assert_outcomes(passed=18)


def test_a_test_that_hangs_ends_and_lets_the_others_run(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_hung="import time, pytest\n@pytest.mark.alone\n@pytest.mark.timeout(1)\ndef test_hung(): time.sleep(600)\n",
        test_other="def test_other(): pass\n",
    )

    result = suite.runpytest_subprocess(*ARGUMENTS)

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*Timeout*1.0s*"])


def test_workers_have_ports_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    first = {free_port() for _ in range(50)}
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    second = {free_port() for _ in range(50)}
    assert max(first) < min(second)


def test_a_port_that_somebody_has_is_not_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.ports.PORTS_OF_A_WORKER", 2)
    with socket.socket() as held:
        held.bind(("127.0.0.1", free_port()))
        held.listen()
        assert held.getsockname()[1] not in {free_port() for _ in range(10)}
