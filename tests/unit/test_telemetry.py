"""Log lines: one form for all, whoever writes them."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from autotuner import telemetry


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


def test_json_lines_carry_their_fields(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("info")

    logging.getLogger("autotuner.deploy").warning("slow %s", "stop", extra={"seconds": 61})

    captured = capsys.readouterr()
    assert captured.out == ""
    line = json.loads(captured.err)
    assert {"event": "slow stop", "seconds": 61, "level": "warning", "logger": "autotuner.deploy"}.items() <= line.items()
    assert "timestamp" in line


def test_text_is_for_people_and_has_no_colour_where_none_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("warning", json=False, color=False)

    logging.getLogger("autotuner.deploy.session").warning("lease renewed late", extra={"seconds": 7})
    logging.getLogger("autotuner.deploy.session").info("not shown")

    shown = capsys.readouterr().err
    assert "lease renewed late" in shown
    assert "seconds=7" in shown
    assert "[deploy.session]" in shown
    assert "not shown" not in shown
    assert "\x1b" not in shown


def test_configuring_again_does_not_double_lines(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("info")
    telemetry.configure("info")

    logging.getLogger("x").info("once")

    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(("level", "lines"), [("info", 0), ("debug", 1)])
def test_libraries_are_quiet_unless_debugging(capsys: pytest.CaptureFixture[str], level: str, lines: int) -> None:
    telemetry.configure(level)

    logging.getLogger("paramiko.transport").info("Connected (version 2.0)")

    assert len(capsys.readouterr().err.splitlines()) == lines


def test_the_database_drowns_nothing_even_when_debugging(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("debug")

    for name in ("orm.mapper.Mapper", "engine.Engine", "pool.impl.NullPool"):
        logging.getLogger(f"sqlalchemy.{name}").info("(Trial|trials) _configure_property")
    logging.getLogger("sqlalchemy.pool.impl.NullPool").error("the connection is gone")

    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["the connection is gone"]


def test_lines_follow_standard_error_when_it_is_replaced(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("info")
    monkeypatch.setattr(sys, "stderr", sys.stdout)

    logging.getLogger("x").info("moved")

    assert "moved" in capsys.readouterr().out


def test_an_exception_is_kept_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("info")
    try:
        int("bad token")
    except ValueError:
        logging.getLogger("x").exception("failed")

    line = json.loads(capsys.readouterr().err)
    assert "ValueError: invalid literal" in line["exception"]


class _Closed(io.StringIO):
    def write(self, _text: str) -> int:
        raise BrokenPipeError


def test_a_standard_error_that_nobody_reads_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry.configure("info")
    monkeypatch.setattr(sys, "stderr", _Closed())

    logging.getLogger("x").info("into the void")


def test_a_line_that_cannot_be_formatted_is_reported_and_does_not_end_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("info")
    root = logging.getLogger()
    root.handlers[:] = [handler for handler in root.handlers if isinstance(handler, telemetry._Stderr)]

    logging.getLogger("some.library").warning("%d trials", "many")

    assert "%d trials" in capsys.readouterr().err
