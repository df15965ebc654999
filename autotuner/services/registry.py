"""Which service manager a host document asks for."""

from __future__ import annotations

from autotuner.errors import UsageError
from autotuner.model.host import Host
from autotuner.services.base import ServiceManager
from autotuner.services.hostside import HostSide
from autotuner.services.process import ProcessManager
from autotuner.services.systemd import SystemdManager
from autotuner.transports.base import Transport


def manager_for(host: Host, transport: Transport) -> ServiceManager:
    """The service manager of ``host``. Raises ``UsageError`` for one that this version does not have."""
    kind = host.service.manager
    pythons = ("python3", host.engine.python)
    if kind == "container":
        raise UsageError(
            f"host {host.name}: service manager {kind} is not available in this version",
            hint="serve from a systemd unit or a plain process and write `service: {manager: systemd}` or `{manager: process}`",
        )
    if kind == "systemd":
        return SystemdManager(HostSide(transport, pythons=pythons, system=True), port=host.endpoint.port)
    if host.service.conflicts:
        raise UsageError(
            f"host {host.name}: service.conflicts names units, which manager {kind} cannot stop",
            hint="write `manager: systemd`, or stop them yourself for the night and leave `conflicts` out",
        )
    return ProcessManager(HostSide(transport, pythons=pythons))
