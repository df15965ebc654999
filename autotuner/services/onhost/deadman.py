"""The timer of systemd that brings production back when the tuner is silent, and its service, which also runs after a reboot.

Both have names of this session alone, so that systemd reads them without being told to reload: a reload would make changes effective
that other people have not finished.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from pathlib import Path
from typing import Any

from . import files, session, systemctl
from .revertable import UNIT_FOLDER

_WANTS = UNIT_FOLDER / "multi-user.target.wants"
_TOKEN = re.compile(r"[A-Za-z0-9-]{1,64}")
_SLACK_S = 120.0
_WAIT_S = 10.0
_POLL_S = 0.1

_SERVICE = """[Unit]
Description=Bring back what served before autotuner tuned port {port}
ConditionPathExists=|{folder}/snapshot.json
ConditionPathExists=|{spare}
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart={command}
Restart=on-failure
RestartSec=5
TimeoutStartSec={patience:.0f}

[Install]
WantedBy=multi-user.target
"""
_TIMER = """[Unit]
Description=Bring back what served before autotuner tuned port {port}, when it is silent
StartLimitIntervalSec=0

[Timer]
OnActiveSec={ttl:.3f}
AccuracySec=100ms
RemainAfterElapse=no
Unit={name}.service
"""


def unit_name(folder: Path, token: str) -> str:
    """Service and timer without their endings."""
    return f"autotuner-restore-{folder.name}-{token[:8]}"


def ensure(folder: Path, snapshot: dict[str, Any]) -> dict[str, Any]:
    """Install service and timer, start the timer, and read back when it will fire. Idempotent; ``{"error": …}`` when it cannot be."""
    if not _TOKEN.fullmatch(snapshot["token"]):
        return {"error": f"{snapshot['token']!r} is no token", "kind": "token"}
    try:
        _install(folder, snapshot)
    except OSError as error:
        remove(folder, snapshot["token"])
        kind = "full" if error.errno in files.FULL else "timer"
        return {"error": f"{error.filename or UNIT_FOLDER}: {error.strerror}", "errno": error.errno, "kind": kind}
    reply = _restart_timer(folder, snapshot) or _read_back(folder, snapshot)
    if "error" in reply:
        remove(folder, snapshot["token"])
    return reply


def renew(folder: Path, snapshot: dict[str, Any]) -> dict[str, Any]:
    """The whole time to live again, from now."""
    return rearm(folder, snapshot) if session.live(folder, snapshot["token"]) else {}


def rearm(folder: Path, snapshot: dict[str, Any]) -> dict[str, Any]:
    """The same whether or not the session may still act; units that somebody removed are installed anew."""
    reply = _restart_timer(folder, snapshot)
    if "error" not in reply:
        return reply
    with contextlib.suppress(OSError):
        _install(folder, snapshot)
    return _restart_timer(folder, snapshot)


def armed(folder: Path, snapshot: dict[str, Any]) -> bool:
    """Whether the timer runs, or the restore itself."""
    name = unit_name(folder, snapshot["token"])
    return _next(name) is not None or _busy(name)


def remaining_s(folder: Path, snapshot: dict[str, Any]) -> float | None:
    """Seconds until the timer fires."""
    due = _next(unit_name(folder, snapshot["token"]))
    return None if due is None else due - time.monotonic()


def ask(folder: Path, snapshot: dict[str, Any]) -> dict[str, Any]:
    """Have PID 1 run the restore now; it goes on without the caller."""
    name = unit_name(folder, snapshot["token"])
    for attempt in (1, 2):
        asked = systemctl.systemctl("start", "--no-block", "--", f"{name}.service")
        if asked.code == 0:
            return {}
        if attempt == 1:
            with contextlib.suppress(OSError):
                _install(folder, snapshot)
    return {"error": f"{name}.service cannot be started: {asked.err}", "kind": "timer"}


def remove(folder: Path, token: str) -> None:
    """Stop the timer and remove both units and their program. The service may be what runs this."""
    name = unit_name(folder, token)
    for path in (_program(folder), _WANTS / f"{name}.service", UNIT_FOLDER / f"{name}.timer", UNIT_FOLDER / f"{name}.service"):
        with contextlib.suppress(OSError):
            path.unlink()
    systemctl.systemctl("stop", "--no-block", "--", f"{name}.timer")
    with contextlib.suppress(OSError):
        files.sync_folder(UNIT_FOLDER)


def gone(folder: Path, token: str) -> bool:
    """Whether neither timer nor service runs any more; waits for a moment until it is so."""
    name = unit_name(folder, token)
    deadline = time.monotonic() + _WAIT_S
    while _next(name) is not None or _busy(name):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    systemctl.systemctl("reset-failed", "--", f"{name}.service")
    return True


def _program(folder: Path) -> Path:
    """The program that restores, beside the spare copy of the snapshot."""
    return session.spare(folder).with_suffix(".pyz")


def _install(folder: Path, snapshot: dict[str, Any]) -> None:
    name = unit_name(folder, snapshot["token"])
    program = _program(folder)
    if not program.exists():
        files.write_bytes(program, Path(sys.argv[0]).read_bytes(), 0o600)
    command = [sys.executable, "-E", "-s", "-S", str(program), "restore", str(folder)]
    values = {
        "port": int(snapshot["port"]),
        "folder": str(folder).replace("%", "%%"),
        "spare": str(session.spare(folder)).replace("%", "%%"),
        "command": " ".join(map(systemctl.word, command)),
        "patience": float(snapshot["stop_timeout_s"]) + float(snapshot["ready_timeout_s"]) + _SLACK_S,
        "ttl": float(snapshot["ttl_s"]),
        "name": name,
    }
    _WANTS.mkdir(mode=0o755, exist_ok=True)
    for path, template in ((UNIT_FOLDER / f"{name}.service", _SERVICE), (UNIT_FOLDER / f"{name}.timer", _TIMER)):
        text = template.format(**values).encode()
        if not path.exists() or path.read_bytes() != text:
            files.write_bytes(path, text, 0o644)
    link = _WANTS / f"{name}.service"
    with contextlib.suppress(FileExistsError):
        link.symlink_to(UNIT_FOLDER / f"{name}.service")
    files.sync_folder(_WANTS)


def _restart_timer(folder: Path, snapshot: dict[str, Any]) -> dict[str, Any]:
    name = unit_name(folder, snapshot["token"])
    asked = systemctl.systemctl("restart", "--", f"{name}.timer")
    if asked.code == 0 and _next(name) is not None:
        return {}
    return {"error": f"{name}.timer does not run: {asked.err or 'it has no next time'}", "kind": "timer"}


def _read_back(folder: Path, snapshot: dict[str, Any]) -> dict[str, Any]:
    name = unit_name(folder, snapshot["token"])
    found = systemctl.show(f"{name}.service", "LoadState", "UnitFileState")
    if found == {"LoadState": "loaded", "UnitFileState": "enabled"}:
        return {}
    return {"error": f"{name}.service is not as it was written: {found}", "kind": "timer"}


def _next(name: str) -> float | None:
    """When the timer fires, on the monotonic clock; ``None`` when it does not."""
    found = systemctl.show(f"{name}.timer", "ActiveState", "NextElapseUSecMonotonic")
    return systemctl.parse_span(found.get("NextElapseUSecMonotonic", "")) if found.get("ActiveState") == "active" else None


def _busy(name: str) -> bool:
    return systemctl.state(f"{name}.service").get("ActiveState") not in systemctl.ENDED
