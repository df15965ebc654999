"""What every test gets: a state folder of its own, repeatable hypothesis, and skips that cannot hide in CI.

* Tests marked ``host`` run only with ``AUTOTUNER_HOST_TESTS=1``.
* With ``CI=true`` a skip is a failure unless its reason is listed in ``EXPECTED_SKIPS``: a test that silently stopped running
  in CI proves nothing any more.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["pytester", "tests.workers"]

HOST_TESTS = "AUTOTUNER_HOST_TESTS"
NEEDS_HOST = f"host test: set {HOST_TESTS}=1 to run it"

EXPECTED_SKIPS: tuple[str, ...] = ("needs a GPU", "times not compared, counts were")
"""Beginnings of the reasons for which a test may be skipped even in CI."""

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave host tests out unless they are asked for."""
    if os.environ.get(HOST_TESTS) == "1":
        return
    for item in items:
        if item.get_closest_marker("host"):
            item.add_marker(pytest.mark.skip(reason=NEEDS_HOST))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn an unexpected skip into a failure."""
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn an unexpected skip of a whole module into a failure."""
    report = yield
    _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not os.environ.get("CI") or report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not reason.startswith(EXPECTED_SKIPS):
        report.outcome = "failed"
        report.longrepr = (
            f"unexpected skip in CI: {reason}\nhint: make it run here, or list the reason in EXPECTED_SKIPS of tests/conftest.py"
        )


@pytest.fixture(scope="session", autouse=True)
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of the user's environment or state folder reaches a test, nor the other way round."""
    state: Path = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AUTOTUNER_") and name != HOST_TESTS]:
            patch.delenv(name)
        for name in ("STATE_DIRECTORY", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
            patch.delenv(name, raising=False)
        patch.setenv("XDG_STATE_HOME", str(state))
        yield
