"""Telemetry: log lines on standard error, text for people and JSON for machines (only door to structlog).

What goes wrong is raised and what happens in a night is an event; what is left for log lines, our own and those of libraries, goes
through the standard ``logging`` and comes out here.
"""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import EventDict, Processor

_QUIET = ("alembic", "httpcore", "httpx", "optuna", "paramiko")
"""Libraries whose ``info`` is of no use to a person who tunes."""
_SILENT = ("sqlalchemy",)
"""Libraries whose lines hide all others even from a person who looks for a fault: every mapping and statement, a thousand for one trial."""


class _Stderr(logging.Handler):
    """Writes to whatever standard error is at that moment: a progress bar replaces it while it is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except BrokenPipeError:  # nobody reads any more; the run itself goes on
            return
        except Exception:  # noqa: BLE001 - a line that cannot be formatted must not end a night
            self.handleError(record)


def configure(level: str = "warning", *, json: bool | None = None, color: bool = True) -> None:
    """Set logging up for this process; may be called again.

    ``json=None`` means text on a terminal and JSON otherwise. Libraries log from ``warning`` on, whatever ``level`` is, unless
    it is ``debug``; the database's from ``warning`` on even then.
    """
    tty = sys.stderr.isatty()
    as_json = not tty if json is None else json
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True) if as_json else structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
    ]
    handler = _Stderr()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(as_json=as_json, color=color and tty)],
        )
    )
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _Stderr)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel("DEBUG" if level == "debug" else "WARNING")
    for name in _SILENT:
        logging.getLogger(name).setLevel("WARNING")


def _rendering(*, as_json: bool, color: bool) -> list[Processor]:
    if as_json:
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(sort_keys=True, ensure_ascii=False)]
    return [
        _shorten_logger,
        structlog.dev.ConsoleRenderer(colors=color, sort_keys=False, exception_formatter=structlog.dev.plain_traceback),
    ]


def _shorten_logger(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Show our own rooms without the package's name."""
    name = event.get("logger")
    if isinstance(name, str):
        event["logger"] = name.removeprefix("autotuner.")
    return event
