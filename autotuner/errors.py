"""Every error of the project, named by what the caller must do about it.

    AutotunerError                 1    a known failure; the message says what, where, the value and the limit
    ├── InvalidDocument            2    a file that a person wrote is wrong; all its problems are listed
    ├── UsageError                 2    an argument, or a key, secret or file that a document names on this machine, cannot be used
    ├── RetryTrial                 1    the wire failed, not the configuration: the same trial runs again, twice at most
    │   └── TransportError         1    the host could not be reached, or a command on it had no known outcome
    ├── InfeasibleConfig           –    the engine cannot run this configuration here: told to the study, never retried
    ├── StopStudy                  1    nothing measured on this host can be trusted now: a person is needed
    ├── NothingFeasible            3    the search ended and no configuration could be measured
    ├── Refused                    4    the host or the study must not be touched: other fingerprint, lease, foreign port owner
    ├── NotRestored                5    the host could not be brought back to what it served before
    └── Interrupted                130  a person asked to stop; what was measured is kept

A foreign exception is mapped to one of these in the room that owns the library. The number is the exit code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotuner.model.outcome import Failure


class AutotunerError(Exception):
    """A known failure: ``message`` says what happened, ``hint`` the next command or edit to try."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong in a file; ``line`` and ``column`` count from 1."""

    file: str
    line: int
    column: int
    message: str
    hint: str | None = None
    severity: str = "error"
    """``error`` or ``warning``; only errors make a file invalid."""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}: {self.severity}: {self.message}"
        return f"{where}\nhint: {self.hint}" if self.hint else where


class InvalidDocument(AutotunerError):
    """A file that a person wrote is wrong; ``problems`` lists everything found, in file order."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class UsageError(AutotunerError):
    """An argument cannot be used as given, nor can what a document names on this machine: a key, a secret, a file."""

    exit_code = 2


class RetryTrial(AutotunerError):
    """The wire failed, not the configuration: the same trial is tried again, twice at most."""


class TransportError(RetryTrial):
    """The host could not be reached, or a command there has no known outcome."""


class InfeasibleConfig(AutotunerError):
    """The engine cannot run this configuration on this host; told to the study, never retried."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause, hint=failure.remedy)
        self.failure = failure


class StopStudy(AutotunerError):
    """Nothing measured on this host can be trusted now; a person is needed."""


class NothingFeasible(AutotunerError):
    """The search ended and no configuration could be measured."""

    exit_code = 3


class Refused(AutotunerError):
    """The host or the study must not be touched as things stand."""

    exit_code = 4


class NotRestored(AutotunerError):
    """The host does not serve what it served before; the message says how to bring it back by hand."""

    exit_code = 5


class Interrupted(AutotunerError):
    """A person asked to stop; everything measured so far is kept."""

    exit_code = 130
