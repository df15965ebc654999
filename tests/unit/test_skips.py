"""Skips cannot hide in CI, and host tests run only when asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

CONFTEST = (Path(__file__).parents[1] / "conftest.py").read_text().replace('pytest_plugins = ["pytester", "tests.workers"]', "")

SUITE = """
    import pytest

    def test_runs(): pass

    @pytest.mark.skip(reason="fell asleep")
    def test_sleeps(): pass

    def test_asks_for_a_gpu(): pytest.skip("needs a GPU")

    @pytest.mark.xfail(strict=True)
    def test_known(): assert False

    @pytest.mark.host
    def test_host(): pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("AUTOTUNER_HOST_TESTS", raising=False)
    pytester.makeini("[pytest]\nmarkers = host: real things\n")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_suite=SUITE)
    return pytester


def test_outside_ci_skips_are_skips(suite: pytest.Pytester) -> None:
    result = suite.runpytest_inprocess("-rs", "-p", "no:cacheprovider")

    result.assert_outcomes(passed=1, skipped=3, xfailed=1)
    result.stdout.fnmatch_lines(["*AUTOTUNER_HOST_TESTS=1*"])


def test_in_ci_an_unexpected_skip_fails_the_run(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("AUTOTUNER_HOST_TESTS", "1")

    result = suite.runpytest_inprocess("-p", "no:cacheprovider")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=2, skipped=1, errors=1, xfailed=1)
    result.stdout.fnmatch_lines(["*unexpected skip in CI: fell asleep*"])


def test_in_ci_a_whole_module_cannot_be_skipped(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    suite.makepyfile(test_gone='import pytest\npytest.skip("no such library", allow_module_level=True)\n')

    result = suite.runpytest_inprocess("test_gone.py", "-p", "no:cacheprovider")

    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*unexpected skip in CI: no such library*"])


def test_the_users_state_folder_is_out_of_reach(tmp_path_factory: pytest.TempPathFactory) -> None:
    from platformdirs import user_state_path

    assert tmp_path_factory.getbasetemp() in user_state_path("autotuner").parents
