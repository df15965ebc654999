"""Which transport a host document asks for."""

from __future__ import annotations

from autotuner.errors import UsageError
from autotuner.model.host import Host
from autotuner.transports.base import Transport
from autotuner.transports.local import LocalTransport


def transport_for(host: Host) -> Transport:
    """The transport to ``host``. Raises ``UsageError`` for one that this version does not have."""
    kind = host.transport.type
    if kind == "local":
        return LocalTransport()
    raise UsageError(
        f"host {host.name}: transport {kind} is not available in this version",
        hint="run autotuner on the host itself and write `transport: {type: local}`",
    )
