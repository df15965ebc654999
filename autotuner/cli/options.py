"""Options: what holds for every command, as given on the command line or by ``AUTOTUNER_*``, and the kinds of values that options take."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import click


@dataclass(slots=True, kw_only=True)
class ErrorForm:
    """How an error of this command line is told; a command that prints JSON events has its errors told so as well."""

    json: bool = False
    simulated: bool | None = None
    """``None`` until the host is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Global options. Commands get them with ``@click.pass_obj``."""

    state_dir: Path
    """Studies, records and leases; may not exist yet."""
    log_level: str = "warning"
    color: bool = True
    """False with ``--no-color`` or when ``NO_COLOR`` is set to anything."""
    errors: ErrorForm = field(default_factory=ErrorForm, compare=False)


class Seconds(click.ParamType[float]):
    """A number of seconds within limits; neither ``nan`` nor ``inf`` is one."""

    name = "seconds"

    def __init__(self, low: float, high: float) -> None:
        self._low = low
        self._high = high

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or a ``BadParameter`` that names the limits."""
        try:
            number = float(str(value))
        except ValueError:
            number = math.nan
        if not self._low <= number <= self._high:  # false for nan
            self.fail(f"`{value}` is not a number of seconds from {self._low:g} to {self._high:g}", param, ctx)
        return number


class Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers from 1 to a limit, separated by commas; each once, in order."""

    name = "numbers"

    def __init__(self, high: int) -> None:
        self._high = high

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The numbers, or a ``BadParameter`` that names what is wrong."""
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(sorted({int(part) for part in str(value).split(",")}))
        except ValueError:
            numbers = ()
        if not numbers or numbers[0] < 1:
            self.fail(f"`{value}` is not a list of whole numbers above zero, like {param.default if param else '1,8'}", param, ctx)
        if numbers[-1] > self._high:
            self.fail(f"{numbers[-1]} is above the limit of {self._high}", param, ctx)
        return numbers


class JsonEventsCommand(click.Command):
    """A command whose errors are JSON once ``--json`` was given, also those that its other options cause."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does."""
        form = ctx.obj.errors if isinstance(ctx.obj, Options) else ErrorForm()
        form.json = "--json" in args
        rest = super().parse_args(ctx, args)
        form.json = bool(ctx.params.get("as_json"))
        return rest


def default_state_dir() -> Path:
    """Where studies are kept when nothing was given."""
    from autotuner.records import state_dir

    return state_dir()
