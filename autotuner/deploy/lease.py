"""The lease on a host: taken before anything is looked at, given back when production serves again."""

from __future__ import annotations

import datetime as dt
import os
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autotuner.deploy.recovery import bring_back
from autotuner.discover.tenancy import holder_lives, how_to_stop, lease_names, tenant, this_machine
from autotuner.errors import Refused
from autotuner.model.host import Host
from autotuner.services.hostside import HostSide
from autotuner.services.onhost import processes

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease that is held. ``token`` tells this session from every other one."""

    token: str
    paths: tuple[str, ...]
    holder: dict[str, Any]
    """``{machine, pid, started}``: how the host, if it is this machine, sees whether the holder lives."""


def take_lease(
    host: Host, host_side: HostSide, *, holder: str, purpose: str, folder: str, ttl_s: float, on_notice: Callable[[str], None]
) -> Lease:
    """Take the lease. What a dead holder left is brought in order first.

    Raises ``Refused`` naming a holder that lives, ``NotRestored`` when what a dead one left cannot be put in order.
    """
    token, identity = uuid.uuid4().hex, _identity()
    content = {
        "holder": holder,
        "purpose": purpose,
        "since": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
        "token": token,
        "session": folder,
        "ttl_s": ttl_s,
        **identity,
    }
    request = {"folder": host_side.leases, "names": list(lease_names(host)), "content": content}
    held: dict[str, Any] = {}
    for _ in range(_ATTEMPTS):
        reply = host_side.call("acquire", request)
        if "error" in reply:
            raise Refused(f"{host.name}: no lease could be taken: {reply['error']}", hint=f"look at {host_side.leases} on the host")
        if "taken" in reply:
            return Lease(token=token, paths=tuple(reply["taken"]), holder=identity)
        held = reply["held"]
        if holder_lives(held, by_host=reply["alive"]):
            break
        gone = f"taking over from {tenant(held)}, which is gone" if held else f"{reply['path']} cannot be read, and is removed"
        on_notice(f"{host.name}: {gone}")
        if held.get("session"):
            bring_back(host, host_side, held["session"])
        host_side.call("break-lease", {"path": reply["path"], "token": held.get("token")})
    raise Refused(
        f"{host.name} is being tuned by {tenant(held)}",
        hint=f"wait until it has ended, or stop it: {how_to_stop(held)}",
    )


def _identity() -> dict[str, Any]:
    own = processes.read(os.getpid())
    return {"machine": this_machine(), "pid": os.getpid(), "started": own.started if own else 0, "node": socket.gethostname()}
