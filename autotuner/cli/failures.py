"""Failures: how an exception becomes a message for a person and an exit code.

The form is always the same, on standard error: ``error: what failed``, then ``hint: what to try``. A traceback is never shown for
anything foreseeable; for everything else it goes to a file whose path is shown.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import click

import autotuner
from autotuner import disk
from autotuner.cli.options import ErrorForm, default_state_dir
from autotuner.errors import AutotunerError, Interrupted, InvalidDocument

INTERRUPTED = Interrupted.exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An error as a person reads it."""

    message: str
    hint: str | None = None
    code: int
    title: str = "error: "


def report(error: BaseException, form: ErrorForm | None = None) -> int:
    """Say on standard error what went wrong; returns the exit code. Where the command prints JSON events, so is the error."""
    told = _told(error)
    if form is not None and form.json:
        _say(json.dumps(_event(told, form), ensure_ascii=False))
    else:
        _say(told.title + told.message + (f"\nhint: {told.hint}" if told.hint else ""))
    return told.code


def _event(told: Told, form: ErrorForm) -> dict[str, object]:
    return {"event": "Error", "message": told.message, "hint": told.hint, "exit_code": told.code, "simulated": form.simulated}


def _told(error: BaseException) -> Told:
    match error:
        case InvalidDocument():
            return Told(message=str(error), code=error.exit_code, title="")
        case AutotunerError():
            return Told(message=error.message, hint=error.hint, code=error.exit_code)
        case click.ClickException():
            return _usage(error)
        case click.Abort() | KeyboardInterrupt():
            return Told(message="interrupted", code=INTERRUPTED, title="")
        case OSError() if disk.foreseen(error):
            return _told(disk.refused("use", error.filename or "a file or standard output", error))
        case _:
            return _unexpected(error)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # where standard error takes nothing, the exit code still says it
        click.echo(text, err=True)


def _usage(error: click.ClickException) -> Told:
    message = error.format_message()
    context = getattr(error, "ctx", None)
    hint = f"`{context.command_path} --help` lists what can be given" if context is not None else None
    return Told(message=f"{message[:1].lower()}{message[1:].rstrip('.')}", hint=hint, code=error.exit_code)


def _unexpected(error: BaseException) -> Told:
    summary = f"unexpected {type(error).__name__}: {' '.join(str(error).split())[:300] or 'no message'}"
    text = _debug_text(error)
    try:
        path = _write_debug(text)
    except OSError:
        _say(text)
        return Told(message=summary, hint="this is a bug in autotuner: please report it with the traceback above", code=1)
    hint = f"this is a bug in autotuner: please report it with `{path}` (read it first: it holds the command line)"
    return Told(message=summary, hint=hint, code=1)


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
