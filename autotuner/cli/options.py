"""Options: what holds for every command, as given on the command line or by ``AUTOTUNER_*``."""

from __future__ import annotations

import os
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
    """``$STATE_DIRECTORY`` (the first, where systemd gives several), else the platform's folder for a user's state."""
    given = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    if given:
        return Path(given)
    from platformdirs import user_state_path  # noqa: PLC0415 - only needed where nothing was given

    return user_state_path("autotuner")
