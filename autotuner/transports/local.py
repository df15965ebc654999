"""LocalTransport: the tuner runs on the host itself."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from autotuner import disk
from autotuner.errors import AutotunerError, TransportError
from autotuner.transports.base import Completed, Stream

NOT_FOUND = 127
"""Return code of a program that is not there, as a shell gives it."""
_CANNOT_RUN = 126
_STREAM_BYTES = 1 << 16
_STREAM_PATIENCE_S = 2.0


class LocalTransport:
    """Acts on this machine through subprocesses and plain files."""

    address = "local"
    interruptions = 0
    rtt_s: float | None = None

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

    def write(self, path: str, data: bytes, *, mode: int = 0o644, owner: str | None = None) -> None:
        """Write a file atomically and durably, and make the folders above it."""
        target = Path(path)
        with disk.refusals("write", path):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                disk.replace(target, data, mode=mode, owner=owner)
            except LookupError as error:
                raise AutotunerError(f"cannot give {path} to {owner}: {error}", hint="create the user and group first") from error

    def exists(self, path: str) -> bool:
        """Whether anything is at ``path``."""
        return os.path.lexists(path)

    def remove(self, path: str) -> None:
        """Remove a file; nothing happens when it is not there."""
        with disk.refusals("remove", path):
            Path(path).unlink(missing_ok=True)

    def stream(self, argv: Sequence[str]) -> Stream:
        """Start a program and talk to it. Raises ``TransportError`` when it cannot be started."""
        return LocalStream(argv)

    def fresh(self) -> LocalTransport:
        """Another one; there is no connection to be fresh."""
        return LocalTransport()

    def close(self) -> None:
        """Nothing is held."""


class LocalStream:
    """A program on this machine that is talked to. What it says on its standard error is dropped."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._name = argv[0]
        try:
            self._process = subprocess.Popen(
                list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, bufsize=0
            )
        except OSError as error:
            raise TransportError(f"local: {argv[0]} cannot be started: {error.strerror}", hint="check that it is installed") from error
        self._input, self._output = _pipe(self._process.stdin), _pipe(self._process.stdout)
        os.set_blocking(self._output.fileno(), False)

    def fileno(self) -> int:
        """The descriptor that becomes readable when there is output, or when it has ended."""
        return self._output.fileno()

    def write(self, data: bytes) -> None:
        """All of ``data`` to its standard input. Raises ``TransportError`` when it is gone."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._input.write(rest) or 0 :]
        except (OSError, ValueError) as error:
            raise TransportError(f"local: {self._name} ended", hint="run it by hand to see why") from error

    def read(self) -> bytes | None:
        """Output that is there now without waiting: ``None`` when there is none yet, empty when it has ended."""
        return self._output.read(_STREAM_BYTES)

    def close(self) -> None:
        """Close its input and let go of it: what does not end by that is killed. Idempotent."""
        with contextlib.suppress(OSError):
            self._input.close()
        if self._process.returncode is None:
            try:
                self._process.wait(_STREAM_PATIENCE_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._output.close()


def _pipe(end: IO[bytes] | None) -> io.FileIO:
    if not isinstance(end, io.FileIO):
        raise TypeError(end)  # never: asked for as an unbuffered pipe
    return end


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
