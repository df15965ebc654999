"""Starts a server detached, keeps its log bounded, and writes down how it ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import detach, files, processes, session

LOG_LIMIT = 64 << 20
LOG_HEAD = 2 << 20
LOG_TAIL = 16 << 20
KEPT = 10
"""Folders of ended servers that are kept for a look at their logs."""

_FALLOC_PUNCH_HOLE_KEEP_SIZE = 3
_LOOK_S = 1.0


FENCED = {"error": "the session's lease was lost", "kind": "fenced"}
"""The answer to whoever wants something done for a session that has given the host back."""


@contextlib.contextmanager
def permitted(folder: Path, token: str | None = None) -> Iterator[dict[str, Any] | None]:
    """Hold a restore of the session back while something is done for it; yields its snapshot, or ``None`` when it has lost the host."""
    if not folder.is_dir():
        yield None
        return
    with files.locked_file(folder / "start.lock"):
        snapshot = session.snapshot_of(folder, token)
        yield snapshot if snapshot is not None and session.live(folder, snapshot["token"]) else None


def start(request: dict[str, Any]) -> dict[str, Any]:
    """Start a server from ``{state, session, name, mark, argv, env, cwd, secrets}``; the reply is its record, or ``{"error": …}``.

    ``mark`` tells this start from every other one: the same again is answered with the same record.
    """
    guarded = Path(request["session"])
    with permitted(guarded) as snapshot:
        return FENCED if snapshot is None else _start(request)


def stop(request: dict[str, Any]) -> dict[str, Any]:
    """End the server ``{state, name, timeout_s}`` and everything that it started; idempotent."""
    record = files.read_json(Path(request["state"]) / "services" / request["name"] / "started.json")
    return {"left": [] if record is None else end_record(record, float(request["timeout_s"]))}


def end_record(record: dict[str, Any], grace_s: float) -> list[int]:
    """End a started server and then its supervisor; returns the pids that would not die."""
    left = processes.end(lambda: members(record), grace_s=grace_s)
    supervisor = (int(record["supervisor"]), int(record["supervisor_started"]))
    if not left:
        processes.end(lambda: {supervisor} if processes.alive(*supervisor) else set(), grace_s=5.0)
    return sorted(pid for pid, _ in left)


def members(record: dict[str, Any]) -> set[tuple[int, int]]:
    """Every running process of a started server as (pid, started): its session, what carries its mark, and all below them."""
    running = processes.table()
    leader, started = int(record["pid"]), int(record["started"])
    supervisor = int(record["supervisor"])
    roots = processes.in_session(leader, started, running)
    roots |= {pid for pid in running if processes.marked(pid, processes.SERVICE_MARK, record["mark"])}
    if processes.alive(supervisor, int(record["supervisor_started"])):
        roots.add(supervisor)
    found = processes.descendants(roots, running) - {supervisor} - processes.protected(running)
    return {(pid, running[pid].started) for pid in found}


def records(state: Path) -> list[dict[str, Any]]:
    """Records of all servers that were started under this state folder."""
    found = (files.read_json(path) for path in sorted((state / "services").glob("*/started.json")))
    return [record for record in found if record is not None]


def bound(log: int, head: int = LOG_HEAD, tail: int = LOG_TAIL, limit: int = LOG_LIMIT) -> None:
    """Give the middle of a long log back to the file system: its first and last part stay, and so do all offsets.

    Where holes cannot be punched the log is emptied instead.
    """
    status = os.fstat(log)
    if status.st_blocks * 512 <= limit:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    length = status.st_size - tail - head
    done = libc.fallocate(log, _FALLOC_PUNCH_HOLE_KEEP_SIZE, ctypes.c_longlong(head), ctypes.c_longlong(length))
    if done != 0:
        os.ftruncate(log, 0)


def _start(request: dict[str, Any]) -> dict[str, Any]:
    services = Path(request["state"]) / "services"
    folder = services / request["name"]
    record = files.read_json(folder / "started.json")
    if record is not None and record["mark"] == request["mark"]:
        return record
    if record is not None and members(record):
        return {"error": f"{request['name']} runs already with pid {record['pid']}"}
    secrets, missing = resolved(request.get("secrets", {}))
    if missing:
        return {"error": "; ".join(missing), "kind": "secret"}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    _prune(services)
    return _supervised(request, folder, secrets)


def _supervised(request: dict[str, Any], folder: Path, secrets: dict[str, str]) -> dict[str, Any]:
    return detach.detached(lambda report: _supervise(request, folder, secrets, report))


def _supervise(request: dict[str, Any], folder: Path, secrets: dict[str, str], report: Callable[[dict[str, Any]], None]) -> None:
    detach.become_subreaper()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    inherited = {name: value for name, value in os.environ.items() if name not in processes.MARKS}
    environment = {**inherited, **request["env"], **secrets, **_marks(request)}
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _execute(request, environment, log, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        failed = file.read().decode()
    if failed:
        os.waitpid(pid, 0)
        report({"error": failed, "kind": "exec"})
        return
    report(_recorded(request, folder, pid))
    _attend(pid, folder, log)


def _marks(request: dict[str, Any]) -> dict[str, str]:
    return {processes.SERVICE_MARK: request["mark"], processes.SESSION_MARK: request["session"]}


def _recorded(request: dict[str, Any], folder: Path, pid: int) -> dict[str, Any]:
    server, own = processes.read(pid), processes.read(os.getpid())
    record = {
        "name": request["name"],
        "pid": pid,
        "started": server.started if server else 0,
        "supervisor": os.getpid(),
        "supervisor_started": own.started if own else 0,
        "mark": request["mark"],
        "session": request["session"],
        "log": str(folder / "log"),
    }
    try:
        files.write_json(folder / "started.json", record)
    except OSError:  # a server that nobody knows of must not run
        os.kill(pid, signal.SIGKILL)
        raise
    return record


def _execute(request: dict[str, Any], environment: dict[str, str], log: int, writer: int) -> None:
    """Become the server; never returns."""
    where = request["cwd"]
    try:
        os.setsid()
        detach.plain_signals()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(where)
        where = request["argv"][0]
        os.execvpe(request["argv"][0], request["argv"], environment)  # noqa: S606 - an argument list, no shell
    except OSError as error:
        os.write(writer, f"{where}: {error.strerror}".encode())
    finally:
        os._exit(127)


def _attend(pid: int, folder: Path, log: int) -> None:
    """Reap until nothing of the server is left. How the server ended is on disk before its entry leaves ``/proc``."""
    while True:
        signal.sigtimedwait({signal.SIGCHLD}, _LOOK_S)
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            while ended is not None:
                if ended.si_pid == pid:
                    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                    files.write_json(folder / "ended.json", {"exit_code": code})
                os.waitpid(ended.si_pid, 0)
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            return
        bound(log)


def resolved(references: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Values of ``env:NAME`` and ``file:PATH`` references, and a sentence for each that has none."""
    values: dict[str, str] = {}
    missing: list[str] = []
    for name, reference in references.items():
        kind, _, where = reference.partition(":")
        try:
            values[name] = os.environ[where] if kind == "env" else Path(where).read_text().rstrip("\n")
        except KeyError:
            missing.append(f"secret {name}: the variable {where} is not set on the host")
        except OSError as error:
            missing.append(f"secret {name}: {where}: {error.strerror}")
    return values, missing


def _prune(services: Path) -> None:
    """Remove the oldest folders of ended servers."""
    ended = sorted(services.glob("*/ended.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in ended[KEPT:]:
        record = files.read_json(path.parent / "started.json")
        if record is None or not members(record):
            shutil.rmtree(path.parent, ignore_errors=True)
