"""``dead_tuner.py HOST_FILE``: takes a host as a tuner does, starts a candidate in production's place, and waits to be killed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from autotuner.deploy import HostSession
from autotuner.documents import load_host
from autotuner.engines.registry import engine_for
from autotuner.services.base import LaunchSpec
from autotuner.services.registry import manager_for
from autotuner.transports.registry import transport_for

SERVER = Path(__file__).with_name("light_server.py")


def main() -> None:
    """Hold the host until somebody ends it."""
    host = load_host(sys.argv[1])
    transport = transport_for(host)
    services = manager_for(host, transport)
    port = str(host.endpoint.port)
    candidate = ("/usr/bin/python3", "-S", "-E", str(SERVER), "--host", "127.0.0.1", "--port", port, "--served-model-name", "candidate")
    about = {"holder": "ada@farbox", "purpose": "tune far", "ttl_s": host.limits.lease_ttl_s}
    session = HostSession(host, engine_for(host), transport, services, on_notice=_say, **about)
    with session:
        session._clear_port()  # as a launch does; the candidate here speaks no engine's language
        services.start(LaunchSpec(name=f"candidate-1-{port}", argv=candidate), session=session.folder)
        _say("candidate started")
        while True:
            time.sleep(1)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


main()
