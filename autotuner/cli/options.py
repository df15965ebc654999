"""Options: what holds for every command, as given on the command line or by ``AUTOTUNER_*``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Global options. Commands get them with ``@click.pass_obj``."""

    state_dir: Path
    """Studies, records and leases; may not exist yet."""
    log_level: str = "warning"
    color: bool = True
    """False with ``--no-color`` or when ``NO_COLOR`` is set to anything."""


def default_state_dir() -> Path:
    """Where studies are kept when nothing was given."""
    from autotuner.records import state_dir

    return state_dir()
