"""The first program of every candidate's unit: it becomes what a file says, byte for byte, with nothing expanded."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from . import detach

CANNOT = 127


def become(path: str) -> int:
    """Read ``{argv, env, cwd}`` from the file, empty it, and become that program. Returns only when it cannot."""
    file = Path(path)
    try:
        task = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        sys.stderr.write(f"autotuner: {path}: {error}\n")
        return CANNOT
    # The folder is root's, so another user cannot remove the file; it is emptied, for it may hold secrets.
    os.truncate(path, 0)
    environment = {os.fsencode(name): os.fsencode(value) for name, value in {**os.environ, **task["env"]}.items()}
    argv = [os.fsencode(part) for part in task["argv"]]
    where = task["cwd"]
    try:
        os.chdir(where)
        where = task["argv"][0]
        detach.plain_signals()
        os.execvpe(argv[0], argv, environment)  # noqa: S606 - an argument list, no shell
    except OSError as error:
        sys.stderr.write(f"autotuner: {where}: {error.strerror}\n")
    return CANNOT
