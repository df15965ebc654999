"""``boot.py FOLDER… -- PROGRAM ARG…``: run PROGRAM in cgroups and a session of its own; it dies with the process that started it.

Without cgroups of its own two hosts would share those of their units, and a stop on the one would reach the other.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Replace this process by PROGRAM."""
    parent = os.getppid()
    split = sys.argv.index("--")
    for folder in sys.argv[1:split]:
        Path(folder, "cgroup.procs").write_text(str(os.getpid()))
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked to be told
        sys.exit(1)
    program = sys.argv[split + 1 :]
    os.execvp(program[0], program)  # noqa: S606 - an argument list


main()
