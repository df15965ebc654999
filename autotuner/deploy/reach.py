"""Over which way a server is asked and loaded: from this machine, or on its own host when its port cannot be reached from here."""

from __future__ import annotations

import ipaddress
import socket
import time

from autotuner.loadgen.control import ControlClient
from autotuner.loadgen.hosthttp import HostHttp
from autotuner.loadgen.path import LoadPath
from autotuner.model.host import LOOPBACK, Host, SshTransport, bracketed
from autotuner.services.hostside import HostSide
from autotuner.transports.base import Transport

_CONNECT_TIMEOUT_S = 3.0
_TRIES = 3
_HTTP_SLACK_S = 10.0


def choose_load_path(host: Host, transport: Transport) -> LoadPath:
    """The way that the document asks for, as far as it can be known before a server is up. Nothing is connected to."""
    if not isinstance(host.transport, SshTransport):
        return LoadPath(source="controller", base_url=host.base_url, rtt_s=None)
    address = host.endpoint.address
    if host.load.source == "host" or _is_loopback(address):
        return on_host(host)
    target = getattr(transport, "hostname", host.transport.hostname) if address in LOOPBACK else address
    return LoadPath(source="controller", base_url=f"http://{bracketed(target)}:{host.endpoint.port}", rtt_s=transport.rtt_s)


def on_host(host: Host) -> LoadPath:
    """The way that always exists."""
    return LoadPath(source="host", base_url=host.base_url, rtt_s=None)


class Route:
    """The way of one session. It is settled once, when the first server is up: launches that are compared share one way."""

    def __init__(self, host: Host, host_side: HostSide) -> None:
        self._host = host
        self._host_side = host_side
        self.path = choose_load_path(host, host_side.transport)
        self._open = host.load.source == "auto" and self.path.source == "controller" and isinstance(host.transport, SshTransport)

    def settle(self) -> None:
        """A server listens on the host now: when no TCP connection reaches it from here, everything is done on the host instead."""
        if not self._open:
            return
        self._open = False
        rtt_s = _connect_s(self.path.base_url)
        if rtt_s is None:
            self.path = on_host(self._host)
        else:
            self.path = LoadPath(source="controller", base_url=self.path.base_url, rtt_s=rtt_s)

    def control(self, *, timeout_s: float, host_side: HostSide | None = None) -> ControlClient:
        """A client for the server over this way; ``host_side`` for one that shall use another connection to the host."""
        side = host_side or self._host_side
        if self.path.source == "controller":
            return ControlClient(self.path.base_url, timeout_s=timeout_s)
        http = HostHttp(lambda request: side.call("http", request, timeout_s=timeout_s + _HTTP_SLACK_S))
        return ControlClient(self.path.base_url, timeout_s=timeout_s, transport=http)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _connect_s(base_url: str) -> float | None:
    """Seconds that a TCP connection takes to be made, the fastest of a few; ``None`` when none could be made."""
    where, _, port = base_url.removeprefix("http://").rpartition(":")
    taken: list[float] = []
    for _ in range(_TRIES):
        began = time.monotonic()
        try:
            with socket.create_connection((where.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S):
                taken.append(time.monotonic() - began)
        except OSError:
            continue
    return min(taken) if taken else None
