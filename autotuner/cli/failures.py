"""Failures: how an exception becomes a message for a person and an exit code.

The form is always the same, on standard error: ``error: what failed``, then ``hint: what to try``. A traceback is never shown for
anything foreseeable; for everything else it goes to a file whose path is shown.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
import traceback
from pathlib import Path

import click

import autotuner
from autotuner import disk
from autotuner.cli.options import default_state_dir
from autotuner.errors import AutotunerError, Interrupted, InvalidDocument

INTERRUPTED = Interrupted.exit_code


def report(error: BaseException) -> int:
    """Say on standard error what went wrong; returns the exit code."""
    match error:
        case InvalidDocument():
            _say(str(error))
            return error.exit_code
        case AutotunerError():
            _say(f"error: {error.message}", error.hint)
            return error.exit_code
        case click.ClickException():
            return _usage(error)
        case click.Abort() | KeyboardInterrupt():
            _say("interrupted")
            return INTERRUPTED
        case OSError() if disk.foreseen(error):
            return report(disk.refused("use", error.filename, error))
        case _:
            return _unexpected(error)


def _say(message: str, hint: str | None = None) -> None:
    click.echo(f"{message}\nhint: {hint}" if hint else message, err=True)


def _usage(error: click.ClickException) -> int:
    message = error.format_message()
    context = getattr(error, "ctx", None)
    hint = f"`{context.command_path} --help` lists what can be given" if context is not None else None
    _say(f"error: {message[:1].lower()}{message[1:].rstrip('.')}", hint)
    return error.exit_code


def _unexpected(error: BaseException) -> int:
    summary = f"error: unexpected {type(error).__name__}: {' '.join(str(error).split())[:300] or 'no message'}"
    text = _debug_text(error)
    try:
        path = _write_debug(text)
    except OSError:
        _say(f"{text}\n{summary}", "this is a bug in autotuner: please report it with the traceback above")
        return 1
    _say(summary, f"this is a bug in autotuner: please report it with `{path}` (read it first: it holds the command line)")
    return 1


def _debug_text(error: BaseException) -> str:
    head = f"autotuner {autotuner.__version__}, Python {platform.python_version()}, {platform.platform()}\ncommand: {sys.argv}\n\n"
    return head + "".join(traceback.format_exception(error))


def _write_debug(text: str) -> Path:
    """Write the traceback where only this user reads it: the state folder, or a temporary file when that cannot be written."""
    name = time.strftime("crash-%Y%m%dT%H%M%S-") + f"{os.getpid()}.txt"
    try:
        folder = Path(os.environ.get("AUTOTUNER_STATE_DIR") or default_state_dir()) / "crashes"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except (OSError, ImportError):
        descriptor, made = tempfile.mkstemp(prefix="autotuner-", suffix=".txt")
        path = Path(made)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return path
