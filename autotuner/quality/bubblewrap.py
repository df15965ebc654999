"""The sandbox of bubblewrap: namespaces of its own for everything, nothing in them but /usr, and limits on every process."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from autotuner.quality import seccomp
from autotuner.quality.sandbox import (
    CPU_S,
    MEMORY_BYTES,
    OPEN_FILES,
    OUTPUT_BYTES,
    PATH,
    PROCESSES,
    SCRATCH_BYTES,
    WALL_S,
    Ended,
)

_UID = 64917
"""Among those that systemd keeps for users that come and go: nobody's files are its own. Root inside would still be root outside."""
_INSIDE_UID = 65534
_GATE = "/gate"
_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
_ASK_S = 10.0


class Bubblewrap:
    """Runs code through ``bwrap``. Construction raises ``LookupError`` with what is missing."""

    def __init__(self) -> None:
        needed = ("bwrap", "prlimit", *(("setpriv",) if os.geteuid() == 0 else ()))
        missing = [name for name in needed if shutil.which(name, path=f"{PATH}:/usr/sbin:/sbin") is None]
        if missing:
            raise LookupError(f"bubblewrap: {' and '.join(missing)} not installed")
        python = next((path for path in _PYTHONS if Path(path).exists()), None)
        if python is None:
            raise LookupError(f"bubblewrap: no Python at {' or '.join(_PYTHONS)}")
        self._python = python
        self._filter = seccomp.program()
        if self._filter is None:
            raise LookupError("bubblewrap: no filter of system calls is known for this kind of processor")
        self.name = f"bubblewrap {_version()}"

    def run(self, programs: Sequence[tuple[str, bytes]], arguments: Sequence[str]) -> Ended:
        """As in ``Sandbox``. The programs go in through open files, so that nothing of this machine's disk needs to be seen in there."""
        with contextlib.ExitStack() as stack:
            given = [(name, stack.enter_context(_holding(content))) for name, content in programs]
            rules = stack.enter_context(_holding(self._filter or b""))
            output = stack.enter_context(tempfile.TemporaryFile())
            argv = self._argv(given, rules, [argument.format(gate=_GATE) for argument in arguments])
            try:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[file.fileno() for file in (*(file for _, file in given), rules)],
                    env={"PATH": PATH},  # what is not there cannot be read from /proc/1/environ
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                return Ended(how="not-started", output=b"", detail=str(error))
            how = _await(process)
            output.seek(0)
            return Ended(how=how, output=output.read(OUTPUT_BYTES), detail=_detail(how, process.returncode))

    def _argv(self, given: Sequence[tuple[str, IO[bytes]]], rules: IO[bytes], arguments: Sequence[str]) -> list[str]:
        drop = ["setpriv", f"--reuid={_UID}", f"--regid={_UID}", "--clear-groups", "--no-new-privs", "--"] if os.geteuid() == 0 else []
        # Processes are counted inside, where those of the same user elsewhere do not count.
        outer = [f"--as={MEMORY_BYTES}", f"--fsize={OUTPUT_BYTES}", f"--nofile={OPEN_FILES}", "--core=0", f"--cpu={CPU_S}", "--"]
        inner = ["prlimit", f"--nproc={PROCESSES}", "--", self._python, "-I", "-S", f"{_GATE}/{given[0][0]}", *arguments]
        files = [part for name, file in given for part in ("--ro-bind-data", str(file.fileno()), f"{_GATE}/{name}")]
        return [
            *drop,
            *("prlimit", *outer),
            *("bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--uid", str(_INSIDE_UID), "--gid", str(_INSIDE_UID)),
            *("--cap-drop", "ALL", "--as-pid-1", "--die-with-parent", "--new-session", "--clearenv", "--setenv", "PATH", PATH),
            *_system(),
            *("--proc", "/proc", "--dev", "/dev", "--size", str(SCRATCH_BYTES), "--tmpfs", "/tmp"),  # noqa: S108 - in there
            *files,
            # What is mounted for devices and for the root has no size of its own: memory without a limit, while it can be written.
            *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--seccomp", str(rules.fileno()), "--"),  # noqa: S108
            *inner,
        ]


def _system() -> Iterator[str]:
    """/usr, and the names in the root that lead into it, or are folders of their own on older systems."""
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))


@contextlib.contextmanager
def _holding(content: bytes) -> Iterator[IO[bytes]]:
    """An open file without a name, at its beginning."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield file


def _await(process: subprocess.Popen[bytes]) -> str:
    """Wait until it ends, or end it; the namespace ends with its first process."""
    try:
        process.wait(timeout=WALL_S)
    except subprocess.TimeoutExpired:
        return "timeout"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return "finished" if process.returncode == 0 else "killed"


def _detail(how: str, code: int) -> str:
    if how == "timeout":
        return f"not done after {WALL_S:.0f} s"
    if how == "finished":
        return ""
    # A shell's way of telling a signal, which bwrap follows.
    number = -code if code < 0 else code - 128
    name = signal.Signals(number).name if number in signal.valid_signals() else ""
    return f"ended by {name}" if name else f"ended with status {code}"


def _version() -> str:
    try:
        said = subprocess.run(
            ["bwrap", "--version"], capture_output=True, text=True, timeout=_ASK_S, check=False, env={"PATH": PATH}
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"[\d.]+", said)
    return found[0] if found else ""
