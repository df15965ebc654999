"""Who tunes a host now. One tuner at a time: two would measure each other."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotuner.model.host import Host
from autotuner.services.hostside import HostSide
from autotuner.services.onhost import lease as onhost_lease
from autotuner.services.onhost import processes

_FIRST_PIDS = "pid:[4026531836]"
"""The pid namespace that every Linux starts with; the kernel gives it this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """The holder of a lease."""

    who: str
    purpose: str
    since: str

    def __str__(self) -> str:
        return f"{self.who} since {self.since}: {self.purpose}"


def lease_names(host: Host) -> tuple[str, ...]:
    """What a tuner needs for itself, whatever the document is called: the machine's GPUs and the port; simulated: the port."""
    port = f"port-{host.endpoint.port}"
    return (port,) if host.simulate is not None else ("gpus", port)


def tenant(content: Mapping[str, Any]) -> Tenant:
    """The holder that a lease names."""
    return Tenant(who=str(content.get("holder", "?")), purpose=str(content.get("purpose", "?")), since=str(content.get("since", "?")))


def this_machine() -> str:
    """Where this process's pid has its meaning; empty where there is no /proc."""
    return onhost_lease.machine() if processes.read(os.getpid()) is not None else ""


def holder_lives(content: Mapping[str, Any], *, by_host: bool) -> bool:
    """Whether the holder of a lease may still act.

    The host's word counts, and that waits for the time to live. Of a holder that ran on this machine it is seen at once that it is gone.
    """
    if by_host and content.get("machine") and content["machine"] == this_machine():
        return processes.alive(int(content["pid"]), int(content["started"]))
    return by_host


def how_to_stop(content: Mapping[str, Any]) -> str:
    """How a person ends the tuner that holds a lease. In a container its pid means another process, or none, to the machine."""
    node, pid = str(content.get("node") or "its machine"), content.get("pid") or "PID"
    namespace = str(content.get("machine") or "")
    if "pid:[" in namespace and not namespace.endswith(_FIRST_PIDS) and namespace != this_machine():
        return f"end it inside its container, called {node}, where it is process {pid}, or stop that container"
    return f"kill {pid} on {node}"


def tenant_of(host: Host, host_side: HostSide, *, besides: str | None = None) -> Tenant | None:
    """Who tunes this host now, if anybody; the lease of a dead tuner does not count, nor the one with the token ``besides``."""
    reply = host_side.call("leases", {"folder": host_side.leases, "names": list(lease_names(host))})
    held = [lease["content"] for lease in reply.get("held", []) if holder_lives(lease["content"], by_host=lease["alive"])]
    return next((tenant(content) for content in held if besides is None or content.get("token") != besides), None)
