"""Writes docs/cli.md from the commands themselves; ``--check`` only says whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from autotuner.cli.main import COMMANDS, cli

TARGET = Path(__file__).with_name("cli.md")
WIDTH = 100

HEAD = """# Command line

Written by `make docs` from the commands themselves; do not edit.

Results go to standard output, everything else to standard error. Every option can be set in the environment: `AUTOTUNER_STATE_DIR`
for a global one, `AUTOTUNER_TUNE_UNTIL` for one of `tune`. Completion for bash:
`eval "$(_AUTOTUNER_COMPLETE=bash_source autotuner)"` (`zsh_source`, `fish_source` for the others).

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed: also a host that cannot be reached or refuses the login, a lease that was lost, a person who acted on the host by hand |
| 2 | wrong usage, an invalid file, or what a document names on this machine and cannot be used: a key, a passphrase, a password |
| 3 | the search ended and nothing was feasible |
| 4 | refused: another fingerprint, a lease that someone holds, a port that someone else owns |
| 5 | the host could not be brought back to what it served before; the message says how to do it by hand |
| 130 | interrupted; what was measured is kept |
"""


def render() -> str:
    """The whole document."""
    settings: dict[str, Any] = {**cli.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    with click.Context(cli, info_name="autotuner", **settings) as root:
        sections = [HEAD, _section("autotuner", cli.get_help(root))]
        for name in COMMANDS:
            command = cli.get_command(root, name)
            if command is None:
                raise LookupError(f"`{name}` is listed but cannot be loaded")
            with click.Context(command, info_name=name, parent=root, **settings) as context:
                sections.append(_section(f"autotuner {name}", command.get_help(context)))
                sections += _parts(command, context, settings)
    return "\n".join(sections)


def _parts(group: click.Command, context: click.Context, settings: dict[str, Any]) -> list[str]:
    """The sections of a group's own commands, each with the arguments that stand before it."""
    if not isinstance(group, click.Group):
        return []
    before = " ".join(parameter.make_metavar(context) for parameter in group.params if isinstance(parameter, click.Argument))
    found = []
    for name, command in group.commands.items():
        with click.Context(command, info_name=name, parent=context, **settings) as inner:
            found.append(_section(f"autotuner {group.name} {before} {name}", command.get_help(inner)))
    return found


def _section(title: str, text: str) -> str:
    body = "\n".join(line.rstrip() for line in text.splitlines())
    return f"## {title}\n\n```text\n{body}\n```\n"


def main(arguments: list[str]) -> int:
    """Write or check the document; returns the exit code."""
    text = render()
    if "--check" not in arguments:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"error: {TARGET.name} is not what the commands say\nhint: `make docs` writes it anew\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
