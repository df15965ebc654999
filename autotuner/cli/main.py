"""Entry point: the commands, each loaded only when it is asked for."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

import autotuner
from autotuner.cli import failures
from autotuner.cli.options import ErrorForm, Options, default_state_dir
from autotuner.errors import UsageError
from autotuner.model.near import near


@dataclass(frozen=True, slots=True)
class _Entry:
    """A command that is not loaded yet: where it is, and its line in ``autotuner --help``."""

    module: str
    summary: str


COMMANDS: dict[str, _Entry] = {
    "init": _Entry("check", "Lay out hosts/, search_spaces/, workloads/ and recommendations/ with commented examples."),
    "check": _Entry("check", "Check documents and say everything that is wrong with them, with line and column."),
    "schema": _Entry("check", "Print the JSON Schema of a kind of document, for editors and other tools."),
    "doctor": _Entry("doctor", "Look a host over and say what would keep it from being tuned."),
    "tune": _Entry("tune", "Search a host for its best configurations and write the recommendations."),
    "bench": _Entry("bench", "Measure any OpenAI-compatible endpoint: a matrix, a rate, or a replayed log."),
    "status": _Entry("status", "Show the studies, how far they are and where their files lie."),
    "trials": _Entry("status", "List the trials of a study."),
    "recommend": _Entry("recommend", "Print or write what a study recommends."),
    "service": _Entry("service", "Show, stop, start or restore what serves on a host, and read its logs."),
}
"""Every command, in the order of a night. A test holds the summaries equal to those of the commands themselves."""


class LazyGroup(click.Group):
    """A group that imports a command's module only to run it or to show its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of a night."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, loaded; ``None`` when there is none of that name."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(f"autotuner.cli.{entry.module}"), cmd_name)
        if not isinstance(command, click.Command):
            raise TypeError(f"autotuner.cli.{entry.module}.{cmd_name} is not a command but {command!r}")
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown command is answered with the nearest known one."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            meant = near(name, COMMANDS)
            raise UsageError(
                f"no such command `{name}`",
                hint=f"did you mean `autotuner {meant}`?" if meant else "`autotuner --help` lists the commands",
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "AUTOTUNER",
        "show_default": True,
        "max_content_width": 100,
    },
    epilog="Every option can be set in the environment: AUTOTUNER_STATE_DIR, AUTOTUNER_TUNE_UNTIL … "
    "Exit codes: 0 done, 1 failed, 2 wrong usage or invalid file, 3 nothing feasible, 4 refused, 5 host not restored, 130 interrupted.",
)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    show_default="$STATE_DIRECTORY, else the user's state folder",
    help="Folder of studies and records.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="warning",
    help="Least severe log lines to show on standard error.",
)
@click.option("--no-color", is_flag=True, help="Print without colours, as NO_COLOR does.")
@click.version_option(autotuner.__version__, "-V", "--version", prog_name="autotuner", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, state_dir: Path | None, log_level: str, *, no_color: bool) -> None:
    """Find the serving configuration that is best for each workload on a GPU host.

    Results go to standard output, everything else to standard error.
    """
    color = not (no_color or os.environ.get("NO_COLOR"))
    ctx.color = None if color else False
    form = ctx.obj if isinstance(ctx.obj, ErrorForm) else ErrorForm()
    ctx.obj = Options(state_dir=(state_dir or default_state_dir()).absolute(), log_level=log_level, color=color, errors=form)
    _start_logging(ctx.obj)


def _start_logging(options: Options) -> None:
    from autotuner import telemetry

    telemetry.configure(options.log_level, color=options.color)


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; a command's own return value is its exit code when it is a number."""
    form = ErrorForm()
    try:
        code = cli.main(None if argv is None else list(argv), prog_name="autotuner", standalone_mode=False, obj=form)
        sys.stdout.flush()  # here, where a full disk still becomes a message
    except SystemExit as error:  # click's own end when the reader of a pipe went away
        return error.code if isinstance(error.code, int) else 1
    except BrokenPipeError:
        return 1
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except BaseException as error:  # noqa: BLE001 - the last door: everything ends as a message and an exit code
        return failures.report(error, form)
    return code if isinstance(code, int) else 0


def main() -> None:
    """Entry point of the ``autotuner`` command."""
    _open_closed_streams()
    code = run()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # told already; what is left would be tried, and told, again when the interpreter ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or 1
    sys.exit(code)


def _open_closed_streams() -> None:
    """Lead what the caller closed (``2>&-``) nowhere: else the next file that is opened, a database say, would become standard error."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - positional only
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
