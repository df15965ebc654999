"""Ports for the servers of tests."""

from __future__ import annotations

import os
import random
import socket

PORTS = range(10_000, 30_000)
"""Below those that the kernel gives to any client at any moment, and below the default port of servers."""
PORTS_OF_A_WORKER = 2_000


def free_port() -> int:
    """A port on which nobody listens, from those of this worker of pytest-xdist: the server of a test has it whenever it starts."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    begin = PORTS.start + worker * PORTS_OF_A_WORKER % len(PORTS)
    own = range(begin, begin + PORTS_OF_A_WORKER)
    for port in random.SystemRandom().sample(own, len(own)):  # tests seed the other source
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError(f"no port is free in {own}")
