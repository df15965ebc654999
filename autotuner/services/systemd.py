"""SystemdManager: servers as transient units of systemd, which lets none of them run beside production.

How units are started, watched and stopped is on the host (``onhost/candidate.py``). Their log is the journal, read by its cursor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autotuner.errors import StopStudy, TransportError
from autotuner.services.base import Handle, LaunchSpec, ServiceStatus
from autotuner.services.hostside import HostSide, not_started
from autotuner.services.onhost.processes import service_mark

_START_TIMEOUT_S = 120.0
_STOP_SLACK_S = 60.0


@dataclass(slots=True)
class _Log:
    """Log text of one server from ``begins`` on; what was asked for before is let go."""

    cursor: str = ""
    begins: int = 0
    kept: bytes = b""


class SystemdManager:
    """Starts, watches and stops servers on one host whose port is ``port``."""

    name = "systemd"

    def __init__(self, host_side: HostSide, *, port: int) -> None:
        self.host_side = host_side
        self._port = port
        self._logs: dict[tuple[str, int], _Log] = {}

    def start(self, spec: LaunchSpec, *, session: str) -> Handle:
        """Start the server as a unit of its own, beside which neither production nor its conflicts can run.

        Raises ``TransportError`` when the outcome is unknown, ``StopStudy`` when the program cannot be executed, a secret is missing or the
        session has lost the host.
        """
        request = {
            **self._request(spec.name),
            "session": session,
            "mark": service_mark(spec.name),
            "argv": list(spec.argv),
            "env": dict(spec.env),
            "cwd": spec.cwd,
            "secrets": dict(spec.secrets),
        }
        reply = self.host_side.call("start", request, timeout_s=_START_TIMEOUT_S)
        if "error" in reply:
            raise not_started(spec, reply)
        return Handle(name=spec.name, pid=reply["pid"], log=reply["log"])

    def status(self, handle: Handle) -> ServiceStatus:
        """How it is now. Raises ``TransportError``."""
        reply = self._ask("status", self._request(handle.name))
        return ServiceStatus(
            running=reply["running"],
            pid=reply["pid"] or handle.pid,
            exit_code=reply["exit_code"],
            out_of_memory=reply["out_of_memory"],
            by_hand=reply["by_hand"],
        )

    def log(self, handle: Handle, *, offset: int = 0) -> bytes:
        """Log bytes from ``offset`` on, about 1 MiB at most; empty when there are no new ones."""
        kept = self._logs.setdefault((handle.name, handle.pid), _Log())
        if offset < kept.begins:
            kept = self._logs[handle.name, handle.pid] = _Log()
        reply = self._ask("log", {**self._request(handle.name), "cursor": kept.cursor})
        kept.cursor = reply["cursor"]
        kept.kept += reply["text"].encode(errors="surrogateescape")
        let_go = min(offset - kept.begins, len(kept.kept))
        kept.kept, kept.begins = kept.kept[let_go:], kept.begins + let_go
        return kept.kept

    def stop(self, handle: Handle, *, timeout_s: float) -> bool:
        """SIGTERM to all of its control group, SIGKILL after ``timeout_s``; returns when no process of it is left. Idempotent.

        Raises ``StopStudy`` when processes are left that cannot be killed.
        """
        request = {**self._request(handle.name), "timeout_s": timeout_s}
        reply = self._ask("stop", request, timeout_s=timeout_s + _STOP_SLACK_S)
        if reply["left"]:
            raise StopStudy(
                f"{handle.name}: processes {reply['left']} cannot be killed",
                hint="a process in the kernel's uninterruptible state usually waits for a GPU or a disk: look at dmesg, then reboot",
            )
        return bool(reply.get("by_hand"))

    def _request(self, name: str) -> dict[str, Any]:
        return {"state": self.host_side.state, "manager": self.name, "port": self._port, "name": name}

    def _ask(self, command: str, request: dict[str, Any], *, timeout_s: float = 60.0) -> dict[str, Any]:
        reply = self.host_side.call(command, request, timeout_s=timeout_s)
        if "error" in reply:
            raise TransportError(
                f"{request['name']}: {command}: {reply['error']}", hint="look at the host: systemctl --failed; journalctl -xe"
            )
        return reply
