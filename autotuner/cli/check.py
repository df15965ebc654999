"""Commands about documents: ``check``, ``schema`` and ``init``."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import click


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option("--json", "as_json", is_flag=True, help="Print the problems as JSON on standard output.")
def check(files: tuple[str, ...], as_json: bool) -> None:  # noqa: FBT001 - click passes flags by name
    """Check documents and say everything that is wrong with them, with line and column.

    Exits with 2 when a file is invalid; warnings alone do not make it so.
    """
    from autotuner.documents import check_file

    problems = {file: check_file(file) for file in dict.fromkeys(files)}
    found = [problem for listed in problems.values() for problem in listed]
    errors = sum(problem.severity == "error" for problem in found)
    if as_json:
        from dataclasses import asdict

        click.echo(
            json.dumps({"valid": errors == 0, "files": list(problems), "problems": [asdict(problem) for problem in found]}, indent=2)
        )
    else:
        for problem in found:
            click.echo(str(problem), err=True)
        click.echo(_summary(len(problems), errors, len(found) - errors), err=errors > 0)
    if errors:
        sys.exit(2)


def _summary(files: int, errors: int, warnings: int) -> str:
    counts = [_counted(number, word) for number, word in ((errors, "error"), (warnings, "warning")) if number]
    return f"{_counted(files, 'file')} checked: {', '.join(counts) or 'no problems'}"


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


@click.command()
@click.argument("kind", type=click.Choice(["Host", "SearchSpace", "Workload", "Recommendation"], case_sensitive=False))
def schema(kind: str) -> None:
    """Print the JSON Schema of a kind of document, for editors and other tools."""
    from autotuner.documents import schema_text

    click.echo(schema_text(kind), nl=False)


@click.command()
@click.argument("folder", default=".", metavar="[DIR]", type=click.Path(file_okay=False, path_type=Path))
def init(folder: Path) -> None:
    """Lay out hosts/, search_spaces/, workloads/ and recommendations/ with commented examples.

    Files that are there already are left as they are.
    """
    from autotuner.documents import scaffold, scaffold_files

    written = scaffold(folder)
    skipped = [path for path in scaffold_files(folder) if path not in written]
    for path in written:
        click.echo(f"wrote    {path}")
    for path in skipped:
        click.echo(f"kept     {path} (it was there already)")
    click.echo(f"{_counted(len(written), 'file')} written, {len(skipped)} kept", err=True)
    if written:
        there = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
        click.echo(f"next: {there}autotuner tune simulated-b300 --space sglang-kimi-k26 --dry-run", err=True)
