"""LocalTransport: the tuner runs on the host itself."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from autotuner import disk
from autotuner.errors import TransportError
from autotuner.transports.base import Completed

NOT_FOUND = 127
"""Return code of a program that is not there, as a shell gives it."""
_CANNOT_RUN = 126


class LocalTransport:
    """Acts on this machine through subprocesses and plain files."""

    address = "local"

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        again: bool = False,
    ) -> Completed:
        """Run a command to its end, in a session of its own so that a Ctrl-C at the terminal does not reach it.

        On a timeout the whole process group is killed. Raises ``TransportError`` then.
        """
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **env} if env else None,
                cwd=cwd,
                start_new_session=True,
            )
        except OSError as error:
            return _could_not_start(argv, cwd, error)
        with _ended(process):
            try:
                out, err = process.communicate(stdin, timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
                raise TransportError(
                    f"{self.address}: {argv[0]} did not end within {timeout_s:g} s",
                    hint="the machine may be overloaded; run the command by hand to see what it waits for",
                ) from error
        return Completed(returncode=process.returncode, stdout=out.decode(errors="replace"), stderr=err.decode(errors="replace"))

    def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Bytes of a file. Raises ``FileNotFoundError`` when it is not there."""
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - /proc files too, without a stat before
                if offset:
                    file.seek(offset)
                return file.read(-1 if limit is None else limit)
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError) as error:
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from error
        except OSError as error:
            raise disk.refused("read", path, error) from error

    def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file atomically and durably, and make the folders above it."""
        target = Path(path)
        with disk.refusals("write", path):
            target.parent.mkdir(parents=True, exist_ok=True)
            disk.replace(target, data, mode=mode)

    def exists(self, path: str) -> bool:
        """Whether anything is at ``path``."""
        return os.path.lexists(path)

    def remove(self, path: str) -> None:
        """Remove a file; nothing happens when it is not there."""
        with disk.refusals("remove", path):
            Path(path).unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is held."""


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leave nothing of the command behind, whatever ends the wait for it (a timeout, Ctrl-C)."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        raise


def _could_not_start(argv: Sequence[str], cwd: str | None, error: OSError) -> Completed:
    if isinstance(error, FileNotFoundError) and cwd is not None and not Path(cwd).is_dir():
        return Completed(returncode=_CANNOT_RUN, stdout="", stderr=f"{cwd}: no such folder")
    code = NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_RUN
    return Completed(returncode=code, stdout="", stderr=f"{argv[0]}: {os.strerror(error.errno or 0)}")
