"""Which transport a host document asks for."""

from __future__ import annotations

from autotuner.model.host import Host
from autotuner.transports.base import Transport
from autotuner.transports.local import LocalTransport


def transport_for(host: Host) -> Transport:
    """The transport to ``host``; nothing is connected yet. Raises ``UsageError`` for an ssh configuration that cannot be used."""
    if host.transport.type == "local":
        return LocalTransport()
    from autotuner.transports.ssh.transport import SshTransport  # loading paramiko takes a fifth of a second

    return SshTransport(host.transport)
