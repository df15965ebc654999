"""Which service manager a host document asks for."""

from __future__ import annotations

from autotuner.errors import UsageError
from autotuner.model.host import Host
from autotuner.services.base import ServiceManager
from autotuner.services.hostside import HostSide
from autotuner.services.process import ProcessManager
from autotuner.transports.base import Transport


def manager_for(host: Host, transport: Transport) -> ServiceManager:
    """The service manager of ``host``. Raises ``UsageError`` for one that this version does not have."""
    kind = host.service.manager
    if host.service.conflicts:
        raise UsageError(
            f"host {host.name}: service.conflicts names units or containers, which manager {kind} cannot stop in this version",
            hint="stop them yourself for the night, and leave `conflicts` out",
        )
    if kind == "process":
        return ProcessManager(HostSide(transport, pythons=("python3", host.engine.python)))
    raise UsageError(
        f"host {host.name}: service manager {kind} is not available in this version",
        hint="serve from a plain process and write `service: {manager: process}`",
    )
