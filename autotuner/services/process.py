"""ProcessManager: servers as plain processes, for containers and rented machines without an init system.

A supervisor on the host (``onhost/supervise.py``) is the server's parent: it survives the tuner and the connection, writes the server's
log and how it ended. The log is bounded: above 64 MiB on disk its middle is given back to the file system; the first 2 MiB (start-up), the
last 16 MiB and all offsets stay. The logs of the last ten servers are kept under the state folder.
"""

from __future__ import annotations

import json
import time
from typing import Any

from autotuner.errors import StopStudy
from autotuner.services.base import Handle, LaunchSpec, ServiceStatus
from autotuner.services.hostside import HostSide, not_started
from autotuner.services.onhost.processes import DEAD, parse_stat, service_mark

READ_LIMIT = 4 << 20
"""Bytes of log that one call of ``log`` returns at most."""

_STOP_SLACK_S = 40.0
_VERDICT_S = 2.0
_VERDICT_POLL_S = 0.02


class ProcessManager:
    """Starts, watches and stops servers on one host; needs only ``run``, ``read`` and ``write`` of its transport."""

    name = "process"

    def __init__(self, host_side: HostSide) -> None:
        self.host_side = host_side
        self._transport = host_side.transport
        self._started: dict[tuple[str, int], dict[str, Any]] = {}

    def start(self, spec: LaunchSpec, *, session: str) -> Handle:
        """Start the server detached, in a session of its own.

        Raises ``TransportError`` when the outcome is unknown, ``StopStudy`` when the program cannot be executed, a secret is missing or the
        session has lost the host.
        """
        request = {
            "state": self.host_side.state,
            "manager": self.name,
            "session": session,
            "name": spec.name,
            "mark": service_mark(spec.name),
            "argv": list(spec.argv),
            "env": dict(spec.env),
            "cwd": spec.cwd,
            "secrets": dict(spec.secrets),
        }
        reply = self.host_side.call("start", request)
        if "error" in reply:
            raise not_started(spec, reply)
        handle = Handle(name=spec.name, pid=reply["pid"], log=reply["log"])
        self._started[handle.name, handle.pid] = reply
        return handle

    def status(self, handle: Handle) -> ServiceStatus:
        """How it is now. Reads two small files; runs nothing on the host."""
        deadline = time.monotonic() + _VERDICT_S
        while True:
            ended = self._json(handle, "ended.json")
            if ended is not None:
                return ServiceStatus(running=False, pid=handle.pid, exit_code=ended["exit_code"])
            if self._runs(handle):
                return ServiceStatus(running=True, pid=handle.pid)
            if time.monotonic() > deadline:  # nobody was left to write down how it ended
                return ServiceStatus(running=False, pid=handle.pid)
            time.sleep(_VERDICT_POLL_S)

    def log(self, handle: Handle, *, offset: int = 0) -> bytes:
        """Log bytes from ``offset`` on, 4 MiB at most; empty when there are no new ones. Bytes that were given back read as zeros."""
        try:
            return self._transport.read(handle.log, offset=offset, limit=READ_LIMIT)
        except FileNotFoundError:
            return b""

    def stop(self, handle: Handle, *, timeout_s: float) -> bool:
        """SIGTERM, SIGKILL after ``timeout_s``; returns when no process of it is left. Idempotent.

        Raises ``StopStudy`` when processes are left that cannot be killed.
        """
        request = {"state": self.host_side.state, "name": handle.name, "timeout_s": timeout_s}
        reply = self.host_side.call("stop", request, timeout_s=timeout_s + _STOP_SLACK_S)
        if reply.get("left") or "error" in reply:
            raise StopStudy(
                f"{handle.name}: processes {reply.get('left', '')} cannot be killed {reply.get('error', '')}".strip(),
                hint="a process in the kernel's uninterruptible state usually waits for a GPU or a disk: look at dmesg, then reboot",
            )
        self._started.pop((handle.name, handle.pid), None)
        return False  # who killed a plain process is not to be known

    def _runs(self, handle: Handle) -> bool:
        record = self._started.get((handle.name, handle.pid)) or self._json(handle, "started.json")
        try:
            process = parse_stat(self._transport.read(f"/proc/{handle.pid}/stat").decode(errors="replace"))
        except (FileNotFoundError, ValueError, IndexError):
            return False
        return record is not None and process.started == record["started"] and process.state not in DEAD

    def _json(self, handle: Handle, name: str) -> dict[str, Any] | None:
        folder = handle.log.rpartition("/")[0]
        try:
            return dict(json.loads(self._transport.read(f"{folder}/{name}")))
        except FileNotFoundError:
            return None
